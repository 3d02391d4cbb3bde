"""A failed attempt: what is tried again, how often, when, and what must be gone before that."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.worlds import (
    NOW,
    RUNNING,
    a_cluster,
    a_driver,
    a_head,
    a_job,
    a_running_world,
    a_worker,
    after_the_write,
    cleared,
    seconds,
    some_notes,
    some_progress,
)
from tuning_contract.causes import Cause
from tuning_contract.termination import EXIT_FAILED, EXIT_STOPPED, EXIT_SUCCEEDED, TerminationMessage
from tuning_operator.engine import causes
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.world import Child, JobView, Refusal, RefusalKind, World

SETTINGS = some_settings()


def failing(cause: Cause, run: Any = None, step: int = 3, checkpoint: str = "", **changes: Any) -> World:
    """A world whose driver has just told of a failure."""
    word = TerminationMessage("Failed", cause.value, "boom", step, 12, checkpoint)
    world = a_running_world(run=run or a_run(status=RUNNING), pods=(a_head(), a_driver(word, EXIT_FAILED)))
    return replace(world, **changes)


def a_failed_world(**spec: Any) -> World:
    """The first attempt is lost, which is told; nothing is deleted yet."""
    run = a_run(status=RUNNING, **spec)
    lost = replace(failing(Cause.HEAD_LOST, run), now=NOW)
    return after_the_write(lost, SETTINGS)


def the_patch(world: World) -> dict[str, Any]:
    write = plan(world, SETTINGS).status
    assert write is not None
    return dict(write.patch)


RETRIED = {
    Cause.ENGINE_ERROR,
    Cause.EPISODE_FAILURES,
    Cause.JUDGE_UNAVAILABLE,
    Cause.ENVIRONMENT_UNAVAILABLE,
    Cause.STALLED,
    Cause.UNKNOWN,
    Cause.HUB_UNREACHABLE,
    Cause.HEAD_LOST,
    Cause.WORKER_LOST,
    Cause.DRIVER_LOST,
    Cause.STORAGE_FAILED,
}
UNCOUNTED = {Cause.NODE_LOST, Cause.EVICTED, Cause.PREEMPTED}


def test_the_table_knows_every_cause() -> None:
    assert set(causes.CAUSES) == set(Cause)


@pytest.mark.parametrize("cause", list(Cause))
def test_infrastructure_is_tried_again_and_the_users_mistakes_are_not(cause: Cause) -> None:
    patch = the_patch(failing(cause))
    record = patch["history"][0]
    expected = "Retrying" if cause in RETRIED | UNCOUNTED else "Failed"
    assert (patch["phase"], patch["reason"]) == (expected, cause.value)
    assert (record["outcome"], record["cause"], record["counted"]) == ("Failed", cause.value, cause not in UNCOUNTED)
    counts = (patch.get("attempt", {}).get("countedFailures"), patch.get("attempt", {}).get("uncountedFailures"))
    if expected == "Retrying":
        assert counts == ((0, 1) if cause in UNCOUNTED else (1, 0))


@pytest.mark.parametrize(
    ("action", "phase", "counted"),
    [("Retry", "Retrying", True), ("RetryUncounted", "Retrying", False), ("Fail", "Failed", True)],
)
@pytest.mark.parametrize("cause", [Cause.OUT_OF_MEMORY, Cause.HEAD_LOST, Cause.EVICTED])
def test_the_first_rule_that_names_the_cause_wins(cause: Cause, action: str, phase: str, counted: bool) -> None:
    others = {"causes": ["Stalled"], "action": "Fail"}
    last = {"causes": [cause.value], "action": "Fail" if action != "Fail" else "Retry"}
    rules = [others, {"causes": ["WorkflowError", cause.value], "action": action}, last]
    patch = the_patch(failing(cause, a_run(status=RUNNING, retry={"rules": rules})))
    assert (patch["phase"], patch["history"][0]["counted"]) == (phase, counted)


def test_a_retry_tells_what_failed_what_comes_next_and_when() -> None:
    patch = the_patch(failing(Cause.STALLED))
    assert patch["message"] == (
        "attempt 1 failed: boom; attempt 2 begins from the beginning when its pods are gone, not before 12:00:30 UTC"
    )
    assert patch["attempt"]["retryTime"] == "2026-01-02T12:00:30Z"
    saved = the_patch(failing(Cause.STALLED, checkpoint="ml/x/checkpoints/step-000002"))
    assert "attempt 2 begins from the checkpoint of step 2 when" in saved["message"]
    told = {item["type"]: (item["status"], item["reason"]) for item in patch["conditions"]}
    assert told["Finished"] == ("False", "InProgress")
    assert told["Succeeded"] == ("Unknown", "InProgress")
    assert told["ClusterReady"] == told["Started"] == ("False", "BackingOff")


@pytest.mark.parametrize(
    ("failures", "backoff", "waits"), [(0, 30, 30), (1, 30, 60), (2, 30, 120), (8, 30, 900), (3, 0, 0), (2, 3600, 3600)]
)
def test_the_wait_doubles_with_every_counted_failure(failures: int, backoff: int, waits: int) -> None:
    status = {**RUNNING, "attempt": {**RUNNING["attempt"], "countedFailures": failures}}
    run = a_run(status=status, retry={"maxAttempts": 100, "backoffSeconds": backoff})
    due = datetime.fromisoformat(the_patch(failing(Cause.STALLED, run))["attempt"]["retryTime"])
    assert due == NOW + seconds(waits)
    # Evictions do not make it longer.
    due = datetime.fromisoformat(the_patch(failing(Cause.EVICTED, run))["attempt"]["retryTime"])
    assert due == NOW + seconds(backoff)


@pytest.mark.parametrize(
    ("counts", "cause", "phase"),
    [
        pytest.param((1, 0), Cause.STALLED, "Retrying", id="two of three"),
        pytest.param((2, 0), Cause.STALLED, "Failed", id="three of three"),
        pytest.param((2, 18), Cause.EVICTED, "Retrying", id="evictions are counted apart"),
        pytest.param((0, 19), Cause.EVICTED, "Failed", id="twenty evictions"),
        pytest.param((0, 19), Cause.STALLED, "Retrying", id="nineteen evictions and a failure"),
    ],
)
def test_attempts_run_out(counts: tuple[int, int], cause: Cause, phase: str) -> None:
    failures = {"countedFailures": counts[0], "uncountedFailures": counts[1]}
    run = a_run(status={**RUNNING, "attempt": {**RUNNING["attempt"], **failures, "firstStep": 4}})
    patch = the_patch(failing(cause, run))
    assert (patch["phase"], patch["reason"]) == (phase, cause.value)
    if phase == "Failed":
        assert patch["message"].endswith("; the last one: boom")
        assert f"{sum(counts) + 1 if cause is Cause.EVICTED else 3} attempts failed" in patch["message"]


def test_a_new_checkpoint_sets_the_count_back_before_the_failure_is_counted() -> None:
    attempt = {**RUNNING["attempt"], "countedFailures": 2, "uncountedFailures": 19, "firstStep": 4}
    run = a_run(status={**RUNNING, "attempt": attempt, "checkpoint": {"step": 4, "path": "x/checkpoints/step-000004"}})
    patch = the_patch(failing(Cause.STALLED, run, checkpoint="x/checkpoints/step-000006"))
    assert patch["phase"] == "Retrying"
    assert (patch["attempt"]["countedFailures"], patch["attempt"]["uncountedFailures"]) == (1, 0)
    # The one from which the attempt went on is not new; what the sidecar told before the end is.
    assert the_patch(failing(Cause.STALLED, run, checkpoint="x/checkpoints/step-000004"))["phase"] == "Failed"
    heard = some_progress(checkpoint_path="x/checkpoints/step-000006", checkpoint_step=6, checkpoint_saved_at=1.0)
    lost = a_running_world(run=run, pods=(), notes=some_notes(progress=heard, since={"loss": NOW - seconds(60)}))
    assert the_patch(lost)["phase"] == "Retrying"


def test_a_run_that_may_fail_once_says_just_what_went_wrong() -> None:
    patch = the_patch(failing(Cause.STALLED, a_run(status=RUNNING, retry={"maxAttempts": 1})))
    assert (patch["phase"], patch["message"]) == ("Failed", "boom")


def test_the_cluster_of_an_attempt_that_is_over_is_given_back_at_once() -> None:
    world = a_failed_world()
    assert plan(world, SETTINGS) == Plan(delete_cluster=True, due=NOW + seconds(75))
    refusal = Refusal(RefusalKind.FORBIDDEN, "the operator may not delete rayclusters.ray.io: no", NOW)
    todo = plan(replace(world, notes=some_notes(refusals={"delete": refusal})), SETTINGS)
    assert not todo.delete_cluster
    assert todo.status is not None
    assert {"phase", "reason", "message"}.isdisjoint(todo.status.patch)


@pytest.mark.parametrize(
    "left",
    [
        pytest.param({"cluster": a_cluster(deleting=True)}, id="the cluster is on its way out"),
        pytest.param({"pods": (a_head(deleting=True),)}, id="the head is"),
        pytest.param({"pods": (a_worker(deleting=True),)}, id="a worker is"),
        pytest.param({"pods": (a_worker(phase="Failed"),)}, id="a dead worker is there"),
        pytest.param({"earlier_clusters": (a_cluster(deleting=True),)}, id="an older cluster is"),
        pytest.param({"kuberay_served": False}, id="nobody knows"),
    ],
)
def test_the_next_attempt_waits_until_nothing_is_left_of_the_last_one(left: dict[str, Any]) -> None:
    late = replace(cleared(a_failed_world(), **left), now=NOW + seconds(10_000), job=a_job(failed=True))
    assert plan(late, SETTINGS) == Plan(due=late.now + seconds(60))


def test_a_driver_that_has_ended_holds_nothing_back() -> None:
    world = cleared(a_failed_world(), now=NOW + seconds(30), pods=(a_driver("", EXIT_FAILED),))
    assert the_patch(world)["attempt"]["number"] == 2


def test_a_pod_on_a_dead_node_counts_as_gone_after_a_while() -> None:
    given_up = {"deleting": True, "disruption": "DeletionByTaintManager", "disrupted_at": NOW}
    world = cleared(a_failed_world(), pods=(a_head(**given_up),), now=NOW + seconds(599), job=a_job(failed=True))
    assert plan(world, SETTINGS) == Plan(due=NOW + seconds(600))
    assert the_patch(replace(world, now=NOW + seconds(600)))["attempt"]["number"] == 2
    sent = {"disruption": "EvictionByEvictionAPI", "disrupted_at": NOW, "deleting": True, "deleted_at": NOW}
    for head, gone in (
        (a_head(**sent), False),
        (a_head(**sent | {"node_lost": True}), True),
        (a_head(**given_up | {"deleting": False}), False),
        (a_head(deleting=True, deleted_at=NOW, node_lost=True), True),
        # Given up only after it counted as gone.
        (a_head(**given_up | {"disrupted_at": NOW + seconds(590), "deleted_at": NOW, "node_lost": True}), True),
    ):
        todo = plan(replace(world, pods=(head,), now=NOW + seconds(600)), SETTINGS)
        assert (todo.status is not None) is gone


def test_the_api_server_itself_is_asked_before_the_next_attempt_begins() -> None:
    world = replace(cleared(a_failed_world()), now=NOW + seconds(30))
    unsure = replace(world, notes=replace(world.notes, looked_at=None))
    assert plan(unsure, SETTINGS) == Plan(look=True, due=NOW + seconds(75))
    before = replace(world, notes=replace(world.notes, since={"remains": NOW + seconds(1)}))
    assert plan(before, SETTINGS).look
    assert not plan(world, SETTINGS).look


def test_the_backoff_is_waited_out() -> None:
    world = cleared(a_failed_world())
    assert plan(replace(world, now=NOW + seconds(29)), SETTINGS).due == NOW + seconds(30)
    assert plan(replace(world, now=NOW + seconds(29)), SETTINGS).status is None
    patch = the_patch(replace(world, now=NOW + seconds(30)))
    assert (patch["phase"], patch["attempt"]["number"]) == ("Starting", 2)


def the_second_attempt(**spec: Any) -> World:
    """Its number is written, nothing of it is made."""
    return after_the_write(cleared(a_failed_world(**spec), now=NOW + seconds(30), job=None), SETTINGS)


def test_the_number_of_an_attempt_is_written_before_anything_of_it_is_made() -> None:
    first = cleared(a_failed_world(), now=NOW + seconds(30))
    todo = plan(first, SETTINGS)
    assert not todo.create
    assert todo.status is not None
    attempt = todo.status.patch["attempt"]
    assert (attempt["number"], attempt["firstStep"], attempt["startTime"]) == (2, 0, "2026-01-02T12:00:30Z")
    gone = ("rayClusterUID", "jobUID", "headPodUID", "rayClusterName", "retryTime", "runningTime", "headRestartCount")
    assert {name: attempt[name] for name in gone} == dict.fromkeys(gone)
    second = the_second_attempt()
    assert second.run.status.attempt.counted_failures == 1
    assert plan(second, SETTINGS).create == (Child.CLUSTER,)
    # After a restart nobody knows whether the ConfigMap is there: it is posted again.
    assert plan(replace(second, notes=some_notes()), SETTINGS).create == (Child.CLUSTER, Child.CONFIG)


def test_intent_without_observation_is_posted_again_and_an_observed_cluster_never() -> None:
    second = the_second_attempt()
    made = replace(second, cluster=a_cluster(name="math-agent-3f9a1c-2", uid="second", head_ready=False))
    seen = after_the_write(made, SETTINGS)
    assert seen.run.status.attempt.ray_cluster_uid == "second"
    todo = plan(replace(seen, cluster=None), SETTINGS)
    assert not todo.create
    late = replace(seen, cluster=None, now=NOW + seconds(600), notes=some_notes(config_made=True))
    assert the_patch(late)["history"][-1]["cause"] == "HeadLost"


def test_what_a_later_attempt_needs_is_looked_at_again() -> None:
    run = a_run(status=RUNNING, cluster={"head": {"nodePool": "a100"}})
    lost = after_the_write(failing(Cause.HEAD_LOST, run), SETTINGS)
    second = after_the_write(cleared(lost, now=NOW + seconds(30), job=None), SETTINGS)
    todo = plan(second, SETTINGS)
    assert not todo.create
    assert todo.due == second.now + seconds(5)
    assert todo.status is not None
    assert (todo.status.patch["reason"], todo.status.patch.get("phase", "Starting")) == ("NodePoolUnknown", "Starting")
    told = {item["type"]: (item["status"], item["reason"]) for item in todo.status.patch["conditions"]}
    assert told["Degraded"] == ("True", "NodePoolUnknown")
    assert told["Accepted"] == ("True", "Valid")
    # It does not wait for ever.
    late = the_patch(replace(second, now=second.now + seconds(3600)))
    assert (late["phase"], late["reason"]) == ("Failed", "StartDeadlineExceeded")


def test_a_later_attempt_does_not_begin_without_the_checkpoints() -> None:
    status = {**RUNNING, "checkpoint": {"step": 4, "path": "x/checkpoints/step-000004"}}
    lost = after_the_write(failing(Cause.HEAD_LOST, a_run(status=status)), SETTINGS)
    second = after_the_write(cleared(lost, now=NOW + seconds(30), job=None), SETTINGS)
    patch = the_patch(replace(second, claims={}))
    assert (patch["phase"], patch["reason"]) == ("Failed", "StorageFailed")
    # Where nothing was saved another claim is as good.
    assert Child.CLAIM in plan(replace(the_second_attempt(), claims={}), SETTINGS).create


def test_a_cluster_of_an_earlier_attempt_is_deleted_before_anything_is_made() -> None:
    second = replace(the_second_attempt(), earlier_clusters=(a_cluster(),))
    assert plan(second, SETTINGS).delete_earlier == (a_cluster(),)
    assert not plan(second, SETTINGS).create
    going = replace(second, earlier_clusters=(a_cluster(deleting=True),))
    assert plan(going, SETTINGS) == Plan(due=going.now + seconds(60))


def test_a_success_that_is_heard_after_the_attempt_was_given_up_is_one() -> None:
    done = TerminationMessage("Succeeded", step=12, target_steps=12, checkpoint="x/checkpoints/step-000012")
    world = replace(a_failed_world(), pods=(a_driver(done, EXIT_SUCCEEDED),))
    ended = after_the_write(world, SETTINGS)
    status = ended.run.status
    assert (status.phase, [record.outcome for record in status.history]) == ("Succeeded", ["Succeeded"])


def test_a_checkpoint_that_is_heard_of_after_the_attempt_was_given_up_is_known_to_the_next() -> None:
    word = TerminationMessage("Stopped", "", "stopped", 7, 12, "x/checkpoints/step-000007")
    lost = a_running_world(pods=(), notes=some_notes(since={"loss": NOW - seconds(60)}))
    over = cleared(after_the_write(lost, SETTINGS), pods=(a_driver(word, EXIT_STOPPED),), now=NOW + seconds(30))
    status = after_the_write(over, SETTINGS).run.status
    assert (status.attempt.number, status.attempt.first_step, status.checkpoint.step) == (2, 7, 7)


@pytest.mark.parametrize(
    ("head", "cause"),
    [
        (a_head(deleting=True, disruption="EvictionByEvictionAPI"), "Evicted"),
        (a_head(deleting=True, disruption="PreemptionByScheduler"), "Preempted"),
        (a_head(deleting=True, disruption="DeletionByTaintManager"), "NodeLost"),
        (a_head(deleting=True), "HeadLost"),
    ],
)
def test_a_training_that_stopped_because_its_pod_goes_is_tried_again(head: Any, cause: str) -> None:
    words = "stopped on request after step 7 of 12; the checkpoint of step 7 is kept"
    word = TerminationMessage("Stopped", "", words, 7, 12, "x/checkpoints/step-000007")
    patch = the_patch(a_running_world(pods=(head, a_driver(word, EXIT_STOPPED))))
    assert (patch["phase"], patch["reason"]) == ("Retrying", cause)
    assert words in patch["message"]
    assert "attempt 2 begins from the checkpoint of step 7" in patch["message"]
    assert (patch["checkpoint"]["step"], patch["history"][0]["lastStep"]) == (7, 7)
    assert patch["history"][0]["counted"] is (cause == "HeadLost")


@pytest.mark.parametrize("checkpoint", ["", "x/checkpoints/step-000003", "p" * 1000])
def test_nothing_is_written_twice_while_an_attempt_is_cleared_away(checkpoint: str) -> None:
    heard = some_notes(config_made=True, progress=some_progress(step=2))
    world = after_the_write(failing(Cause.HEAD_LOST, checkpoint=checkpoint, notes=heard), SETTINGS)
    for later in (0, 5, 29, 70, 4000):
        going = replace(world, now=NOW + seconds(later), cluster=a_cluster(deleting=True))
        assert plan(going, SETTINGS).status is None, later


def test_every_failed_attempt_is_a_warning_with_the_next_step() -> None:
    write = plan(failing(Cause.STALLED), SETTINGS).status
    assert write is not None
    (event,) = write.announcements
    assert (event.type, event.reason) == ("Warning", "Stalled")
    assert event.message.startswith("attempt 1 failed: boom; attempt 2 begins")
    assert event.message.endswith("Next: " + causes.CAUSES[Cause.STALLED].advice)


def test_the_training_of_a_later_attempt_is_not_announced_again() -> None:
    second = the_second_attempt()
    name = "math-agent-3f9a1c-2"
    made = replace(second, cluster=a_cluster(name=name), job=JobView(name, "job-2"), pods=(a_head(), a_driver()))
    assert plan(made, SETTINGS).status is not None
    assert plan(made, SETTINGS).status.announcements == ()  # type: ignore[union-attr]


def test_usage_adds_up_over_attempts() -> None:
    status = {**RUNNING, "usage": {"gpuSeconds": 1000, "podSeconds": 1200}}
    run = a_run(status=status, cluster={"head": {"gpus": 2}})
    world = after_the_write(failing(Cause.HEAD_LOST, run), SETTINGS)
    # From 11:50, when the attempt began, and from 11:51, when it ran.
    assert (world.run.status.usage.gpu_seconds, world.run.status.usage.pod_seconds) == (1200, 1200)
    assert world.run.status.usage.active_seconds == 540
    second = after_the_write(cleared(world, now=NOW + seconds(30), job=None), SETTINGS)
    assert second.run.status.attempt.earlier_gpu_seconds == 1200
    head = a_head(started_at=second.now + seconds(10))
    name = "math-agent-3f9a1c-2"
    made = replace(second, cluster=a_cluster(name=name, head_ready=False), pods=(head,), now=second.now + seconds(110))
    third = after_the_write(made, SETTINGS)
    assert (third.run.status.usage.gpu_seconds, third.run.status.usage.active_seconds) == (1400, 540)


def test_a_head_whose_node_does_not_answer_is_a_lost_node_whatever_the_driver_calls_it() -> None:
    word = TerminationMessage("Failed", "HeadLost", "the head has not answered for 60 s", 3, 12)
    world = a_running_world(pods=(a_head(node_lost=True), a_driver(word, EXIT_FAILED)))
    patch = the_patch(world)
    assert (patch["reason"], patch["history"][0]["counted"]) == ("NodeLost", False)
    assert "the head has not answered for 60 s; the node of pod math-agent-3f9a1c-1-head-abcde" in patch["message"]
    well = replace(world, pods=(a_head(), world.pods[1]))
    assert (the_patch(well)["reason"], the_patch(well)["history"][0]["message"]) == ("HeadLost", word.message)
    # As long as the driver says nothing the node may come back.
    silent = plan(replace(world, pods=(a_head(node_lost=True), a_driver())), SETTINGS).status
    assert silent is None or "phase" not in silent.patch
