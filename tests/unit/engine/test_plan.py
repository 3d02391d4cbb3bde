"""World -> Plan: what is made, in which order, and what is written."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.worlds import (
    HEAD_UID,
    NAME,
    NOW,
    OWN_CLAIM,
    RUNNING,
    a_claim,
    a_cluster,
    a_container,
    a_driver,
    a_head,
    a_job,
    a_new_world,
    a_running_world,
    a_starting_world,
    a_waiting,
    a_worker,
    seconds,
    some_notes,
    some_progress,
)
from tuning_operator.api.conditions import Phase
from tuning_operator.cluster.execute import next_stage
from tuning_operator.cluster.queue import Lane
from tuning_operator.engine.plan import HEAD_UID_ANNOTATION, Plan, manifest, merge_patch, plan
from tuning_operator.engine.world import Child, JobView, PodView, Reachability, Refusal, RefusalKind, World

SETTINGS = some_settings()


def planned(world: World) -> Plan:
    return plan(world, SETTINGS)


def settled(world: World) -> World:
    """The same world after the status that it deserves was written."""
    write = planned(world).status
    if write is None:
        return world
    before = world.run.status.to_object()
    return replace(world, run=a_run(status=_merged(before, write.patch)))


def _merged(old: object, patch: object) -> dict[str, object]:
    assert isinstance(old, dict)
    assert isinstance(patch, dict)
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key, {}), value) if isinstance(value, dict) else value
    return result


def test_a_new_run_gets_its_cluster_first_and_its_claim_last() -> None:
    assert planned(a_new_world()).create == (Child.CLUSTER, Child.CONFIG, Child.CLAIM)


def test_with_a_claim_of_the_users_own_the_configmap_goes_first() -> None:
    run = a_run(checkpoint={"volume": {"claimTemplate": None, "claimName": "mine"}})
    assert planned(a_new_world(run, claims={"mine": a_claim()})).create == (Child.CONFIG, Child.CLUSTER)


def test_only_what_is_missing_is_made() -> None:
    world = a_new_world(cluster=a_cluster(), claims=OWN_CLAIM)
    assert planned(world).create == (Child.CONFIG,)


def test_the_first_status_names_the_attempt_once_all_children_are_made() -> None:
    world = a_new_world(cluster=a_cluster(head_ready=False), claims=OWN_CLAIM, notes=some_notes(config_made=True))
    write = planned(world).status
    assert write is not None
    assert write.patch["phase"] == "Starting"
    assert write.patch["attempt"]["rayClusterName"] == NAME
    # A field whose value is its default is written, too: nobody but us fills defaults in a status.
    assert write.patch["progress"]["step"] == 0
    assert write.announcements == ()


def test_a_written_status_is_not_written_again() -> None:
    for world in (a_starting_world(), a_running_world()):
        after = settled(settled(world))
        assert planned(after).status is None
        assert next_stage(planned(after)) is None


@pytest.mark.parametrize(
    ("changes", "made"),
    [
        pytest.param({"cluster": a_cluster()}, True, id="head ready"),
        pytest.param({"cluster": a_cluster(head_ready=False)}, False, id="head not ready"),
        pytest.param({"cluster": a_cluster(desired_workers=2, ready_workers=1)}, False, id="a worker is missing"),
        pytest.param({"cluster": a_cluster(desired_workers=2, ready_workers=2)}, True, id="all workers ready"),
        pytest.param({"cluster": a_cluster(), "pods": ()}, False, id="the head pod is not seen yet"),
        pytest.param({"cluster": a_cluster(), "pods": (a_head(deleting=True),)}, False, id="the head pod is going"),
        pytest.param(
            {"cluster": a_cluster(), "pods": (a_head(containers=(a_container(ready=False),)),)}, False, id="not ready"
        ),
        pytest.param({"cluster": a_cluster(), "pods": (a_head(phase="Pending"),)}, False, id="not running"),
        pytest.param({"cluster": a_cluster(), "pods": (a_head(phase="Failed"),)}, False, id="ended"),
        pytest.param({"cluster": a_cluster(), "job": a_job()}, False, id="it is there"),
    ],
)
def test_the_job_is_made_when_head_and_workers_are_ready(changes: dict[str, object], made: bool) -> None:
    assert planned(replace(a_starting_world(), **changes)).create == ((Child.JOB,) if made else ())


def test_the_job_remembers_the_head_for_which_it_was_made() -> None:
    # KubeRay may have replaced a head that ended; names tell nothing about which one serves.
    ended = a_head(name=f"{NAME}-head-zzzzz", uid="ended", phase="Failed")
    pending = a_head(name=f"{NAME}-head-yyyyy", uid="pending", phase="Pending", containers=())
    world = a_starting_world(cluster=a_cluster(), pods=(ended, a_head(), pending))
    annotations = manifest(Child.JOB, world, SETTINGS)["metadata"]["annotations"]
    assert annotations[HEAD_UID_ANNOTATION] == HEAD_UID


def test_a_lost_job_is_made_again_while_the_recorded_head_lives() -> None:
    assert planned(a_running_world(job=None, pods=(a_head(),))).create == (Child.JOB,)


def test_a_run_that_is_being_deleted_needs_nothing() -> None:
    run = a_run(metadata={"deletionTimestamp": "2026-01-02T12:00:00Z"})
    assert planned(a_new_world(run)) == Plan()


def test_progress_waits_for_half_a_minute_after_the_last_write() -> None:
    world = settled(a_running_world(notes=some_notes(config_made=True, status_written=NOW)))
    news = some_notes(
        config_made=True, status_written=NOW - seconds(20), progress=some_progress(), metrics=Reachability.ANSWERED
    )
    early = planned(replace(world, notes=news))
    assert early.status is None
    assert early.due == NOW + seconds(10)
    late = planned(replace(world, now=NOW + seconds(10), notes=news)).status
    assert late is not None
    assert late.patch["progress"]["summary"] == "3/12"
    assert late.patch["progress"]["reward"] == "0.432"
    assert late.patch["progress"]["loss"] == "1.2e-04"
    assert late.patch["display"]["eta"] == "4m"


def test_a_missed_poll_alone_is_no_reason_to_write_at_once() -> None:
    world = settled(a_running_world())
    silent = some_notes(config_made=True, status_written=NOW, metrics=Reachability.UNREACHABLE)
    assert planned(replace(world, notes=silent)).status is None


def test_usage_alone_is_no_reason_to_write() -> None:
    world = settled(settled(a_running_world()))
    later = replace(world, now=NOW + seconds(3600))
    assert planned(later).status is None


def test_usage_counts_the_pods_of_the_cluster() -> None:
    groups = [{"name": "agents", "gpus": 4, "replicas": 2}]
    run = a_run(status={**RUNNING, "phase": "Starting"}, cluster={"head": {"gpus": 1}, "workers": groups})
    write = planned(a_running_world(pods=(a_head(), a_worker(1), a_worker(2), a_driver()), run=run)).status
    assert write is not None
    # By the spec: a node pool may call its GPUs by any name.
    assert write.patch["usage"] == {"gpuSeconds": 600 * 9, "podSeconds": 600 * 3}
    assert write.patch["display"]["gpus"] == "9"


@pytest.mark.parametrize("job", [a_job(complete=True), a_job(failed=True), a_job(deleting=True), None])
def test_a_terminal_run_gives_its_cluster_back_and_nothing_else(job: JobView | None) -> None:
    ended = a_run(status={**RUNNING, "phase": "Succeeded"})
    todo = planned(a_running_world(run=ended, job=job))
    assert todo == Plan(delete_cluster=True)
    assert planned(a_running_world(run=ended, job=job, cluster=None)) == Plan()
    assert planned(a_running_world(run=ended, job=job, cluster=a_cluster(deleting=True))) == Plan()


def an_ended_world(driver: PodView | None, started: bool = False, **notes: Any) -> World:
    """The run failed a minute ago, its cluster is given back, its Job has not ended."""
    finished = {"type": "Finished", "status": "True", "reason": "ImagePullFailed", "message": ""}
    finished["lastTransitionTime"] = "2026-01-02T12:00:00Z"
    conditions = [finished, {"type": "Started", "status": str(started), "reason": "RunEnded", "message": ""}]
    ended = a_run(status={**RUNNING, "phase": "Failed", "conditions": conditions})
    pods = (driver,) if driver else ()
    return replace(
        a_running_world(run=ended, cluster=None, pods=pods, notes=some_notes(**notes)), now=NOW + seconds(60)
    )


WAITING_DRIVER = a_driver(phase="Pending", containers=(a_waiting("driver", "ImagePullBackOff"),))


def test_a_job_whose_driver_never_started_is_deleted_a_while_after_the_end() -> None:
    world = an_ended_world(WAITING_DRIVER)
    assert planned(replace(world, now=NOW + seconds(74))) == Plan(due=NOW + seconds(75))
    assert planned(replace(world, now=NOW + seconds(75))) == Plan(delete_job=True)
    refusal = Refusal(RefusalKind.FORBIDDEN, "the operator may not delete jobs.batch: no", NOW + seconds(75))
    todo = planned(replace(world, now=NOW + seconds(76), notes=some_notes(refusals={"delete": refusal})))
    assert not todo.delete_job
    assert todo.status is not None
    assert "jobs.batch" in str(todo.status.patch["conditions"])


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(an_ended_world(a_driver()), id="it runs"),
        pytest.param(an_ended_world(a_driver("Killed", 1)), id="it ended"),
        pytest.param(an_ended_world(a_driver(phase="Failed", containers=())), id="its pod ended"),
        pytest.param(an_ended_world(WAITING_DRIVER, started=True), id="it had started"),
        pytest.param(an_ended_world(WAITING_DRIVER, departed=(a_driver("Killed", 1),)), id="an earlier one ended"),
        pytest.param(an_ended_world(None), id="no pod is there"),
    ],
)
def test_a_job_that_may_have_a_log_is_never_deleted_but_ended(world: World) -> None:
    assert world.job is not None
    late = replace(world, now=NOW + seconds(100_000))
    assert planned(late) == Plan(end_jobs=(world.job,))
    for job in (replace(world.job, end_asked=True), replace(world.job, failed=True)):
        assert planned(replace(late, job=job)) == Plan()


def test_a_cleanup_that_is_forbidden_is_shown() -> None:
    refusal = Refusal(RefusalKind.FORBIDDEN, "the operator may not delete rayclusters.ray.io: no", NOW)
    ended = a_run(status={**RUNNING, "phase": "Failed", "reason": "EngineError"})
    todo = planned(a_running_world(run=ended, notes=some_notes(refusals={"delete": refusal})))
    assert todo.status is not None
    assert not {"phase", "reason", "message"} & todo.status.patch.keys()
    assert todo.status.patch["conditions"][0]["reason"] == "Forbidden"
    assert not todo.delete_cluster


def test_a_forbidden_child_is_degraded_and_tried_again_after_a_minute() -> None:
    refusal = Refusal(RefusalKind.FORBIDDEN, "the operator may not create rayclusters.ray.io: no", NOW)
    world = a_new_world(notes=some_notes(refusals={Child.CLUSTER: refusal}))
    todo = planned(world)
    assert todo.create == ()
    assert todo.status is not None
    assert todo.status.patch["phase"] == Phase.PENDING
    assert todo.status.patch["message"] == refusal.message
    told = {item["type"]: (item["status"], item["reason"]) for item in todo.status.patch["conditions"]}
    assert (told["Accepted"], told["Degraded"]) == (("Unknown", "Forbidden"), ("True", "Forbidden"))
    assert todo.due == NOW + seconds(60)
    assert planned(replace(world, now=NOW + seconds(60))).create[0] is Child.CLUSTER
    # Once there is a child the run stays accepted.
    later = replace(
        world, cluster=a_cluster(), notes=some_notes(refusals={Child.CLAIM: refusal, Child.CONFIG: refusal})
    )
    write = planned(later).status
    assert write is not None
    told = {item["type"]: (item["status"], item["reason"]) for item in write.patch["conditions"]}
    assert (told["Accepted"], told["Degraded"]) == (("True", "Valid"), ("True", "Forbidden"))


def test_a_job_that_the_server_refuses_fails_the_run_with_the_servers_words() -> None:
    refusal = Refusal(RefusalKind.INVALID, "spec.template: too bad", NOW)
    world = a_starting_world(cluster=a_cluster(), notes=some_notes(config_made=True, refusals={Child.JOB: refusal}))
    write = planned(world).status
    assert write is not None
    assert write.patch["reason"] == "ConfigInvalid"
    assert "too bad" in write.patch["message"]


@pytest.mark.parametrize(
    ("todo", "lane", "then"),
    [
        (Plan(create=(Child.CLUSTER, Child.CONFIG, Child.CLAIM)), Lane.CLUSTER, Lane.SUPPORT),
        (Plan(create=(Child.CONFIG, Child.CLUSTER)), Lane.SUPPORT, Lane.CLUSTER),
        (Plan(create=(Child.CONFIG, Child.CLAIM)), Lane.SUPPORT, Lane.STATUS),
        (Plan(create=(Child.JOB,)), Lane.JOB, Lane.STATUS),
        (Plan(read=("tasks",)), Lane.CLUSTER, Lane.CLUSTER),
        (Plan(delete_cluster=True), Lane.CLEANUP, Lane.CLEANUP),
        (Plan(delete_job=True), Lane.CLEANUP, Lane.CLEANUP),
    ],
)
def test_a_plan_is_done_in_stages(todo: Plan, lane: Lane, then: Lane) -> None:
    stage = next_stage(todo)
    assert stage is not None
    assert (stage.lane, stage.then) == (lane, then)


def test_a_merge_patch_says_only_what_changed() -> None:
    old = {"a": 1, "b": {"c": 1, "d": 2}, "list": [1, 2], "gone": {"x": 1}}
    new = {"a": 1, "b": {"c": 3, "d": 2}, "list": [1, 2, 3]}
    assert merge_patch(old, new) == {"b": {"c": 3}, "list": [1, 2, 3], "gone": None}
    assert merge_patch(new, new) == {}


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ({"image": {"path": "/opt/models/tiny"}}, "tiny"),
        ({"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}, "Qwen3-0.6B"),
        ({"huggingFace": {"repo": "Qwen/Qwen3-0.6B", "revision": "v1.1"}}, "Qwen3-0.6B@v1.1"),
        ({"huggingFace": {"repo": "gpt2", "revision": "0" * 40}}, "gpt2@0000000"),
        ({"volume": {"claimName": "models", "path": "qwen/Qwen3-0.6B"}}, "Qwen3-0.6B"),
        ({"volume": {"claimName": "qwen3"}}, "qwen3"),
        ({"run": {"name": "first"}}, "first/final"),
    ],
)
def test_the_model_is_shown_short_and_telling(model: dict[str, Any], shown: str) -> None:
    world = a_starting_world(run=a_run(model={"image": None} | model))
    write = planned(world).status
    assert write is not None
    assert write.patch["display"]["model"] == shown
