"""pydantic models -> the structural schema of Kubernetes.

Called by `crd`. pydantic's JSON schema is generated with small changes, references are inlined, and every keyword is
translated or refused: a feature of pydantic that the API server would not understand raises here instead of
reaching a cluster.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from tuning_operator.api.model import WORDS, ApiModel, Rule, rule

Schema = dict[str, Any]

_KEPT = frozenset(
    {
        "type", "format", "description", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum",
        "minItems", "maxItems", "required", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
        "minProperties", "maxProperties",
    }
)  # fmt: skip
_TRANSLATED = frozenset(
    {
        "title", "default", "examples", "properties", "items", "additionalProperties", "patternProperties",
        "propertyNames", "anyOf", "exclusiveMinimum", "exclusiveMaximum", WORDS,
    }
)  # fmt: skip
_MATCHES = re.compile(r"^(?:self|string\(self\))\.matches\(r'(.*)'\)$")
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


class SchemaError(ValueError):
    """A model uses something that a structural schema cannot express; the text names place and keyword."""


class _Generator(GenerateJsonSchema):
    """pydantic's generator, without null: an optional field is one that may be absent."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def structural(model: type[ApiModel], *, defaults: bool = True) -> Schema:
    """The structural schema of a model.

    Args:
        model: its fields, bounds, docstrings and rules.
        defaults: whether the API server shall fill in defaults. They sit on leaves; an object above a leaf with a
            default gets `{}`, so that omitting it yields the leaf's default.

    Raises:
        SchemaError: something in the model has no structural equivalent.
    """
    document = model.model_json_schema(by_alias=True, schema_generator=_Generator)
    definitions = document.pop("$defs", {})
    return _Translation(definitions, defaults).translate(document, model.__name__)


class _Translation:
    """One pass over a JSON schema."""

    def __init__(self, definitions: Mapping[str, Schema], defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def translate(self, schema: Mapping[str, Any], where: str) -> Schema:
        source = self._inlined(schema)
        if unknown := sorted(set(source) - _KEPT - _TRANSLATED):
            raise SchemaError(f"{where}: no structural equivalent of {', '.join(unknown)}")
        result = {key: value for key, value in source.items() if key in _KEPT}
        self._check_type(source, result, where)
        self._translate_bounds(source, result)
        if WORDS in source:
            pattern = result.pop("pattern")
            result["x-kubernetes-validations"] = [_in_words(where, pattern, source)]
        if "properties" in source:
            result["properties"] = {
                name: self.translate(child, f"{where}.{name}") for name, child in source["properties"].items()
            }
        if "items" in source:
            result["items"] = self.translate(source["items"], f"{where}[]")
        if values := _values_of_map(source):
            result["additionalProperties"] = self.translate(values, f"{where}{{}}")
        if self._defaults:
            _set_default(source, result)
        if "description" in source:
            result["description"] = _described(source, result)
        return dict(sorted(result.items(), key=lambda item: (item[0] != "description", item[0])))

    def _inlined(self, schema: Mapping[str, Any]) -> Schema:
        """The schema with its reference replaced by what it refers to; siblings of the reference win."""
        source = dict(schema)
        while "$ref" in source:
            name = source.pop("$ref").removeprefix("#/$defs/")
            source = dict(self._definitions[name]) | source
        return source

    def _check_type(self, source: Schema, result: Schema, where: str) -> None:
        if source.get("x-kubernetes-int-or-string"):
            if source.get("anyOf") != _INT_OR_STRING:
                raise SchemaError(f"{where}: int-or-string must be exactly anyOf integer and string")
            result["anyOf"] = [dict(kind) for kind in _INT_OR_STRING]
            result.pop("type", None)
        elif "anyOf" in source:
            raise SchemaError(f"{where}: no structural equivalent of anyOf; use optional sub-objects and a rule")
        elif "type" not in source:
            raise SchemaError(f"{where}: no type")

    def _translate_bounds(self, source: Schema, result: Schema) -> None:
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if exclusive in source:
                result[bound] = source[exclusive]
                result[exclusive] = True


def pattern_of(schema: Mapping[str, Any]) -> str | None:
    """The regular expression that a value must match, whether a keyword or a rule in words says so."""
    for entry in schema.get("x-kubernetes-validations", []):
        if found := _MATCHES.match(entry["rule"]):
            return found[1]
    pattern: str | None = schema.get("pattern")
    return pattern


def _in_words(where: str, pattern: str, source: Schema) -> Rule:
    value = "string(self)" if source.get("x-kubernetes-int-or-string") else "self"
    field = where.rpartition(".")[2].removesuffix("[]")
    return rule(f"{value}.matches(r'{pattern}')", f"`{field}` {source[WORDS]}")


def _values_of_map(source: Schema) -> Mapping[str, Any] | None:
    """The schema of a map's values, None for what is no map.

    A structural schema has no bounds for keys: a rule of the object above checks them, as `model.valid_keys` does.
    """
    candidates = [*source.get("patternProperties", {}).values(), source.get("additionalProperties")]
    return next((found for found in candidates if isinstance(found, Mapping)), None)


def _set_default(source: Schema, result: Schema) -> None:
    if "default" not in source:
        return
    value = source["default"]
    if result.get("type") == "object":
        if value and "properties" not in result:
            result["default"] = value
        elif any("default" in child for child in result.get("properties", {}).values()):
            result["default"] = {}
    elif value != []:
        result["default"] = value


def _described(source: Schema, result: Schema) -> str:
    """The docstring in one line, followed by default and example."""
    sentences = [" ".join(source["description"].split())]
    if "properties" not in result:
        if "default" in result:
            sentences.append(f"Default: {_text(result['default'])}.")
        if source.get("examples"):
            sentences.append(f"Example: {_text(source['examples'][0])}.")
    return " ".join(sentences)


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)
