"""World -> acceptance: what a run waits for before anything is made."""

from dataclasses import replace

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.worlds import NOW, STARTING, a_new_world, seconds, some_notes
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.status import unreadable
from tuning_operator.engine.world import Child, Reference, Refusal, RefusalKind, World
from tuning_operator.settings import Settings

SOURCE = {"workflow": {"source": {"configMap": {"name": "code"}}}}
TASKS = {"dataset": {"train": {"image": None, "configMap": {"name": "tasks"}}}}


def rejected(world: World, settings: Settings | None = None) -> tuple[str, str]:
    """Reason and message of the rejection that the world deserves."""
    todo = plan(world, settings or some_settings())
    assert todo.create == ()
    assert todo.status is not None
    assert todo.status.patch["phase"] == "Rejected"
    accepted = todo.status.patch["conditions"][0]
    assert (accepted["type"], accepted["status"]) == ("Accepted", "False")
    return accepted["reason"], accepted["message"]


def test_an_engine_that_is_not_there_yet_is_not_available() -> None:
    reason, message = rejected(a_new_world(a_run(engine={"type": "Trinity"})))
    assert reason == "NotAvailable"
    assert "Trinity" in message
    assert "TRL" in message


def test_a_run_without_any_image_is_told_to_name_one() -> None:
    world = a_new_world(a_run(workflow={"image": None}))
    assert rejected(world, some_settings(runner_image=""))[0] == "ImageNotSet"
    assert plan(world, some_settings()).create


def test_without_kuberay_the_run_waits_for_it() -> None:
    assert rejected(a_new_world(kuberay_served=False))[0] == "KubeRayMissing"


def test_referenced_configmaps_are_read_before_anything_is_made() -> None:
    todo = plan(a_new_world(a_run(**TASKS)), some_settings())
    assert todo == Plan(read=("tasks",))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param(None, "ConfigMap tasks is not in namespace ml", id="missing"),
        pytest.param(frozenset({"other"}), "ConfigMap tasks has no key train.jsonl", id="another key"),
    ],
)
def test_what_is_missing_is_named_and_looked_for_again_after_five_seconds(
    keys: frozenset[str] | None, message: str
) -> None:
    world = a_new_world(a_run(**TASKS), notes=some_notes(references=(Reference("tasks", keys, NOW),)))
    assert rejected(world) == ("ReferenceNotFound", message)
    assert plan(world, some_settings()).due == NOW + seconds(5)
    assert plan(replace(world, now=NOW + seconds(5)), some_settings()).read == ("tasks",)


def test_a_run_is_accepted_when_all_is_there() -> None:
    found = (Reference("tasks", frozenset({"train.jsonl"}), NOW), Reference("code", frozenset(), NOW))
    run = a_run(dataset=TASKS["dataset"], workflow=SOURCE["workflow"])
    assert plan(a_new_world(run, notes=some_notes(references=found)), some_settings()).create


def test_a_run_with_children_is_accepted_for_good() -> None:
    run = a_run(status=STARTING, engine={"type": "Trinity"})
    todo = plan(a_new_world(run), some_settings())
    assert todo.status is None or todo.status.patch.get("phase") != "Rejected"


@pytest.mark.parametrize(
    ("kind", "reason"), [(RefusalKind.INVALID, "Invalid"), (RefusalKind.NAME_CONFLICT, "NameConflict")]
)
def test_a_cluster_that_the_server_refuses_rejects_the_run_with_the_servers_words(
    kind: RefusalKind, reason: str
) -> None:
    refusals = {Child.CLUSTER: Refusal(kind, "spec: no", NOW)}
    assert rejected(a_new_world(notes=some_notes(refusals=refusals))) == (reason, "spec: no")


def test_an_object_that_cannot_be_read_is_told_once() -> None:
    patch = unreadable({}, 3, "spec.algorithm: Field required", NOW)
    assert patch["phase"] == "Rejected"
    assert patch["conditions"][0]["reason"] == "Invalid"
    assert unreadable(patch, 3, "spec.algorithm: Field required", NOW + seconds(60)) == {}
