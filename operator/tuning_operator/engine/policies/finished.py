"""An ended run: its cluster is given back at once; claim and Job, with the log, stay.

A Job whose driver never started has no log, and its pod would wait for ever, for an image or for the token that went
with the cluster: it is deleted. A Job whose driver ever ran is never deleted. Should it not end by itself, its next pod
stays in CreateContainerConfigError, since the token's Secret is gone, and holds the driver's small request of CPU and
memory until the run is deleted: that is the price of the log.
"""

from datetime import datetime, timedelta

from tuning_operator.api.conditions import ConditionType, Reason, find, is_true
from tuning_operator.engine import evidence
from tuning_operator.engine.contribution import NOTHING_WRONG, Contribution, condition
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings

DELETE = "delete"
"""Key of a refused clean-up in `Notes.refusals`."""
TRY_AGAIN = timedelta(seconds=60)
LAST_WORD = timedelta(seconds=60)
"""Time for the Job to end by itself, as it does when its driver has ended."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """Delete what is left of a run whose terminal status is written."""
    phase = world.run.status.phase
    if phase is None or not phase.terminal:
        return None
    cluster = world.cluster is not None and not world.cluster.deleting
    job_due = _job_due(world)
    job = job_due is not None and world.now >= job_due
    if not cluster and not job:
        return _given_back(world, job_due)
    refusal = world.notes.refusals.get(DELETE)
    if refusal is None or world.now >= refusal.at + TRY_AGAIN:
        return Contribution(delete_cluster=cluster, delete_job=job, final=True)
    shown = condition(ConditionType.DEGRADED, True, Reason.FORBIDDEN, refusal.message)
    return Contribution(conditions=(shown,), due=refusal.at + TRY_AGAIN, final=True)


def _job_due(world: World) -> datetime | None:
    """When the Job will have had its time; None when it has ended, is going or gone, or may have a log."""
    job = world.job
    if job is None or job.complete or job.failed or job.deleting:
        return None
    if not world.drivers or evidence.driver_ever_ran(world):
        return None
    finished = find(world.run.status.conditions, ConditionType.FINISHED)
    ended = from_text(finished.last_transition_time) if finished is not None else None
    return (ended or world.notes.first_seen) + LAST_WORD


def _given_back(world: World, due: datetime | None) -> Contribution:
    """Nothing is to be done now; a complaint that something could not be deleted is over."""
    degraded = find(world.run.status.conditions, ConditionType.DEGRADED)
    if degraded is None or degraded.reason != Reason.FORBIDDEN:
        return Contribution(due=due, final=True)
    if not is_true(world.run.status.conditions, ConditionType.DEGRADED):
        return Contribution(due=due, final=True)
    fine = condition(ConditionType.DEGRADED, False, Reason.AS_EXPECTED, NOTHING_WRONG)
    return Contribution(conditions=(fine,), due=due, final=True)
