"""From a world to a plan: the policies in order, then the status that the world deserves.

`cluster.execute` carries a plan out, first stage first; `reconcile` connects the two. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tuning_operator.api.conditions import ConditionType, Phase
from tuning_operator.api.v1alpha1_status import TuningRunStatus
from tuning_operator.desired import claim, configmap, job, raycluster
from tuning_operator.engine import announcements, figures, status
from tuning_operator.engine.announcements import Announcement
from tuning_operator.engine.contribution import Contribution
from tuning_operator.engine.evidence import RAY_HEAD
from tuning_operator.engine.policies import POLICIES
from tuning_operator.engine.world import Child, ClusterView, JobView, World
from tuning_operator.settings import Settings

PROGRESS_INTERVAL = timedelta(seconds=30)
"""Least time between two status writes that only carry news of the training."""

HEAD_UID_ANNOTATION = "agenttuning.io/head-pod-uid"
HEAD_RESTARTS_ANNOTATION = "agenttuning.io/head-restart-count"
"""On the Job: the head for which it was made. So a head that is lost before the status is written is noticed."""

# These may change while everything goes well: they ride on the next write.
_QUIET_CONDITIONS = frozenset({ConditionType.CLUSTER_READY, ConditionType.STARTED, ConditionType.METRICS_AVAILABLE})


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """A merge patch for the status, and what is told once it is written."""

    patch: Mapping[str, Any]
    announcements: tuple[Announcement, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one run, by stages; the later ones are planned anew when the earlier are done."""

    read: tuple[str, ...] = ()
    """ConfigMaps to read."""
    ask_result: bool = False
    create: tuple[Child, ...] = ()
    """In this order."""
    status: StatusWrite | None = None
    look: bool = False
    """List the run's RayClusters and pods from the API server itself, put what is found into the local copies, and
    note when (`Notes.looked_at`). Comes before the status."""
    ask_stop: bool = False
    """After the status: POST /stop to the head's sidecar, and note the answer (`Notes.stop`, `stop_asked_at`)."""
    delete_cluster: bool = False
    delete_job: bool = False
    delete_earlier: tuple[ClusterView, ...] = ()
    """RayClusters of earlier attempts."""
    end_jobs: tuple[JobView, ...] = ()
    """Set activeDeadlineSeconds to 1: pods that wait for ever are deleted, finished ones stay with their log."""
    delete_run: bool = False
    """Last of all."""
    due: datetime | None = None
    """When to look again even if nothing happens."""


def plan(world: World, settings: Settings) -> Plan:
    """Decide what to do for one run. A run that is being deleted needs nothing: its children have owners."""
    if world.run.deleted:
        return Plan()
    parts: list[Contribution] = []
    for decide in POLICIES:
        part = decide(world, settings)
        if part is not None:
            parts.append(part)
            if part.final:
                break
    read = tuple(name for part in parts for name in part.read)
    create = tuple(child for part in parts for child in part.create)
    # The status is worth composing when nothing has to be done before it.
    look = any(part.look for part in parts)
    write, write_due = (None, None) if read or create or look else _status_write(world, parts)
    return Plan(
        read=read,
        ask_result=any(part.ask_result for part in parts),
        create=create,
        status=write,
        delete_cluster=any(part.delete_cluster for part in parts),
        look=look,
        ask_stop=any(part.ask_stop for part in parts),
        delete_job=any(part.delete_job for part in parts),
        delete_earlier=world.earlier_clusters if any(part.delete_earlier for part in parts) else (),
        end_jobs=tuple(job for part in parts for job in part.end_jobs),
        delete_run=any(part.delete_run for part in parts),
        due=min((due for due in (write_due, *(part.due for part in parts)) if due is not None), default=None),
    )


def manifest(child: Child, world: World, settings: Settings) -> dict[str, Any]:
    """Build one child of the present attempt."""
    run, number = world.run, world.attempt
    if child is Child.CLUSTER:
        return raycluster.build(run, settings, number, world.model_source)
    if child is Child.CONFIG:
        return configmap.build(run, world.model_source)
    if child is Child.CLAIM:
        volume = claim.build(run, settings)
        if volume is None:
            raise ValueError("a run that names a claim makes none")
        return volume
    if world.cluster is None or world.head is None:
        raise ValueError("the Job is made for a head that is there")
    made = job.build(run, settings, number, world.cluster.uid)
    ray = world.head.container(RAY_HEAD)
    notes = {HEAD_UID_ANNOTATION: world.head.uid, HEAD_RESTARTS_ANNOTATION: str(ray.restarts if ray else 0)}
    return made | {"metadata": made["metadata"] | {"annotations": made["metadata"].get("annotations", {}) | notes}}


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7386) that turns `old` into `new`; lists are replaced as a whole."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            inner = merge_patch(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch


def _is_over(world: World) -> bool:
    phase = world.run.status.phase
    return phase is not None and phase.terminal


def _status_write(world: World, parts: list[Contribution]) -> tuple[StatusWrite | None, datetime | None]:
    """The write that is due now, or the time at which it will be."""
    old = world.run.status
    # What is said of an ended run stays; only a complaint about its clean-up may come and go.
    new = status.with_conditions(world, parts) if _is_over(world) else status.compose(world, parts)
    if new == old:
        return None, None
    if not _is_pressing(old, new):
        ready = (world.notes.status_written or world.notes.first_seen) + PROGRESS_INTERVAL
        if world.now < ready:
            return None, ready
    if not _is_over(world):
        usage = figures.usage_of(world).model_copy(update={"active_seconds": new.usage.active_seconds})
        new = new.model_copy(update={"usage": usage})
    # What the server holds, without the defaults that reading it has filled in.
    held = old.model_dump(mode="json", by_alias=True, exclude_unset=True)
    patch = merge_patch(held, new.to_object())
    if not patch:
        return None, None
    return StatusWrite(patch, announcements.between(old, new)), None


def _is_pressing(old: TuningRunStatus, new: TuningRunStatus) -> bool:
    """Whether the difference is more than news of a training that goes on."""

    def gist(value: TuningRunStatus) -> tuple[object, ...]:
        conditions = [(item.type, item.status, item.reason) for item in value.conditions]
        loud = tuple(item for item in conditions if item[0] not in _QUIET_CONDITIONS)
        # What a rejected run waits for is all that there is to tell of it.
        waits_for = value.message if value.phase is Phase.REJECTED else None
        return value.phase, waits_for, value.attempt, value.history, value.observed_generation, loud

    return gist(old) != gist(new)
