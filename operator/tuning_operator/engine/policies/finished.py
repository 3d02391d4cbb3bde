"""An ended run: its cluster is given back, at once or after `cleanup.clusterTTLSeconds`; claim and log stay.

A Job whose driver never started has no log, and its pod would wait for ever, for an image or for the token that went
with the cluster: it is deleted. A Job whose driver ever ran is never deleted: should it not end by itself, it is ended,
which deletes the pods that wait and keeps those that have finished. With `cleanup.runTTLSeconds` the run goes, too.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from tuning_operator.api.conditions import ConditionType, Reason, find, is_true
from tuning_operator.engine import evidence, release
from tuning_operator.engine.contribution import NOTHING_WRONG, Contribution, condition
from tuning_operator.engine.policies.leftovers import LAST_WORD
from tuning_operator.engine.release import Disposal
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import World
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
    jobs = release.with_jobs(Disposal(), (*world.earlier_jobs, *((world.job,) if world.job else ())))
    plans = [(ended + timedelta(seconds=cleanup.cluster_ttl_seconds), clusters)]
    if world.job is not None and world.job in jobs.end_jobs and world.drivers and not evidence.driver_ever_ran(world):
        others = tuple(job for job in jobs.end_jobs if job is not world.job)
        jobs = replace(jobs, job=True, end_jobs=others)
    plans.append((ended + LAST_WORD, jobs))
    if cleanup.run_ttl_seconds is not None:
        plans.append((ended + timedelta(seconds=cleanup.run_ttl_seconds), Disposal(run=True)))
    later = [moment for moment, what in plans if what and world.now < moment]
    # One after the other: the run, if it goes, goes last.
    now = next((what for moment, what in plans if what and world.now >= moment), Disposal())
    return min(later, default=None), now


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
