"""What is given back when a run has ended, and when."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.worlds import NOW, RUNNING, a_cluster, a_job, a_running_world, seconds, some_notes
from tuning_operator.api.v1alpha1_status import AttemptRecord
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.world import JobView, Refusal, RefusalKind, World

SETTINGS = some_settings()


def an_ended_world(phase: str = "Failed", age: float = 0, **changes: Any) -> World:
    """A run that ended some seconds ago; its Job has ended."""
    finished = {"type": "Finished", "status": "True", "reason": "EngineError", "message": ""}
    finished["lastTransitionTime"] = "2026-01-02T12:00:00Z"
    cleanup = changes.pop("cleanup", {})
    run = a_run(status={**RUNNING, "phase": phase, "conditions": [finished]}, cleanup=cleanup)
    world = a_running_world(run=run, job=a_job(failed=True), pods=(), now=NOW + seconds(age))
    return replace(world, **changes)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_every_ended_run_gives_its_cluster_back_at_once(phase: str) -> None:
    assert plan(an_ended_world(phase), SETTINGS) == Plan(delete_cluster=True)
    assert plan(an_ended_world(phase, cluster=None), SETTINGS) == Plan()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_cluster_is_kept_for_as_long_as_the_run_wants(phase: str) -> None:
    kept = {"clusterTTLSeconds": 600}
    assert plan(an_ended_world(phase, 599, cleanup=kept), SETTINGS) == Plan(due=NOW + seconds(600))
    assert plan(an_ended_world(phase, 600, cleanup=kept), SETTINGS) == Plan(delete_cluster=True)
    # A change holds at once.
    assert plan(an_ended_world(phase, 599, cleanup={"clusterTTLSeconds": 0}), SETTINGS) == Plan(delete_cluster=True)


def test_a_run_is_deleted_only_where_that_is_wanted_and_after_its_cluster() -> None:
    assert plan(an_ended_world(age=10**8, cluster=None), SETTINGS) == Plan()
    wanted = {"runTTLSeconds": 1000}
    assert plan(an_ended_world(age=999, cluster=None, cleanup=wanted), SETTINGS) == Plan(due=NOW + seconds(1000))
    assert plan(an_ended_world(age=1000, cleanup=wanted), SETTINGS) == Plan(delete_cluster=True)
    assert plan(an_ended_world(age=1000, cluster=None, cleanup=wanted), SETTINGS) == Plan(delete_run=True)
    refusal = Refusal(RefusalKind.FORBIDDEN, "the operator may not delete tuningruns: no", NOW + seconds(1000))
    refused = an_ended_world(age=1001, cluster=None, cleanup=wanted, notes=some_notes(refusals={"delete": refusal}))
    todo = plan(refused, SETTINGS)
    assert not todo.delete_run
    assert todo.due == NOW + seconds(1060)
    assert todo.status is not None


def test_jobs_of_all_attempts_come_to_an_end() -> None:
    first, second = (
        JobView("math-agent-3f9a1c-1", "job-1", attempt=1),
        JobView("math-agent-3f9a1c-2", "job-2", attempt=2),
    )
    world = an_ended_world(cluster=None, earlier_jobs=(first, replace(second, complete=True)), job=a_job(attempt=3))
    assert plan(replace(world, now=NOW + seconds(74)), SETTINGS) == Plan(due=NOW + seconds(75))
    assert plan(replace(world, now=NOW + seconds(75)), SETTINGS) == Plan(end_jobs=(first, a_job(attempt=3)))


def test_the_job_of_an_earlier_attempt_gets_no_more_time_because_the_run_has_ended_since() -> None:
    first = JobView("math-agent-3f9a1c-1", "job-1", attempt=1)
    world = an_ended_world(cluster=None, earlier_jobs=(first,), job=a_job(attempt=2, complete=True))
    lost = {"number": 1, "outcome": "Failed", "cause": "HeadLost", "endTime": "2026-01-02T11:59:00Z"}
    status = world.run.status.model_copy(update={"history": (AttemptRecord.model_validate(lost),)})
    world = replace(world, run=world.run.model_copy(update={"status": status}))
    assert plan(replace(world, now=NOW + seconds(14)), SETTINGS) == Plan(due=NOW + seconds(15))
    assert plan(replace(world, now=NOW + seconds(15)), SETTINGS) == Plan(end_jobs=(first,))


def test_the_job_of_an_attempt_that_is_over_comes_to_an_end_while_the_run_goes_on() -> None:
    history = [{"number": 1, "outcome": "Failed", "endTime": "2026-01-02T12:00:00Z"}]
    attempt = {**RUNNING["attempt"], "number": 2}
    job = JobView("math-agent-3f9a1c-1", "job-1", attempt=1)
    run = a_run(status={**RUNNING, "attempt": attempt, "history": history})
    world = a_running_world(run=run, earlier_jobs=(job,), notes=some_notes(config_made=True, status_written=NOW))
    assert plan(replace(world, now=NOW + seconds(20)), SETTINGS).end_jobs == ()
    assert plan(replace(world, now=NOW + seconds(75)), SETTINGS).end_jobs == (job,)
    asked = replace(world, now=NOW + seconds(75), earlier_jobs=(replace(job, end_asked=True),))
    assert plan(asked, SETTINGS).end_jobs == ()
    refusal = Refusal(RefusalKind.FORBIDDEN, "the operator may not patch jobs.batch: no", NOW + seconds(75))
    notes = some_notes(config_made=True, status_written=NOW, refusals={"delete": refusal})
    refused = plan(replace(world, now=NOW + seconds(76), notes=notes), SETTINGS)
    assert refused.end_jobs == ()


def test_a_cluster_that_an_earlier_attempt_left_goes_with_the_others() -> None:
    left = a_cluster(uid="earlier")
    assert plan(an_ended_world(earlier_clusters=(left,), cluster=None), SETTINGS) == Plan(delete_earlier=(left,))
