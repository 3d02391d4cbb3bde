"""World -> verdict: how a run ends, by the order success, loss, cause, silence."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import UID, a_run, some_settings
from tests.unit.engine.worlds import (
    NOW,
    RUNNING,
    STARTING,
    a_cluster,
    a_container,
    a_driver,
    a_head,
    a_job,
    a_running_world,
    a_starting_world,
    a_waiting,
    lost_long_ago,
    seconds,
    some_notes,
    some_progress,
)
from tuning_contract.result import EvaluationFigures, RunResult
from tuning_contract.termination import (
    EXIT_DRIVER_ERROR,
    EXIT_FAILED,
    TerminationMessage,
)
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.world import ContainerState, Reachability, World

SETTINGS = some_settings()
DONE = TerminationMessage(
    outcome="Succeeded",
    step=12,
    target_steps=12,
    checkpoint="ml/math-agent-3f9a1c/checkpoints/step-000012",
    metrics={"reward_mean": 0.9, "eval/heldout/baseline": 0.15, "eval/heldout/last": 0.98},
)
FAILED = TerminationMessage(outcome="Failed", cause="WorkflowError", message="boom", step=2, target_steps=12)
STOPPED = TerminationMessage("Stopped", "", "stopped on request after step 7", 7, 12, "x/checkpoints/step-000007")
ENDED = a_container(state=ContainerState.TERMINATED, exit_code=1, reason="Error", message="no more memory")


def planned(world: World) -> Plan:
    return plan(world, SETTINGS)


def ended(world: World) -> tuple[str, str]:
    """Outcome of the attempt and reason of the status in the write that the world deserves."""
    write = planned(world).status
    assert write is not None, planned(world)
    assert write.patch["phase"] in ("Succeeded", "Failed", "Retrying"), write.patch
    return write.patch["history"][-1]["outcome"], write.patch["reason"]


def test_a_complete_result_is_success() -> None:
    assert ended(a_running_world(pods=(a_head(), a_driver(DONE)))) == ("Succeeded", "Completed")


def test_success_outranks_a_bad_exit_code_which_only_degrades() -> None:
    write = planned(a_running_world(pods=(a_head(), a_driver(DONE, EXIT_FAILED)))).status
    assert write is not None
    assert write.patch["phase"] == "Succeeded"
    degraded = next(item for item in write.patch["conditions"] if item["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "DriverExit")


def test_success_outranks_a_head_that_went_right_after_it() -> None:
    assert ended(a_running_world(pods=(a_driver(DONE),))) == ("Succeeded", "Completed")


def test_a_lost_head_outranks_the_runners_cause() -> None:
    driver = a_driver(FAILED, EXIT_FAILED)
    assert ended(a_running_world(pods=(a_head(uid="another"), driver))) == ("Failed", "HeadLost")


def test_the_figures_of_the_message_stay_in_the_status() -> None:
    run = a_run(
        status=RUNNING, dataset={"evaluation": [{"name": "heldout", "image": {"path": "/opt/data/heldout.jsonl"}}]}
    )
    write = planned(a_running_world(run=run, pods=(a_head(), a_driver(DONE)))).status
    assert write is not None
    assert write.patch["progress"]["percent"] == 100
    assert write.patch["checkpoint"]["step"] == 12
    assert write.patch["evaluation"] == [
        {"dataset": "heldout", "baseline": {"step": 0, "mean": "0.150"}, "last": {"step": 12, "mean": "0.980"}}
    ]
    assert write.patch["display"]["evaluation"] == "0.15 -> 0.98"
    assert [event.reason for event in write.announcements] == ["Succeeded"]


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(a_running_world(cluster=None), id="no cluster is seen"),
        pytest.param(a_running_world(cluster=None, pods=()), id="no pod either"),
        pytest.param(a_starting_world(cluster=None, pods=()), id="before the Job"),
    ],
)
def test_while_rayclusters_are_not_served_none_is_lost(world: World) -> None:
    world = replace(world, notes=lost_long_ago())
    assert ended(world) == ("Failed", "HeadLost")
    unserved = replace(world, kuberay_served=False)
    write = planned(unserved).status
    assert write is None or "phase" not in write.patch
    assert not planned(unserved).create


def test_an_unknown_cause_of_a_newer_runner_is_unknown_and_keeps_its_words() -> None:
    newer = TerminationMessage(outcome="Failed", cause="CosmicRays", message="bits flipped")
    write = planned(a_running_world(pods=(a_head(), a_driver(newer, EXIT_FAILED)))).status
    assert write is not None
    assert (write.patch["reason"], write.patch["history"][0]["message"]) == ("Unknown", "bits flipped")


def test_without_a_word_the_sidecar_is_asked_for_the_result() -> None:
    world = a_running_world(pods=(a_head(), a_driver("Segmentation fault", EXIT_FAILED)))
    assert planned(world).ask_result
    assert planned(world).status is None or "phase" not in planned(world).status.patch  # type: ignore[union-attr]


def test_the_sidecars_result_is_as_good_as_the_drivers_word() -> None:
    result = RunResult(
        run_uid=UID,
        run_digest="d",
        attempt=1,
        outcome="Succeeded",
        step=12,
        target_steps=12,
        finished_at=0,
        final_model="ml/x/final",
        evaluation=(EvaluationFigures("heldout", 0, 0.1, 10, 0), EvaluationFigures("heldout", 12, 0.9, 10, 0)),
    )
    notes = some_notes(result=result, result_asked=Reachability.ANSWERED)
    world = a_running_world(job=a_job(failed=True), pods=(a_head(),), notes=notes)
    assert ended(world) == ("Succeeded", "Completed")
    lacking = replace(notes, result=replace(result, message="no evaluation figure for heldout"))
    status = planned(replace(world, notes=lacking)).status
    assert status is not None
    assert status.patch["message"] == "all 12 steps are done; no evaluation figure for heldout"
    foreign = replace(notes, result=replace(result, run_uid="another run"), since={"silence": NOW - seconds(60)})
    assert ended(replace(world, notes=foreign)) == ("Failed", "DriverLost")


def test_a_failed_job_without_any_word_is_a_lost_driver_after_a_moment() -> None:
    notes = some_notes(result_asked=Reachability.UNREACHABLE, since={"silence": NOW})
    world = a_running_world(job=a_job(failed=True, reason="BackoffLimitExceeded"), pods=(a_head(),), notes=notes)
    assert planned(world).due == NOW + seconds(5)
    assert ended(replace(world, now=NOW + seconds(5))) == ("Failed", "DriverLost")


def test_a_complete_job_whose_driver_pod_is_gone_ends_the_run() -> None:
    world = a_running_world(job=a_job(complete=True), pods=(a_head(),))
    assert planned(world).ask_result
    notes = some_notes(result_asked=Reachability.ANSWERED, since={"silence": NOW})
    assert planned(replace(world, notes=notes)).due == NOW + seconds(5)
    write = planned(replace(world, notes=notes, now=NOW + seconds(5))).status
    assert write is not None
    assert (write.patch["phase"], write.patch["reason"]) == ("Retrying", "DriverLost")
    assert "the Job is complete, but neither its driver's word nor a result was found" in write.patch["message"]


def test_the_result_of_a_complete_job_whose_driver_pod_is_gone_is_found() -> None:
    result = RunResult(UID, "d", 1, "Succeeded", 12, 12, 0.0, final_model="ml/x/final")
    notes = some_notes(result=result, result_asked=Reachability.ANSWERED)
    world = a_running_world(job=a_job(complete=True), pods=(a_head(),), notes=notes)
    assert ended(world) == ("Succeeded", "Completed")


def test_a_driver_that_failed_by_itself_says_nothing_about_the_run() -> None:
    world = a_running_world(pods=(a_head(), a_driver(DONE, EXIT_DRIVER_ERROR)))
    write = planned(world).status
    assert write is None or "phase" not in write.patch


PULL = 'Back-off pulling image "x:1": ErrImagePull: x:1: not found'


@pytest.mark.parametrize(
    ("container", "reason", "gives_up"),
    [
        (a_waiting("ray-head", "ImagePullBackOff", PULL), "ImagePullFailed", True),
        (a_waiting("ray-head", "ErrImagePull", "dial tcp: connection refused"), "ImagePullFailed", False),
        (a_waiting("ray-head", "CreateContainerConfigError", "secret not found"), "ContainerConfigError", True),
        (a_waiting("ray-head", "CrashLoopBackOff", restarts=3, last_message="no ray"), "HeadLost", True),
        (a_waiting("ray-head", "CrashLoopBackOff", restarts=3, last_reason="OOMKilled"), "OutOfMemory", True),
    ],
)
def test_a_trouble_shows_after_ten_seconds_and_is_given_up_if_it_cannot_pass(
    container: object, reason: str, gives_up: bool
) -> None:
    world = a_starting_world(pods=(a_head(phase="Pending", containers=(container,)),))

    def after(age: float) -> World:
        return replace(world, notes=some_notes(config_made=True, since={"trouble": NOW - seconds(age)}))

    early = planned(after(3)).status
    assert early is None or early.patch.get("reason") != reason
    shown = planned(after(10)).status
    assert shown is not None
    assert shown.patch["reason"] == reason
    assert shown.patch.get("phase", "Starting") == "Starting"
    late = planned(after(300)).status
    assert late is not None
    assert (late.patch.get("phase") in ("Failed", "Retrying")) is gives_up


def test_an_unschedulable_head_waits_and_tells_the_schedulers_words() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    pod = a_head(phase="Pending", containers=(), unschedulable=words)
    world = a_starting_world(pods=(pod,), notes=some_notes(config_made=True, since={"trouble": NOW - seconds(100_000)}))
    write = planned(world).status
    assert write is not None
    assert write.patch["reason"] == "Unschedulable"
    assert words in write.patch["message"]
    assert "phase" not in write.patch


def test_a_trouble_that_is_over_is_taken_back_after_ten_seconds() -> None:
    degraded = {"type": "Degraded", "status": "True", "reason": "ImagePullFailed", "message": "ray-head: not found"}
    run = a_run(status={**STARTING, "reason": "ImagePullFailed", "conditions": [degraded]})
    notes = some_notes(config_made=True, since={"trouble": NOW - seconds(3)})
    world = a_starting_world(run=run, notes=notes)
    soon = planned(world).status
    conditions = soon.patch.get("conditions", [degraded]) if soon else [degraded]
    assert next(item for item in conditions if item["type"] == "Degraded")["status"] == "True"
    later = planned(replace(world, notes=replace(notes, since={"trouble": NOW - seconds(10)}))).status
    assert later is not None
    assert next(item for item in later.patch["conditions"] if item["type"] == "Degraded")["status"] == "False"
    assert later.patch["reason"] == "Creating"


def the_condition(world: World, kind: str) -> tuple[str, str]:
    write = planned(world).status
    assert write is not None
    found = next(item for item in write.patch["conditions"] if item["type"] == kind)
    return found["status"], found["message"]


HAD_STARTED = ("True", "the training had started when the run ended")
NEVER_STARTED = ("False", "the run ended before the training had started")


def test_an_ended_run_tells_in_the_past_whether_its_training_had_started() -> None:
    assert the_condition(a_running_world(), "Started") == ("True", "the driver follows the training")
    assert the_condition(a_running_world(pods=(a_head(), a_driver(DONE))), "Started") == HAD_STARTED
    assert the_condition(a_running_world(pods=(a_head(), a_driver(FAILED, EXIT_FAILED))), "Started") == HAD_STARTED
    # A driver that never ran, and one that was only seen dead, are no trace of a training.
    notes = some_notes(since={"trouble": NOW - seconds(10_000)}, result_asked=Reachability.UNREACHABLE)
    waiting = replace(a_driver(phase="Pending"), containers=(a_waiting("driver", "ErrImagePull", "not found"),))
    assert the_condition(a_running_world(pods=(a_head(), waiting), notes=notes), "Started") == NEVER_STARTED
    last = a_run(status=RUNNING, retry={"maxAttempts": 1})
    lost = a_running_world(run=last, pods=(waiting,), notes=lost_long_ago())
    assert the_condition(lost, "Started") == NEVER_STARTED
    dead = a_driver("", EXIT_DRIVER_ERROR)
    assert the_condition(replace(lost, pods=(dead,)), "Started") == NEVER_STARTED
    # What the status or the sidecar has told before stays true.
    progress = replace(lost_long_ago(), progress=some_progress())
    assert the_condition(replace(lost, pods=(dead,), notes=progress), "Started") == HAD_STARTED
    told = {"type": "Started", "status": "True", "reason": "DriverRunning", "message": "the driver follows"}
    run = a_run(status={**RUNNING, "conditions": [told]}, retry={"maxAttempts": 1})
    assert the_condition(replace(lost, run=run, pods=(dead,)), "Started") == HAD_STARTED
    # An attempt that may be followed by another one has not ended the run.
    again = a_running_world(pods=(dead,), notes=lost_long_ago())
    assert the_condition(again, "Started") == ("False", "attempt 1 has ended")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pods": (a_head(),)}, id="between two drivers"),
        pytest.param({"pods": (a_head(), a_driver(phase="Pending", containers=()))}, id="the next one waits"),
        pytest.param({"pods": (a_head(),), "job": None, "cluster": a_cluster(head_ready=False)}, id="no Job"),
    ],
)
def test_a_training_that_has_started_stays_so_and_is_announced_once(changes: dict[str, Any]) -> None:
    first = planned(a_running_world()).status
    assert first is not None
    assert [event.reason for event in first.announcements] == ["Started"]
    run = a_run(status={**RUNNING, **first.patch, "attempt": RUNNING["attempt"]})
    lost = a_running_world(run=run, **changes)
    assert the_condition(lost, "Started") == ("True", "the training has started, its driver does not run now")
    second = planned(lost).status
    assert second is not None
    again = planned(replace(lost, run=a_run(status={**run.status.to_object(), **second.patch}), pods=(a_driver(),)))
    assert second.announcements == ()
    assert again.status is None or again.status.announcements == ()


def test_an_ended_run_has_no_sidecar_to_read_from() -> None:
    notes = some_notes(metrics=Reachability.ANSWERED, progress=some_progress())
    assert the_condition(a_running_world(notes=notes), "MetricsAvailable")[0] == "True"
    ended_world = a_running_world(pods=(a_head(), a_driver(DONE)), notes=notes)
    assert the_condition(ended_world, "MetricsAvailable")[0] == "False"


def test_a_driver_on_a_dead_node_is_waited_for_and_then_counts_as_lost() -> None:
    # Its Job makes no other as long as it is on its way out, and no kubelet is left that would end it.
    stuck = a_driver(deleting=True, node_lost=True, deleted_at=NOW - seconds(590))
    asked = some_notes(result_asked=Reachability.UNREACHABLE)
    waiting = planned(a_running_world(pods=(a_head(), stuck), notes=asked))
    assert waiting.status is None or "phase" not in waiting.status.patch
    assert waiting.due is not None
    assert waiting.due <= NOW + seconds(10)
    gone = replace(stuck, deleted_at=NOW - seconds(600))
    assert planned(a_running_world(pods=(a_head(), gone))).ask_result
    world = a_running_world(pods=(a_head(), gone), notes=asked)
    assert ended(world) == ("Failed", "NodeLost")
    write = planned(world).status
    assert write is not None
    assert (write.patch["phase"], write.patch["history"][-1]["counted"]) == ("Retrying", False)
    assert f"the node of pod {gone.name} does not answer" in write.patch["message"]
    # Where another one has taken over, or the node still answers, there is nothing to give up.
    for pods in ((a_head(), gone, a_driver(uid="other")), (a_head(), replace(gone, node_lost=False))):
        plan_now = planned(replace(world, pods=pods)).status
        assert plan_now is None or "phase" not in plan_now.patch


def test_a_training_that_finished_while_its_driver_was_on_a_dead_node_has_succeeded() -> None:
    gone = a_driver(deleting=True, node_lost=True, deleted_at=NOW - seconds(600))
    result = RunResult(UID, "d", 1, "Succeeded", 12, 12, 0.0, final_model="ml/x/final")
    notes = some_notes(result_asked=Reachability.ANSWERED, result=result)
    assert ended(a_running_world(pods=(a_head(), gone), notes=notes))[0] == "Succeeded"
