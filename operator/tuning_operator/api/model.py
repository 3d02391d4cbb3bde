"""The base of all API models, and the markers that the schema needs beside pydantic's own.

Used by the `v1alpha1` modules. Attribute docstrings become descriptions; `schema.py` adds default and example.
A model is frozen, spells its fields in camelCase outside, and ignores what it does not know on read, so that an
older operator survives a newer object.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
CONFIG_KEY_PATTERN = r"^[-._a-zA-Z0-9]+$"
_PATH_PART = r"([^/.]|\.[^/.]|\.\.[^/])[^/]*"
"""A name in a path; `.` and `..` are none, so that a path cannot leave the folder that it is in."""
PATH_PATTERN = rf"^(/{_PATH_PART})+$"
MOUNT_PATH_PATTERN = PATH_PATTERN.replace("[^/", "[^/:")
"""Kubernetes takes no colon in the path of a mount."""
RELATIVE_PATH_PATTERN = rf"^{_PATH_PART}(/{_PATH_PART})*$"
LABEL_PATTERN = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$"
)
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
ENTRYPOINT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"

WORDS = "x-words"
"""In `json_schema_extra`: what the value of a field with a pattern must be. The CRD then has a rule with these words in
the place of the pattern, of which the server would show the user the bare regular expression."""


def in_words(words: str) -> dict[str, Any]:
    """For `json_schema_extra`; `words` continue a sentence that begins with the field: "must be ..."."""
    return {WORDS: words}


VARIABLE_WORDS = "must be letters, digits and underscores, the first no digit"
LABEL_WORDS = "must be lower-case letters, digits and hyphens, the first and last no hyphen"

Quantity = Annotated[
    str,
    Field(coerce_numbers_to_str=True),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
            WORDS: "must be a quantity of Kubernetes, such as 4, 500m or 16Gi, and not below 0",
        }
    ),
]
"""A resource quantity of Kubernetes: YAML may hold 4 or "4" or 500m; read as text."""

ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=DNS_SUBDOMAIN_PATTERN,
        json_schema_extra=in_words(
            "must be lower-case letters, digits, hyphens and dots, the first and last a letter or digit"
        ),
    ),
]
ConfigKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=CONFIG_KEY_PATTERN,
        json_schema_extra=in_words("must be letters, digits, hyphens, underscores and dots"),
    ),
]
Entrypoint = Annotated[
    str,
    Field(
        min_length=3,
        max_length=512,
        pattern=ENTRYPOINT_PATTERN,
        json_schema_extra=in_words("must be module:function, such as math_agent:run"),
    ),
]
Path = Annotated[
    str,
    Field(
        min_length=2,
        max_length=1024,
        pattern=PATH_PATTERN,
        json_schema_extra=in_words(
            "must be an absolute path, such as /opt/data, without // . or .. in it and / at its end"
        ),
    ),
]
RelativePath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        pattern=RELATIVE_PATH_PATTERN,
        json_schema_extra=in_words(
            "must be a path below the root, such as data/train, without / at both ends, and // . or .. in it"
        ),
    ),
]
DnsLabel = Annotated[
    str,
    Field(
        min_length=1,
        max_length=63,
        pattern=DNS_LABEL_PATTERN,
        json_schema_extra=in_words(LABEL_WORDS),
    ),
]
LabelKey = Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_PATTERN)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]

FreeForm = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""An object whose keys are not the API's: two fields have it, and no more shall."""

Rule = dict[str, str]
"""One entry of x-kubernetes-validations."""


class ApiModel(BaseModel):
    """A frozen object of the API; `rules` are its CEL rules."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    validations: ClassVar[tuple[Rule, ...]] = ()
    """Checked by the API server on every write; each message says what to do."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the CEL rules to what pydantic generates."""
        schema = handler(core_schema)
        if cls.validations:
            handler.resolve_ref_schema(schema)["x-kubernetes-validations"] = list(cls.validations)
        return schema

    def to_object(self) -> dict[str, Any]:
        """The plain JSON object: camelCase keys, nothing that is None, no empty object."""
        return _without_empty(self.model_dump(mode="json", by_alias=True, exclude_none=True))


def rule(expression: str, message: str, field: str | None = None) -> Rule:
    """One CEL rule with its message; `field` is the path that the error names, below the rule's own place."""
    entry = {"rule": expression, "message": message}
    return entry if field is None else entry | {"fieldPath": f".{field}"}


def exactly_one(*fields: str) -> Rule:
    """A rule for a union: exactly one of the optional sub-objects is set."""
    present = ", ".join(f"has(self.{name})" for name in fields)
    names = ", ".join(f"`{name}`" for name in fields)
    return rule(f"[{present}].filter(set, set).size() == 1", f"set exactly one of {names}")


def more_than_zero(field: str) -> Rule:
    """A rule for a quantity that may be absent, as it is while the server judges the default of its parent."""
    expression = (
        f"!has(self.{field}) || !isQuantity(string(self.{field})) || "
        f"quantity(string(self.{field})).isGreaterThan(quantity('0'))"
    )
    return rule(expression, f"`{field}` must be more than 0", field)


def valid_keys(field: str) -> Rule:
    """A rule for a map of labels or annotations, whose keys a structural schema cannot bound.

    A regular expression is over the server's budget, which takes a key for as long as a request; `format` is not.
    """
    return rule(
        f"!has(self.{field}) || self.{field}.all(key, !format.qualifiedName().validate(key).hasValue())",
        f"`{field}` must have keys such as team or example.com/team: at most 63 letters, digits, hyphens, underscores "
        "and dots, with or without a domain and a slash before them",
        field,
    )


def immutable(fields: tuple[str, ...], way_out: str) -> tuple[Rule, ...]:
    """One rule for each key of the object: it cannot be added, removed or changed.

    A rule with oldSelf on an optional field itself does not fire when the field is added or removed, so these
    sit on the parent.
    """
    return tuple(
        rule(
            f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
            f"`{name}` is immutable: {way_out}",
            name,
        )
        for name in fields
    )


def list_map(key: str) -> Callable[[dict[str, Any]], None]:
    """For `json_schema_extra`: the list is a map by `key`, so entries are unique and merge by it."""

    def extend(schema: dict[str, Any]) -> None:
        schema.update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]})

    return extend


def list_set(schema: dict[str, Any]) -> None:
    """For `json_schema_extra`: entries of the list are unique scalars."""
    schema["x-kubernetes-list-type"] = "set"


def _without_empty(value: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for key, item in value.items():
        kept = _without_empty(item) if isinstance(item, dict) else item
        if kept != {}:
            result[key] = kept
    return result
