"""`spec.suspend`: the training saves and stops, everything is given back and awaited, and it goes on from there."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.worlds import (
    CLUSTER_UID,
    NAME,
    NOW,
    RUNNING,
    STARTING,
    a_cluster,
    a_driver,
    a_head,
    a_job,
    a_new_world,
    a_running_world,
    a_starting_world,
    after_the_write,
    cleared,
    seconds,
    some_notes,
)
from tuning_contract.termination import EXIT_FAILED, EXIT_STOPPED, EXIT_SUCCEEDED, TerminationMessage
from tuning_operator.api.conditions import Phase, find
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.world import Child, StopAnswer, World

KEY = some_settings(stop_key="a key")
NO_KEY = some_settings()
WORDS = "stopped on request after step 7 of 12; the checkpoint of step 7 is kept"
STOPPED = TerminationMessage("Stopped", "", WORDS, 7, 12, "x/checkpoints/step-000007")
TAKEN = {"stop": StopAnswer.TAKEN, "stop_asked_at": NOW}


def suspend(world: World, suspended: bool = True) -> World:
    spec = world.run.spec.model_copy(update={"suspend": suspended})
    return replace(world, run=world.run.model_copy(update={"spec": spec}))


def a_stopping_world(**changes: Any) -> World:
    """The request to stop is in the status; it was not sent yet."""
    return replace(after_the_write(suspend(a_running_world()), KEY), **changes)


def a_stopped_world(**changes: Any) -> World:
    """The training has stopped, which is in the history; nothing is given back yet."""
    stopping = a_stopping_world(pods=(a_head(), a_driver(STOPPED, EXIT_STOPPED)))
    return replace(after_the_write(stopping, KEY), job=a_job(failed=True), **changes)


def a_suspended_world() -> World:
    return after_the_write(cleared(a_stopped_world()), KEY)


def the_condition(world: World, kind: str) -> tuple[str, str]:
    found = find(world.run.status.conditions, kind)
    assert found is not None
    return found.status.value, found.reason


@pytest.mark.parametrize("status", [None, {"phase": "Pending"}, {"phase": "Rejected"}])
def test_a_run_that_is_suspended_from_the_start_makes_nothing(status: Any) -> None:
    world = suspend(a_new_world(a_run(status=status)))
    # A RayCluster whose making was not heard of may be there, so the API server itself is asked.
    assert plan(world, KEY) == Plan(look=True)
    world = replace(world, notes=replace(world.notes, looked_at=NOW))
    assert not plan(world, KEY).create
    after = after_the_write(world, KEY)
    assert (after.run.status.phase, after.run.status.reason) == ("Suspended", "Suspended")
    assert the_condition(after, "Suspended") == ("True", "Suspended")
    assert the_condition(after, "Accepted") == ("True", "Valid")
    assert plan(after, KEY) == Plan()
    assert plan(suspend(after, False), KEY).create


def test_a_run_that_was_resumed_for_a_moment_rests_only_when_nothing_of_that_moment_is_there() -> None:
    rested = a_run(status={"phase": "Suspended", "observedGeneration": 1})
    moment = a_new_world(rested.model_copy(update={"metadata": rested.metadata.model_copy(update={"generation": 3})}))
    assert plan(suspend(moment), KEY) == Plan(look=True)
    assert plan(suspend(a_new_world(rested)), KEY).look is False


def test_a_run_rests_when_the_pods_of_a_cluster_that_no_status_has_named_are_gone() -> None:
    # Found by the model: it was resumed for a moment, and somebody has deleted the RayCluster of that moment.
    rested = a_run(status={"phase": "Suspended", "observedGeneration": 1})
    world = suspend(a_new_world(rested, pods=(a_head(deleting=True, deleted_at=NOW, node_lost=True),)))
    after = after_the_write(world, KEY)
    assert after.run.status.phase is Phase.SUSPENDING
    assert plan(after, KEY).due == NOW + seconds(60)
    later = replace(after, now=NOW + seconds(600))
    assert plan(later, KEY) == Plan(look=True)
    later = replace(later, notes=replace(later.notes, looked_at=later.now))
    assert after_the_write(later, KEY).run.status.phase is Phase.SUSPENDED


def test_a_run_that_cannot_be_executed_says_so_before_it_rests() -> None:
    world = suspend(a_new_world(a_run(cluster={"head": {"nodePool": "a100"}})))
    assert after_the_write(world, KEY).run.status.phase == "Rejected"


def test_a_cluster_without_a_training_is_given_back_at_once() -> None:
    after = after_the_write(suspend(a_starting_world()), KEY)
    assert (after.run.status.phase, after.run.status.attempt.stop_time) == ("Suspending", None)
    record = after.run.status.history[0]
    assert (record.outcome, record.cause, record.counted) == ("Stopped", None, False)
    assert plan(after, KEY) == Plan(delete_cluster=True)
    # One that was made, but is not in the status yet, is given back alike.
    fresh = a_new_world(cluster=a_cluster(head_ready=False), notes=some_notes(config_made=True))
    assert after_the_write(suspend(fresh), KEY).run.status.phase == "Suspending"


def test_the_cluster_of_an_attempt_that_ends_early_is_remembered_until_its_pods_are_gone() -> None:
    # Its ConfigMap was never made, so no status has named it: but what it owns must be found when it is deleted.
    world = after_the_write(suspend(a_new_world(cluster=a_cluster(head_ready=False), pods=(a_head(),))), KEY)
    attempt = world.run.status.attempt
    assert world.run.status.phase is Phase.SUSPENDING
    assert (attempt.number, attempt.ray_cluster_name, attempt.ray_cluster_uid) == (1, NAME, CLUSTER_UID)


def test_the_request_to_stop_is_written_before_it_is_sent() -> None:
    todo = plan(suspend(a_running_world()), KEY)
    assert not todo.ask_stop
    after = a_stopping_world()
    attempt = after.run.status.attempt
    assert (attempt.stop_time, attempt.stop_reason) == ("2026-01-02T12:00:00Z", "Suspended")
    assert (after.run.status.phase, after.run.status.reason) == ("Suspending", "Suspending")
    assert the_condition(after, "Suspended") == ("False", "Suspending")
    assert plan(after, KEY) == Plan(ask_stop=True, due=NOW + seconds(5))


@pytest.mark.parametrize(
    ("notes", "later", "expected"),
    [
        pytest.param({}, 0, Plan(ask_stop=True, due=NOW + seconds(5)), id="nobody has asked"),
        pytest.param(TAKEN, 1, Plan(due=NOW + seconds(150)), id="it is taken"),
        pytest.param(
            {"stop": StopAnswer.UNREACHABLE, "stop_asked_at": NOW}, 4, Plan(due=NOW + seconds(5)), id="silent"
        ),
        pytest.param(
            {"stop": StopAnswer.UNREACHABLE, "stop_asked_at": NOW},
            5,
            Plan(ask_stop=True, due=NOW + seconds(10)),
            id="asked again",
        ),
    ],
)
def test_a_sidecar_is_asked_until_it_has_the_request(notes: Any, later: float, expected: Plan) -> None:
    world = a_stopping_world(notes=some_notes(config_made=True, **notes), now=NOW + seconds(later))
    assert plan(world, KEY) == expected


@pytest.mark.parametrize(
    ("settings", "notes", "later"),
    [
        pytest.param(NO_KEY, {}, 0, id="without a key the hooks must do"),
        pytest.param(KEY, {"stop": StopAnswer.REFUSED, "stop_asked_at": NOW}, 0, id="a pod without a digest"),
        pytest.param(KEY, TAKEN, 150, id="the grace is over"),
        pytest.param(KEY, {"stop": StopAnswer.UNREACHABLE, "stop_asked_at": NOW}, 150, id="nobody answered in time"),
    ],
)
def test_a_training_that_does_not_stop_by_itself_is_stopped_with_its_pods(
    settings: Any, notes: Any, later: float
) -> None:
    world = a_stopping_world(notes=some_notes(config_made=True, **notes), now=NOW + seconds(later))
    after = after_the_write(world, settings)
    assert [record.outcome for record in after.run.status.history] == ["Stopped"]
    assert after.run.status.phase == "Suspending"
    assert plan(after, settings).delete_cluster


def test_a_training_that_has_stopped_is_no_failure() -> None:
    after = a_stopped_world()
    status = after.run.status
    record = status.history[0]
    assert (record.outcome, record.cause, record.counted, record.last_step) == ("Stopped", None, False, 7)
    assert (status.phase, status.checkpoint.step, status.usage.active_seconds) == ("Suspending", 7, 540)
    assert (status.attempt.counted_failures, status.attempt.retry_time) == (0, None)
    assert WORDS in (status.message or "")
    assert plan(after, KEY) == Plan(delete_cluster=True)


@pytest.mark.parametrize(
    ("word", "code", "phase", "outcome"),
    [
        (TerminationMessage("Succeeded", step=12, target_steps=12), EXIT_SUCCEEDED, "Succeeded", "Succeeded"),
        (TerminationMessage("Failed", "WorkflowError", "boom", 3, 12), EXIT_FAILED, "Failed", "Failed"),
        (TerminationMessage("Failed", "Stalled", "boom", 3, 12), EXIT_FAILED, "Suspending", "Failed"),
    ],
)
def test_what_ends_while_it_should_stop_counts_as_what_it_is(
    word: TerminationMessage, code: int, phase: str, outcome: str
) -> None:
    after = after_the_write(a_stopping_world(pods=(a_head(), a_driver(word, code))), KEY)
    assert (after.run.status.phase, after.run.status.history[0].outcome) == (phase, outcome)
    if phase == "Suspending":
        assert "attempt 2 begins from the beginning when `suspend` is false" in (after.run.status.message or "")
        rest = after_the_write(cleared(after, job=a_job(failed=True)), KEY)
        assert (rest.run.status.phase, rest.run.status.attempt.counted_failures) == ("Suspended", 1)


def test_a_run_rests_only_when_nothing_of_it_is_left() -> None:
    stopped = a_stopped_world()
    for left in (
        {"cluster": a_cluster(deleting=True)},
        {"pods": (a_head(deleting=True),)},
        {"notes": some_notes(since={"remains": NOW})},
    ):
        todo = plan(replace(cleared(stopped), **left), KEY)
        assert todo.status is None
        assert todo.look is ("notes" in left)
    after = a_suspended_world()
    assert (after.run.status.phase, after.run.status.reason) == ("Suspended", "Suspended")
    assert after.run.status.message == (
        "the run is suspended and holds no resources; it goes on from the checkpoint of step 7 when `suspend` is false"
    )
    assert the_condition(after, "Suspended") == ("True", "Suspended")
    assert the_condition(after, "ClusterReady") == the_condition(after, "Started") == ("False", "Suspended")
    assert plan(replace(after, now=NOW + seconds(100_000)), KEY) == Plan()


def test_a_run_that_goes_on_begins_its_next_attempt_at_once_and_says_so_once() -> None:
    world = suspend(a_suspended_world(), False)
    write = plan(world, KEY).status
    assert write is not None
    assert [(event.type, event.reason) for event in write.announcements] == [("Normal", "Resumed")]
    second = after_the_write(world, KEY)
    attempt = second.run.status.attempt
    assert (second.run.status.phase, attempt.number, attempt.first_step, attempt.stop_time) == ("Starting", 2, 7, None)
    assert the_condition(second, "Suspended") == ("False", "NotSuspended")
    assert plan(replace(second, job=None), KEY).create == (Child.CLUSTER,)
    # The second time it is not told, whether the attempt before was stopped or has failed.
    for outcome in ("Stopped", "Failed"):
        last = second.run.status.history[0].model_copy(update={"number": 2, "outcome": outcome})
        records = (*second.run.status.history, last)
        status = second.run.status.model_copy(update={"history": records, "phase": Phase.SUSPENDED})
        again = replace(world, run=world.run.model_copy(update={"status": status}))
        write = plan(again, KEY).status
        assert write is not None
        assert (write.patch["attempt"]["number"], write.announcements) == (3, ())


def test_a_run_that_may_go_on_before_it_rests_comes_to_its_end_first() -> None:
    stopping = suspend(a_stopping_world(notes=some_notes(config_made=True, **TAKEN)), False)
    assert plan(stopping, KEY) == Plan(due=NOW + seconds(150))
    stopped = suspend(a_stopped_world(), False)
    assert plan(stopped, KEY) == Plan(delete_cluster=True)
    second = after_the_write(cleared(stopped), KEY)
    assert (second.run.status.phase, second.run.status.attempt.number) == ("Starting", 2)


def test_a_run_that_is_suspended_while_it_waits_for_its_next_attempt_rests() -> None:
    lost = a_running_world(pods=(), notes=some_notes(since={"loss": NOW - seconds(60)}, config_made=True))
    retrying = suspend(after_the_write(lost, KEY))
    going = after_the_write(replace(retrying, cluster=a_cluster(deleting=True)), KEY)
    assert going.run.status.phase == "Suspending"
    rest = after_the_write(cleared(retrying), KEY)
    assert (rest.run.status.phase, rest.run.status.attempt.number) == ("Suspended", 1)
    # Whoever lets it go on does not wait for the back-off.
    assert after_the_write(suspend(rest, False), KEY).run.status.attempt.number == 2


def test_a_run_that_is_suspended_between_the_number_and_the_cluster_makes_nothing() -> None:
    second = after_the_write(suspend(a_suspended_world(), False), KEY)
    rest = after_the_write(suspend(replace(second, job=None)), KEY)
    assert (rest.run.status.phase, rest.run.status.attempt.number) == ("Suspended", 2)
    assert plan(rest, KEY) == Plan()
    # Its time to start begins when it goes on.
    later = suspend(replace(rest, now=NOW + seconds(100_000)), False)
    assert plan(later, KEY).create == (Child.CLUSTER,)
    made = replace(later, cluster=a_cluster(name="math-agent-3f9a1c-2", head_ready=False))
    assert after_the_write(made, KEY).run.status.attempt.start_time == "2026-01-03T15:46:40Z"


@pytest.mark.parametrize("status", [STARTING, RUNNING])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_run_that_has_ended_cannot_be_suspended(status: Any, phase: str) -> None:
    world = suspend(a_new_world(a_run(status={**status, "phase": phase})))
    assert plan(world, KEY) == Plan()


def test_a_lost_head_while_it_should_stop_is_a_lost_attempt() -> None:
    notes = some_notes(config_made=True, since={"loss": NOW - seconds(60)}, **TAKEN)
    after = after_the_write(a_stopping_world(pods=(a_driver(),), notes=notes), KEY)
    assert (after.run.status.phase, after.run.status.history[0].cause) == ("Suspending", "HeadLost")
    # Unless it had stopped before.
    stopped = after_the_write(a_stopping_world(pods=(a_driver(STOPPED, EXIT_STOPPED),), notes=notes), KEY)
    assert (stopped.run.status.history[0].outcome, stopped.run.status.history[0].cause) == ("Stopped", None)
