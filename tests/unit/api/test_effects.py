"""Nothing is accepted and ignored: every field of the spec changes a manifest or run.json when its value changes.

The fields are enumerated from the API's schema, so that a new one cannot be forgotten.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.builders import UID, everything_made_for, some_settings
from tests.specs import POOLS, SCHEMA, Schema, Spec, complete_specs, leaves
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.settings import NodePool

SETTINGS = some_settings(
    node_pools={
        name: NodePool(name, {"pool": name}, resource_name=f"{name}.example.com/gpu") for name in (*POOLS, "other")
    }
)

OTHER_VALUES: Mapping[str, Any] = {
    "engine.type": "Trinity",
    "engine.rayVersion": "2.61.0",
    "engine.config": {"weight_decay": 0.5},
    "cluster.head.nodePool": "other",
    "cluster.workers[].nodePool": "other",
    "cluster.head.podTemplatePatch": {"spec": {"hostname": "another"}},
    "cluster.workers[].podTemplatePatch": {"spec": {"hostname": "another"}},
    "checkpoint.volume.claimTemplate.accessModes": ["ReadWriteOncePod"],
}
"""What the schema alone cannot tell: values that must mean something."""

OF_THE_LIFE_CYCLE = {
    "suspend",
    "retry.maxAttempts",
    "retry.backoffSeconds",
    "retry.rules[].causes",
    "retry.rules[].action",
    "deadlines.startSeconds",
    "deadlines.activeSeconds",
    "cleanup.clusterTTLSeconds",
    "cleanup.runTTLSeconds",
}
"""What decides when something is done, not what: `unit/engine/test_life_cycle_fields` shows that they are obeyed."""

WHOLE = complete_specs()


def another(schema: Schema, value: Any) -> Any:
    """A value of the same type that is another one."""
    if "enum" in schema:
        return next(word for word in schema["enum"] if word != value)
    if schema.get("x-kubernetes-int-or-string"):
        return "3Gi" if value != "3Gi" else "5Gi"
    kind = schema["type"]
    if kind == "boolean":
        return not value
    if kind in ("integer", "number"):
        middle = schema["minimum"] + (schema["maximum"] - schema["minimum"]) // 2 if kind == "integer" else 0.5
        return middle if middle != value else middle / 2
    if kind == "array":
        return [] if value else [another(schema["items"], "")]
    if kind == "object":
        return {"changed": "label"}
    return _another_text(value)


def _another_text(value: str) -> str:
    if ":" in value and "/" not in value:
        return f"another_{value}"
    if value.startswith(("/", "http")):
        return f"{value}2"
    return "changed" if value != "changed" else "other"


def holders(spec: Any, path: str) -> Iterator[tuple[Spec, str]]:
    """Every object of a spec that holds the field, with the field's last name."""
    first, _, rest = path.partition(".")
    name = first.removesuffix("[]")
    if not rest:
        if name in spec:
            yield spec, name
        return
    inner = spec.get(name, [] if first.endswith("[]") else {})
    for entry in inner if first.endswith("[]") else [inner]:
        yield from holders(entry, rest)


def schema_of(path: str) -> Schema:
    found = SCHEMA
    for name in path.split("."):
        found = found["properties"][name.removesuffix("[]")]
        found = found["items"] if name.endswith("[]") else found
    return found


def made(spec: Spec) -> list[dict[str, Any]]:
    """All objects of a run with this spec."""
    metadata = {"name": "run", "namespace": "ml", "uid": UID}
    return everything_made_for(TuningRun.from_object({"metadata": metadata, "spec": spec}), SETTINGS)


@pytest.fixture(scope="module")
def before() -> list[list[dict[str, Any]]]:
    """What is made for the complete specs as they are."""
    return [made(spec) for spec in WHOLE]


@pytest.mark.parametrize("path", [path for path in leaves() if path not in OF_THE_LIFE_CYCLE])
def test_a_field_that_changes_changes_a_manifest_or_the_run_document(
    path: str, before: list[list[dict[str, Any]]]
) -> None:
    tried = 0
    for spec, unchanged in zip(WHOLE, before, strict=True):
        changed = copy.deepcopy(spec)
        for holder, name in list(holders(changed, path))[:1]:
            tried += 1
            value = OTHER_VALUES.get(path) or another(schema_of(path), holder[name])
            assert value != holder[name]
            holder[name] = value
            if made(changed) != unchanged:
                return
    pytest.fail(f"{path} was changed in {tried} specs, and nothing of what is made for them changed")


def test_a_field_that_does_nothing_would_be_found() -> None:
    spec = copy.deepcopy(WHOLE[0])
    assert made(spec | {"unknown": 1}) == made(spec)
    assert made(spec | {"seed": 12345}) != made(spec)
