"""Which fields of a RayCluster are needed, and what a schema lacks of them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tuning_operator.desired import raycluster
from tuning_operator.engine.kuberay import FIELDS, lacking


def a_schema(*paths: str) -> dict[str, Any]:
    """The OpenAPI schema that has these fields."""
    root: dict[str, Any] = {}
    for path in paths:
        schema = root
        for name in path.split("."):
            below = schema.setdefault("properties", {}).setdefault(name.removesuffix("[]"), {})
            schema = below.setdefault("items", {}) if name.endswith("[]") else below
    return root


def without(field: str) -> dict[str, Any]:
    """A schema that lacks a field and all below it."""
    return a_schema(*(path for path in FIELDS if not path.startswith(field)))


def test_a_schema_with_all_fields_lacks_none() -> None:
    assert lacking(a_schema(*FIELDS)) == ()


@pytest.mark.parametrize("field", ["spec.authOptions", "spec.workerGroupSpecs[].maxReplicas", "spec.rayVersion"])
def test_a_field_that_is_not_there_is_named_by_its_highest_part(field: str) -> None:
    assert lacking(without(field)) == (field,)
    assert lacking({}) == ("spec",)


def test_a_part_that_takes_anything_lacks_nothing() -> None:
    assert lacking({"properties": {"spec": {"x-kubernetes-preserve-unknown-fields": True}}}) == ()


def paths(value: Any, path: str) -> Iterator[str]:
    """Every field below a value, but for those of the pods' templates."""
    if path.endswith(".template") or not isinstance(value, dict | list):
        yield path
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, f"{path}[]")
    elif path.endswith("rayStartParams"):
        yield path
    else:
        for key, item in value.items():
            yield from paths(item, f"{path}.{key}")


def test_every_field_that_is_set_is_looked_for() -> None:
    run = a_run(cluster={"head": {"gpus": 1}, "workers": [{"name": "agents"}]})
    made = raycluster.build(run, some_settings(), 1)
    found = set(paths(made["spec"], "spec"))
    assert {path for path in found if not any(field.startswith(path) for field in FIELDS)} == set()
    assert found >= {"spec.authOptions.mode", "spec.workerGroupSpecs[].template"}
    for template in (made["spec"]["headGroupSpec"]["template"],):
        assert "restartPolicy" in template["spec"]["initContainers"][0]
