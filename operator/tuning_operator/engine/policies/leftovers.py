"""Jobs of attempts that are over: they end by themselves within a minute; one that does not is ended.

Its driver waits for a head that will not come back, or its pod for the token that went with the cluster. The Job stays,
with the log of the drivers that have finished. Those of an ended run are seen to by `finished`.
"""

from datetime import datetime, timedelta

from tuning_operator.engine import release
from tuning_operator.engine.contribution import Contribution
from tuning_operator.engine.release import Disposal
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import JobView, World
from tuning_operator.settings import Settings

LAST_WORD = timedelta(seconds=75)
"""Time for a Job to end by itself, as it does when its driver has ended."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """End those whose time is over."""
    jobs = (*world.earlier_jobs, *((world.job,) if world.job is not None and world.attempt_over else ()))
    left = release.with_jobs(Disposal(), jobs).end_jobs
    if not left:
        return None
    dues = {job.uid: due(world, job, world.notes.first_seen) for job in left}
    refusal = world.notes.refusals.get(release.DELETE)
    if refusal is not None and world.now < refusal.at + release.TRY_AGAIN:
        return Contribution(due=refusal.at + release.TRY_AGAIN)
    late = tuple(job for job in left if world.now >= dues[job.uid])
    later = [moment for moment in dues.values() if moment > world.now]
    return Contribution(end_jobs=late, due=min(later, default=None))


def due(world: World, job: JobView, otherwise: datetime) -> datetime:
    """When a Job, whose attempt ended as the history says or `otherwise`, has had its time."""
    ends = (from_text(record.end_time) for record in world.run.status.history if record.number == job.attempt)
    return (next(ends, None) or otherwise) + LAST_WORD
