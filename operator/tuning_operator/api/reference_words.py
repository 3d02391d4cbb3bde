"""A field's schema in words: type, default, bounds, meaning. Used by `reference` alone."""

import json
from collections.abc import Mapping
from typing import Any

from tuning_operator.api import model
from tuning_operator.api.schema import pattern_of
from tuning_operator.api.v1alpha1_execution import IMAGE_PATTERN, URL_PATTERN
from tuning_operator.api.v1alpha1_sources import HUB_SPLIT_PATTERN, REPOSITORY_PATTERN, REVISION_PATTERN, SPLIT_PATTERN
from tuning_operator.api.v1alpha1_training import RAY_VERSION_PATTERN

Schema = Mapping[str, Any]

FORMS: Mapping[str, str] = {
    model.DNS_SUBDOMAIN_PATTERN: "name of an object",
    model.DNS_LABEL_PATTERN: "lower-case letters, digits, hyphens",
    model.CONFIG_KEY_PATTERN: "letters, digits, `-`, `_`, `.`",
    model.PATH_PATTERN: "absolute path",
    model.MOUNT_PATH_PATTERN: "absolute path without a colon",
    model.RELATIVE_PATH_PATTERN: "relative path",
    model.LABEL_PATTERN: "key of a label",
    model.LABEL_VALUE_PATTERN: "value of a label",
    model.ENTRYPOINT_PATTERN: "`module:function`",
    model.QUANTITY_PATTERN: "such as `4`, `500m`, `16Gi`",
    model.VARIABLE_PATTERN: "letters, digits, `_`",
    IMAGE_PATTERN: "no blanks",
    URL_PATTERN: "`http://` or `https://`",
    REPOSITORY_PATTERN: "`owner/name`",
    REVISION_PATTERN: "branch, tag or commit",
    HUB_SPLIT_PATTERN: "such as `train`, `train[:2000]`, `train[90%:]`",
    SPLIT_PATTERN: "letters, digits, `-`, `_`, `.`",
    RAY_VERSION_PATTERN: "`major.minor.patch`",
}
"""What the regular expressions of the schema mean; a new one must be added here."""

_TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}


def kind_of(schema: Schema) -> str:
    """What is written: "text", "list of objects", "one of TRL, Trinity"."""
    if "enum" in schema:
        return "one of " + ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if schema["type"] == "array":
        inner = schema["items"]
        return "list of objects" if "properties" in inner else f"list of {kind_of(inner)}"
    if schema["type"] == "object":
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return "free-form object"
        return "map of text" if "additionalProperties" in schema else "object"
    return _TYPES[schema["type"]]


def shown_default(schema: Schema) -> str:
    """The default, a dash where there is none."""
    if "properties" in schema or "default" not in schema:
        return "-"
    return f"`{_plain(schema['default'])}`"


def bounds(schema: Schema) -> str:
    """The limits of a value, "-" where its type says all."""
    parts = []
    if pattern := pattern_of(schema):
        parts.append(FORMS[pattern])
    if "maxLength" in schema and not schema.get("x-kubernetes-int-or-string"):
        parts.append(_between(schema.get("minLength", 0), schema["maxLength"], "characters"))
    if "maxItems" in schema:
        parts.append(_between(schema.get("minItems", 0), schema["maxItems"], "entries"))
        if key := schema.get("x-kubernetes-list-map-keys"):
            parts.append(f"`{key[0]}` unique")
    if "maxProperties" in schema:
        parts.append(f"at most {schema['maxProperties']} keys")
    if "minimum" in schema and "maximum" in schema:
        parts.append(_range(schema))
    elif "minimum" in schema:
        parts.append(f"at least {_plain(schema['minimum'])}")
    return ", ".join(parts) or "-"


def sentence(description: str) -> str:
    """The description without the default, which has a column of its own."""
    text, _, example = description.partition(" Example: ")
    text = text.partition(" Default: ")[0]
    return f"{text} Example: `{example.removesuffix('.')}`." if example else text


def _between(least: int, most: int, unit: str) -> str:
    return f"{least} to {most} {unit}" if least else f"at most {most} {unit}"


def _range(schema: Schema) -> str:
    least, most = _plain(schema["minimum"]), _plain(schema["maximum"])
    if not schema.get("exclusiveMinimum") and not schema.get("exclusiveMaximum"):
        return f"{least} to {most}"
    low = f"more than {least}" if schema.get("exclusiveMinimum") else f"at least {least}"
    high = f"less than {most}" if schema.get("exclusiveMaximum") else f"at most {most}"
    return f"{low}, {high}"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(int(value)) if isinstance(value, float) and value.is_integer() else json.dumps(value)
