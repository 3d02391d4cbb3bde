"""An ended run: its cluster is given back, at once or after `cleanup.clusterTTLSeconds`; claim and log stay.

A Job whose driver never started has no log, and its pod would wait for ever, for an image or for the token that went
with the cluster: it is deleted. A Job whose driver ever ran is never deleted: should it not end by itself, it is ended,
which deletes the pods that wait and keeps those that have finished. With `cleanup.runTTLSeconds` the run goes, too.
"""

from datetime import datetime, timedelta

from tuning_operator.api.conditions import ConditionType, Reason, find, is_true
from tuning_operator.engine import evidence, release
from tuning_operator.engine.contribution import NOTHING_WRONG, Contribution, condition
from tuning_operator.engine.policies import leftovers
from tuning_operator.engine.release import Disposal
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import JobView, World
from tuning_operator.settings import Settings


def decide(world: World, settings: Settings) -> Contribution | None:
    """Delete what is left of a run whose terminal status is written."""
    phase = world.run.status.phase
    if phase is None or not phase.terminal:
        return None
    due, disposal = _due(world)
    return release.dispose(world, disposal) if disposal else _given_back(world, due)


def _due(world: World) -> tuple[datetime | None, Disposal]:
    """What is to be deleted now, and when there will be more."""
    ended = _ended(world)
    cleanup = world.run.spec.cleanup
    clusters = release.disposal_of_clusters(world)
    plans = [(ended + timedelta(seconds=cleanup.cluster_ttl_seconds), clusters)]
    plans += [(moment, _of_jobs(world, jobs)) for moment, jobs in _open_jobs(world, ended).items()]
    if cleanup.run_ttl_seconds is not None:
        plans.append((ended + timedelta(seconds=cleanup.run_ttl_seconds), Disposal(run=True)))
    later = [moment for moment, what in plans if what and world.now < moment]
    # One after the other: the run, if it goes, goes last.
    now = next((what for moment, what in plans if what and world.now >= moment), Disposal())
    return min(later, default=None), now


def _open_jobs(world: World, ended: datetime) -> dict[datetime, tuple[JobView, ...]]:
    """Jobs that have not ended, by when they will have had their time."""
    jobs = (*world.earlier_jobs, *((world.job,) if world.job else ()))
    found: dict[datetime, tuple[JobView, ...]] = {}
    for job in release.with_jobs(Disposal(), jobs).end_jobs:
        due = leftovers.due(world, job, ended)
        found[due] = (*found.get(due, ()), job)
    return found


def _of_jobs(world: World, jobs: tuple[JobView, ...]) -> Disposal:
    if world.job in jobs and world.drivers and not evidence.driver_ever_ran(world):
        return Disposal(job=True, end_jobs=tuple(job for job in jobs if job is not world.job))
    return Disposal(end_jobs=jobs)


def _ended(world: World) -> datetime:
    """When the run ended, as its status says."""
    finished = find(world.run.status.conditions, ConditionType.FINISHED)
    ended = from_text(finished.last_transition_time) if finished is not None else None
    return ended or world.notes.first_seen


def _given_back(world: World, due: datetime | None) -> Contribution:
    """Nothing is to be done now; a complaint that something could not be deleted is over."""
    degraded = find(world.run.status.conditions, ConditionType.DEGRADED)
    if degraded is None or degraded.reason != Reason.FORBIDDEN:
        return Contribution(due=due, final=True)
    if not is_true(world.run.status.conditions, ConditionType.DEGRADED):
        return Contribution(due=due, final=True)
    fine = condition(ConditionType.DEGRADED, False, Reason.AS_EXPECTED, NOTHING_WRONG)
    return Contribution(conditions=(fine,), due=due, final=True)
