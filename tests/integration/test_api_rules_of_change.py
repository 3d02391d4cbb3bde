"""Names, and what may change after creation, on a real kube-apiserver; and that no rule is without a test."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.integration import test_api_rules_of_pods, test_api_rules_of_training
from tests.integration.api_requests import DRY, MERGE_PATCH, RUNS, STRICT, RuleCase, as_written, complaints
from tuning_operator.api import crd

pytestmark = pytest.mark.control_plane

NAME = (
    "`metadata.name` must be at most 39 lower-case letters, digits and hyphens, begin with a letter and end with a "
    "letter or digit: choose a shorter or simpler name"
)
ANOTHER_RUN = "`spec.model.run.name` must be another run: this one has no model before it is trained"
NO_RUN = {"run": {"name": "run"}, "image": None}

# (field, another value): every field of the spec, changed, added or removed
CHANGES: list[tuple[str, Any]] = [
    ("seed", 1),
    ("engine", {"rayVersion": "2.61.0"}),
    ("model", {"maxModelLength": 4096}),
    ("dataset", {"order": "Sequential"}),
    ("algorithm", {"steps": 13}),
    ("rollout", {"concurrency": 1}),
    ("workflow", {"judge": None}),
    ("cluster", {"head": {"gpus": 1}}),
    ("checkpoint", {"keepLast": 1}),
    ("metrics", {"remoteWrite": {"url": "http://prometheus:9090/api/v1/write"}}),
    ("retry", {"maxAttempts": 1}),
    ("priorityClassName", "research"),
    ("serviceAccountName", "tuning"),
    ("imagePullSecrets", [{"name": "registry"}]),
    ("podLabels", {"team": "a"}),
    ("podAnnotations", {"team": "a"}),
]


def immutable(field: str) -> str:
    return f"`{field}` is immutable: delete the run, or create another one under a new name"


def rules(schema: Any) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Place and message of every rule of an object or list, each with that of the first like it."""
    first: dict[str, str] = {}
    for place, inner in objects(schema, ""):
        same = first.setdefault(json.dumps(undescribed(inner), sort_keys=True), place)
        for entry in inner.get("x-kubernetes-validations", []):
            below = entry.get("fieldPath", "")
            yield (place + below, entry["message"]), (same + below, entry["message"])


def objects(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every part of a schema that is no single value, with its place."""
    if schema.get("type") not in ("object", "array"):
        return
    yield place, schema
    if "items" in schema:
        yield from objects(schema["items"], f"{place}[]")
    for name, child in schema.get("properties", {}).items():
        yield from objects(child, f"{place}.{name}")


def undescribed(schema: Any) -> Any:
    """A schema without the descriptions in it."""
    if isinstance(schema, list):
        return [undescribed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: undescribed(value) for key, value in schema.items() if key != "description" or isinstance(value, dict)}


@pytest.fixture(scope="module")
def made(control_plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """A run that exists, for the rules of change."""
    yield control_plane.api.request("POST", f"{RUNS}?{STRICT}", as_written("changing"))
    control_plane.api.request("DELETE", f"{RUNS}/changing")


def test_a_name_of_39_characters_is_accepted_and_one_more_or_a_leading_digit_is_not(
    control_plane: ControlPlane,
) -> None:
    control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written("a" * 39))
    for name in ("a" * 40, "1run", "a.b"):
        with pytest.raises(ApiError) as caught:
            control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written(name))
        assert [message for _, message in complaints(caught.value)] == [NAME]


def test_a_run_cannot_start_from_its_own_model(control_plane: ControlPlane) -> None:
    control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written("other", model=NO_RUN))
    with pytest.raises(ApiError) as caught:
        control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written("run", model=NO_RUN))
    assert [message for _, message in complaints(caught.value)] == [ANOTHER_RUN]


@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_a_field_cannot_be_changed_after_creation(
    control_plane: ControlPlane, made: dict[str, Any], field: str, value: Any
) -> None:
    del made
    with pytest.raises(ApiError) as caught:
        control_plane.api.request("PATCH", f"{RUNS}/changing?{DRY}", {"spec": {field: value}}, MERGE_PATCH)
    assert complaints(caught.value) == [(f"spec.{field}", immutable(field))]


def test_a_field_cannot_be_removed_after_creation(control_plane: ControlPlane) -> None:
    control_plane.api.request("POST", f"{RUNS}?{STRICT}", as_written("keeping", serviceAccountName="tuning"))
    change = {"spec": {"serviceAccountName": None}}
    with pytest.raises(ApiError) as caught:
        control_plane.api.request("PATCH", f"{RUNS}/keeping?{DRY}", change, MERGE_PATCH)
    control_plane.api.request("DELETE", f"{RUNS}/keeping")
    assert complaints(caught.value) == [("spec.serviceAccountName", immutable("serviceAccountName"))]


LIMITS = ("startSeconds", "activeSeconds", "stallSeconds", "finalEvaluationSeconds", "stopGraceSeconds")


@pytest.mark.parametrize(
    "change",
    [
        {"suspend": True},
        {"deadlines": dict.fromkeys(LIMITS, 60)},
        {"cleanup": {"clusterTTLSeconds": 60, "runTTLSeconds": 60}},
    ],
    ids=lambda change: str(*change),
)
def test_what_steers_a_run_that_goes_on_may_be_changed(
    control_plane: ControlPlane, made: dict[str, Any], change: dict[str, Any]
) -> None:
    del made
    path = f"{RUNS}/changing?{DRY}"
    changed = control_plane.api.request("PATCH", path, {"spec": change}, MERGE_PATCH)
    assert {field: changed["spec"][field] for field in change} == change
    removed = control_plane.api.request("PATCH", path, {"spec": dict.fromkeys(change)}, MERGE_PATCH)
    assert all(removed["spec"][field] != value for field, value in change.items())


def test_an_unchanged_spec_and_new_labels_are_accepted(control_plane: ControlPlane, made: dict[str, Any]) -> None:
    change = {"metadata": {"labels": {"team": "a"}}, "spec": made["spec"]}
    control_plane.api.request("PATCH", f"{RUNS}/changing?{DRY}", change, MERGE_PATCH)


def test_no_rule_is_without_a_test_and_no_test_without_its_rule() -> None:
    """A rule is its place and its message; objects that are equal in all but their descriptions have the same rules.

    What `test_api_fields` goes through by itself, the forms of single values, is not here.
    """
    cases: list[RuleCase] = [
        *test_api_rules_of_pods.RULES,
        *test_api_rules_of_training.RULES,
        *test_api_rules_of_training.RESERVED_KEYS,
    ]
    tested = {("", NAME), ("", ANOTHER_RUN)} | {(f".spec.{field}", immutable(field)) for field, _ in CHANGES}
    tested |= {(re.sub(r"\[\d+\]", "[]", f".{case.field}"), case.message) for case in cases}
    there = dict(rules(crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
    assert tested - there.keys() == set()
    assert {there[rule] for rule in tested} == set(there.values())
