"""`spec.deadlines`: how long an attempt may take to start, and how long the run may train."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.worlds import (
    NOW,
    RUNNING,
    STARTING,
    a_cluster,
    a_driver,
    a_head,
    a_running_world,
    a_starting_world,
    a_waiting,
    after_the_write,
    cleared,
    seconds,
    some_notes,
)
from tuning_contract.termination import EXIT_STOPPED, TerminationMessage
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.world import StopAnswer, World

KEY = some_settings(stop_key="a key")
WORDS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
LATE = NOW + seconds(3000)
"""An hour after the attempt began."""


@pytest.mark.parametrize(
    ("head", "cause", "words"),
    [
        pytest.param(a_head(phase="Pending", containers=(), unschedulable=WORDS), "Unschedulable", WORDS, id="no node"),
        pytest.param(
            a_head(phase="Pending", containers=(a_waiting("ray-head", "ErrImagePull", "connection refused"),)),
            "StartDeadlineExceeded",
            "ErrImagePull: connection refused",
            id="a registry that does not answer",
        ),
        pytest.param(
            a_head(), "StartDeadlineExceeded", "within `deadlines.startSeconds`, 3600 s", id="nothing is known"
        ),
    ],
)
def test_an_attempt_that_does_not_start_in_time_ends_the_run_with_what_held_it_back(
    head: Any, cause: str, words: str
) -> None:
    world = a_starting_world(pods=(head,), notes=some_notes(config_made=True, since={"trouble": NOW}))
    assert plan(world, KEY).due is not None
    late = after_the_write(replace(world, now=LATE), KEY)
    assert (late.run.status.phase, late.run.status.reason) == ("Failed", cause)
    assert words in (late.run.status.message or "")
    assert after_the_write(replace(world, now=LATE - seconds(1)), KEY).run.status.phase == "Starting"


def test_the_time_to_start_is_over_when_the_job_is_made() -> None:
    write = plan(a_running_world(now=NOW + seconds(100_000)), KEY).status
    assert write is None or "phase" not in write.patch


def test_a_deadline_that_is_made_longer_holds_at_once() -> None:
    run = a_run(status=STARTING, deadlines={"startSeconds": 4000})
    write = plan(a_starting_world(run=run, now=LATE), KEY).status
    assert write is None or "phase" not in write.patch


def a_limited_world(limit: int, earlier: int = 0, **changes: Any) -> World:
    """It has trained for nine minutes, and before that in earlier attempts."""
    run = a_run(status={**RUNNING, "usage": {"activeSeconds": earlier}}, deadlines={"activeSeconds": limit})
    return a_running_world(run=run, **changes)


@pytest.mark.parametrize(("limit", "earlier", "left"), [(600, 0, 60), (600, 50, 10), (600, 60, 0), (540, 0, 0)])
def test_the_run_may_train_for_so_long_all_attempts_together(limit: int, earlier: int, left: int) -> None:
    world = after_the_write(a_limited_world(limit, earlier), KEY)
    attempt = world.run.status.attempt
    if left:
        assert attempt.stop_time is None
        assert plan(replace(world, notes=some_notes(status_written=NOW)), KEY).due == NOW + seconds(left)
    else:
        assert (attempt.stop_time, attempt.stop_reason) == ("2026-01-02T12:00:00Z", "DeadlineExceeded")
        assert (world.run.status.phase, world.run.status.reason) == ("Running", "DeadlineExceeded")
        assert plan(world, KEY) == Plan(ask_stop=True, due=NOW + seconds(5))


@pytest.mark.parametrize("suspended", [False, True])
def test_a_run_whose_time_is_used_up_saves_and_then_fails(suspended: bool) -> None:
    stopping = after_the_write(a_limited_world(540), KEY)
    spec = stopping.run.spec.model_copy(update={"suspend": suspended})
    stopping = replace(stopping, run=stopping.run.model_copy(update={"spec": spec}))
    word = TerminationMessage("Stopped", "", "stopped after step 7", 7, 12, "x/checkpoints/step-000007")
    after = after_the_write(replace(stopping, pods=(a_head(), a_driver(word, EXIT_STOPPED))), KEY)
    status = after.run.status
    assert (status.phase, status.reason, status.checkpoint.step) == ("Failed", "DeadlineExceeded", 7)
    assert status.message == (
        "the run has trained for as long as `deadlines.activeSeconds` allows, 540 s: stopped after step 7"
    )
    assert plan(after, KEY).delete_cluster


def test_a_run_whose_time_is_used_up_is_not_waited_for_beyond_its_grace() -> None:
    notes = some_notes(config_made=True, stop=StopAnswer.TAKEN, stop_asked_at=NOW)
    stopping = replace(after_the_write(a_limited_world(540), KEY), notes=notes)
    assert plan(stopping, KEY) == Plan(due=NOW + seconds(150))
    after = after_the_write(replace(stopping, now=NOW + seconds(150)), KEY)
    assert (after.run.status.phase, after.run.status.reason) == ("Failed", "DeadlineExceeded")
    assert "did not stop within 120 s" in (after.run.status.message or "")


def test_no_attempt_begins_without_time_left() -> None:
    lost = a_limited_world(545, pods=(), notes=some_notes(config_made=True, since={"loss": NOW - seconds(60)}))
    retrying = after_the_write(replace(lost, now=NOW + seconds(4)), KEY)
    assert retrying.run.status.usage.active_seconds == 544
    spec = retrying.run.spec.deadlines.model_copy(update={"active_seconds": 544})
    run = retrying.run.model_copy(update={"spec": retrying.run.spec.model_copy(update={"deadlines": spec})})
    after = after_the_write(cleared(retrying, run=run), KEY)
    assert (after.run.status.phase, after.run.status.reason) == ("Failed", "DeadlineExceeded")
    # The attempt had its own cause.
    assert [record.cause for record in after.run.status.history] == ["HeadLost"]


def test_waiting_does_not_count_as_training() -> None:
    run = a_run(status=STARTING, deadlines={"activeSeconds": 1})
    world = a_starting_world(run=run, cluster=a_cluster(head_ready=False))
    assert plan(world, KEY).due == LATE
