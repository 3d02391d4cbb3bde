"""What is left of an attempt, and when it counts as gone.

Used by `policies.between` and `policies.finished`, which give clusters back, and by `facts`. Pure.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tuning_operator.api import meta
from tuning_operator.api.conditions import ConditionType, Reason
from tuning_operator.engine.contribution import Contribution, condition
from tuning_operator.engine.world import JobView, PodView, World
from tuning_operator.settings import Settings

DELETE = "delete"
"""Key of a refused clean-up in `Notes.refusals`."""
TRY_AGAIN = timedelta(seconds=60)
"""Before a refused clean-up is tried again."""
LOOK_AGAIN = timedelta(seconds=60)
"""While pods are on their way out; their end wakes us sooner."""
_RAY = (meta.COMPONENT_HEAD, meta.COMPONENT_WORKER)
_NODE_GONE = ("DeletionByTaintManager", "DeletionByPodGC")


@dataclass(frozen=True, slots=True)
class Disposal:
    """What may be deleted now."""

    cluster: bool = False
    earlier: bool = False
    job: bool = False
    end_jobs: tuple[JobView, ...] = ()
    run: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.cluster or self.earlier or self.job or self.end_jobs or self.run)


def disposal_of_clusters(world: World) -> Disposal:
    """The present attempt's RayCluster and those of earlier ones, as far as they are not on their way out."""
    cluster = world.cluster is not None and not world.cluster.deleting
    return Disposal(cluster=cluster, earlier=any(not item.deleting for item in world.earlier_clusters))


def dispose(world: World, disposal: Disposal) -> Contribution:
    """Delete it; or show that the operator lacks the right to, until it is tried again."""
    refusal = world.notes.refusals.get(DELETE)
    if refusal is not None and world.now < refusal.at + TRY_AGAIN:
        shown = condition(ConditionType.DEGRADED, True, Reason.FORBIDDEN, refusal.message)
        return Contribution(conditions=(shown,), due=refusal.at + TRY_AGAIN, final=True)
    return Contribution(
        delete_cluster=disposal.cluster,
        delete_earlier=disposal.earlier,
        delete_job=disposal.job,
        end_jobs=disposal.end_jobs,
        delete_run=disposal.run,
        final=True,
    )


def standing(world: World, settings: Settings) -> tuple[PodView, ...]:
    """Head and worker pods of the present attempt that still count: all that are there, but on a dead node."""
    pods = (pod for pod in world.pods if pod.component in _RAY)
    return tuple(pod for pod in pods if not _is_gone(pod, world.now, settings))


def look_again(world: World, settings: Settings) -> datetime:
    """When to look whether the pods that are left have gone: when one on a dead node counts as gone, or soon."""
    moments = (gone_at(pod, settings) for pod in standing(world, settings))
    return min([world.now + LOOK_AGAIN, *(moment for moment in moments if moment is not None)])


def gone_at(pod: PodView, settings: Settings) -> datetime | None:
    """From when on a pod counts as gone though it is still there; None: only its own end counts.

    On a dead node a pod stays Terminating for ever, since no kubelet is left that would end it. Should it live on
    unseen, the newer attempt's number on the claim keeps it from completing a checkpoint.
    """
    if not pod.deleting:
        return None
    disrupted = pod.disrupted_at if pod.disruption in _NODE_GONE else None
    # The cluster may give the pod up later than we deleted it: what counted as gone never counts again.
    lost = pod.deleted_at if pod.node_lost else None
    moments = [moment for moment in (disrupted, lost) if moment is not None]
    return min(moments) + timedelta(seconds=settings.node_lost_seconds) if moments else None


def remains(world: World) -> str:
    """A text that is the same as long as the same RayClusters and pods are seen."""
    clusters = [world.cluster.uid] if world.cluster is not None else []
    clusters += [item.uid for item in world.earlier_clusters]
    return " ".join(sorted([*clusters, *(pod.uid for pod in world.pods if pod.component in _RAY)]))


def with_jobs(disposal: Disposal, jobs: tuple[JobView, ...]) -> Disposal:
    """The disposal, with those of some Jobs that neither have ended nor were asked to."""
    open_jobs = (job for job in jobs if not (job.complete or job.failed or job.deleting or job.end_asked))
    return replace(disposal, end_jobs=tuple(open_jobs))


def _is_gone(pod: PodView, now: datetime, settings: Settings) -> bool:
    moment = gone_at(pod, settings)
    return moment is not None and now >= moment
