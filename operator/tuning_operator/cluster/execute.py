"""Carries out a plan, one stage at a time, and puts every reply into the local copies at once.

`reconcile` calls `next_stage` and `carry_out`, then plans anew: so each write is decided on what the one before it
has brought about. Refusals that only somebody else can heal become notes, which the policies show; what time heals
is raised.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from tuning_contract.stopping import stop_token
from tuning_operator import errors
from tuning_operator.api import meta
from tuning_operator.cluster.announcer import Announcer
from tuning_operator.cluster.client import ApiClient, Selection
from tuning_operator.cluster.informer import Informer
from tuning_operator.cluster.memory import Memory, RunMemory
from tuning_operator.cluster.observe import Caches
from tuning_operator.cluster.projections import RunView, controller_of, label_of_run, owners_of
from tuning_operator.cluster.queue import Lane
from tuning_operator.cluster.resources import BY_KIND, CONFIG_MAPS, JOBS, RAY_CLUSTERS, TUNING_RUNS, Resource
from tuning_operator.cluster.sidecar import SidecarClient, Unreachable
from tuning_operator.engine import plan as planning
from tuning_operator.engine.plan import Plan
from tuning_operator.engine.policies.acceptance import READ
from tuning_operator.engine.release import DELETE
from tuning_operator.engine.world import (
    Child,
    JobView,
    Reachability,
    Reference,
    Refusal,
    RefusalKind,
    StopAnswer,
    World,
)
from tuning_operator.settings import Settings

_LANES = {Child.CLUSTER: Lane.CLUSTER, Child.CONFIG: Lane.SUPPORT, Child.CLAIM: Lane.SUPPORT, Child.JOB: Lane.JOB}
_ANSWER_TRIES = 2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """What is done before the world is looked at again."""

    lane: Lane
    then: Lane
    """Lane of what probably follows."""
    create: tuple[Child, ...] = ()


def next_stage(plan: Plan) -> Stage | None:
    """The first stage of a plan; None when there is nothing to do."""
    if plan.read:
        return Stage(Lane.CLUSTER, Lane.CLUSTER)
    if plan.create:
        lane = _LANES[plan.create[0]]
        together = tuple(child for child in plan.create if _LANES[child] is lane)
        later = [_LANES[child] for child in plan.create if _LANES[child] is not lane]
        return Stage(lane, min(later, default=Lane.STATUS), together)
    if plan.ask_result or plan.look:
        return Stage(Lane.STATUS, Lane.STATUS)
    if plan.status is not None:
        return Stage(Lane.STATUS, Lane.CLEANUP)
    clean_up = plan.ask_stop or plan.delete_cluster or plan.delete_job or plan.delete_earlier or plan.end_jobs
    return Stage(Lane.CLEANUP, Lane.CLEANUP) if clean_up or plan.delete_run else None


class Named(Protocol):
    """Something to delete."""

    @property
    def namespace(self) -> str:
        """Where it lies."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def uid(self) -> str:
        """Which one of that name it is."""


@dataclass(frozen=True, slots=True)
class Hands:
    """What the executor works with."""

    client: ApiClient
    caches: Caches
    memory: Memory
    sidecars: SidecarClient
    announcer: Announcer
    clock: Callable[[], datetime]


class Executor:
    """Does what a plan says."""

    def __init__(self, hands: Hands, settings: Settings) -> None:
        """Work with these."""
        self._hands = hands
        self._settings = settings

    async def carry_out(self, stage: Stage, world: World, plan: Plan) -> None:
        """Do the first stage.

        Raises:
            ApiError: What time heals, or what needs a newer world.
        """
        memory = self._hands.memory.of(world.run.uid, world.now)
        if plan.read:
            await asyncio.gather(*(self._read(name, world, memory) for name in plan.read))
        elif stage.create:
            for child in stage.create:
                await self._create(child, world, memory)
        elif plan.ask_result:
            await self._ask_result(world, memory)
        elif plan.look:
            await self._look(world, memory)
        elif plan.status is not None:
            await self._write_status(world, plan, memory)
        elif plan.ask_stop:
            await self._ask_stop(world, memory)
        else:
            await self._clean_up(world, plan, memory)

    async def _clean_up(self, world: World, plan: Plan, memory: RunMemory) -> None:
        caches = self._hands.caches
        if plan.delete_cluster and world.cluster is not None:
            await self._delete(RAY_CLUSTERS, caches.clusters, world.cluster, memory)
        elif plan.delete_job and world.job is not None:
            await self._delete(JOBS, caches.jobs, world.job, memory)
        elif plan.delete_earlier:
            for cluster in plan.delete_earlier:
                await self._delete(RAY_CLUSTERS, caches.clusters, cluster, memory)
        elif plan.end_jobs:
            for job in plan.end_jobs:
                await self._end(job, memory)
        elif plan.delete_run:
            await self._delete(TUNING_RUNS, caches.runs, world.run, memory)

    async def patch_unreadable(self, view: RunView, version: str, status: dict[str, Any]) -> None:
        """Write the status of an object that cannot be read as a TuningRun."""
        patch = {"metadata": {"resourceVersion": version}, "status": status}
        await self._patch(view.namespace, view.name, view.uid, patch)

    async def _patch(self, namespace: str, name: str, uid: str, patch: dict[str, Any]) -> dict[str, Any] | None:
        """Write a run's status and keep the reply; None when the run is gone."""
        runs = self._hands.caches.runs
        try:
            raw = await self._hands.client.patch_status(TUNING_RUNS, namespace, name, patch)
        except errors.NotFound:
            runs.drop(namespace, name, uid)
            return None
        runs.put(raw)
        return raw

    async def _read(self, name: str, world: World, memory: RunMemory) -> None:
        now = self._hands.clock()
        try:
            raw = await self._hands.client.get(CONFIG_MAPS, world.run.namespace, name)
            keys: frozenset[str] | None = frozenset([*(raw.get("data") or ()), *(raw.get("binaryData") or ())])
        except errors.NotFound:
            keys = None
        except errors.Forbidden as error:
            memory.refusals[READ] = _refusal(RefusalKind.FORBIDDEN, error, now)
            return
        memory.refusals.pop(READ, None)
        memory.references[name] = Reference(name, keys, now)

    async def _create(self, child: Child, world: World, memory: RunMemory) -> None:
        manifest = planning.manifest(child, world, self._settings)
        resource = BY_KIND[child]
        # Should the answer be lost, nobody knows whether it is there.
        memory.looked_at = None
        try:
            # Of a RayCluster no field may be dropped: the token that protects it is one, and users write some.
            strict = child is Child.CLUSTER
            raw = await self._hands.client.create(resource, world.run.namespace, manifest, strict=strict)
        except errors.AlreadyExists as error:
            found = await self._existing(resource, world.run.namespace, manifest["metadata"]["name"])
            if found is None:
                # It went in between: look again soon.
                raise errors.Conflict(str(error), error.status) from error
            if not _is_ours(child, found, world):
                text = f"{resource.kind} {manifest['metadata']['name']} belongs to somebody else"
                memory.refusals[child] = Refusal(RefusalKind.NAME_CONFLICT, text, self._hands.clock())
                return
            if "deletionTimestamp" in found["metadata"]:
                # It is on its way out, and nothing on it can be relied on: its name is free soon.
                raise errors.Conflict(str(error), error.status) from error
            raw = found
        except errors.Invalid as error:
            memory.refusals[child] = _refusal(RefusalKind.INVALID, error, self._hands.clock())
            return
        except errors.Forbidden as error:
            memory.refusals[child] = _refusal(RefusalKind.FORBIDDEN, error, self._hands.clock())
            return
        memory.refusals.pop(child, None)
        self._keep(child, raw, memory)

    def _keep(self, child: Child, raw: dict[str, Any], memory: RunMemory) -> None:
        if child is Child.CONFIG:
            memory.config_made = True
            return
        caches = self._hands.caches
        watched: dict[Child, Informer[Any]] = {
            Child.CLUSTER: caches.clusters,
            Child.CLAIM: caches.claims,
            Child.JOB: caches.jobs,
        }
        watched[child].put(raw)

    async def _existing(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        """The object that has the name; read by a list, for which the right is there, unless it is a ConfigMap."""
        if resource is CONFIG_MAPS:
            try:
                return await self._hands.client.get(resource, namespace, name)
            except errors.NotFound:
                return None
        page = await self._hands.client.list_page(Selection(resource, namespace, fields=f"metadata.name={name}"), 1)
        items: list[dict[str, Any]] = page["items"]
        return next(iter(items), None)

    async def _ask_result(self, world: World, memory: RunMemory) -> None:
        address = world.head.ip if world.head is not None else ""
        for left in reversed(range(_ANSWER_TRIES)):
            try:
                memory.result = await self._hands.sidecars.result(address)
                memory.result_asked = Reachability.ANSWERED
                return
            except Unreachable as error:
                log.info("%s/%s: no result from the sidecar: %s", world.run.namespace, world.run.name, error)
                if left:
                    await asyncio.sleep(1)
        memory.result_asked = Reachability.UNREACHABLE

    async def _look(self, world: World, memory: RunMemory) -> None:
        """List what the run has from the API server itself: the watches may be behind."""
        labels = f"{meta.RUN_UID_LABEL}={world.run.uid}"
        for informer in (self._hands.caches.clusters, self._hands.caches.pods):
            await informer.look(world.run.namespace, labels)
        memory.looked_at = self._hands.clock()

    async def _ask_stop(self, world: World, memory: RunMemory) -> None:
        run, memory.stop_asked_at = world.run, self._hands.clock()
        if not self._settings.stop_key:
            memory.stop = StopAnswer.REFUSED
            return
        token = stop_token(self._settings.stop_key, run.uid, world.attempt)
        try:
            memory.stop = await self._hands.sidecars.stop(world.head.ip if world.head is not None else "", token)
        except Unreachable as error:
            memory.stop = StopAnswer.UNREACHABLE
            log.info("%s/%s: the sidecar was not asked to stop: %s", run.namespace, run.name, error)

    async def _write_status(self, world: World, plan: Plan, memory: RunMemory) -> None:
        run, write = world.run, plan.status
        if write is None:
            return
        patch = {"metadata": {"resourceVersion": run.metadata.resource_version}, "status": write.patch}
        raw = await self._patch(run.namespace, run.name, run.uid, patch)
        if raw is None:
            return
        memory.status_written = self._hands.clock()
        _log_transition(world, raw.get("status") or {})
        for announcement in write.announcements:
            self._hands.announcer.tell(run, announcement, memory.status_written)

    async def _end(self, job: JobView, memory: RunMemory) -> None:
        """Let the Job's controller delete the pods that wait for ever; those that ended stay, with their log."""
        jobs = self._hands.caches.jobs
        # A wrong UID alone is accepted by the server: the version makes sure that it is this very Job.
        version = jobs.version(job.namespace, job.name)
        patch = {"metadata": {"uid": job.uid, "resourceVersion": version}, "spec": {"activeDeadlineSeconds": 1}}
        try:
            jobs.put(await self._hands.client.patch(JOBS, job.namespace, job.name, patch))
        except errors.NotFound:
            jobs.drop(job.namespace, job.name, job.uid)
        except errors.Forbidden as error:
            memory.refusals[DELETE] = _refusal(RefusalKind.FORBIDDEN, error, self._hands.clock())
            return
        memory.refusals.pop(DELETE, None)

    async def _delete(self, resource: Resource, informer: Informer[Any], child: Named, memory: RunMemory) -> None:
        try:
            reply = await self._hands.client.delete(resource, child.namespace, child.name, child.uid)
        except errors.Forbidden as error:
            memory.refusals[DELETE] = _refusal(RefusalKind.FORBIDDEN, error, self._hands.clock())
            return
        except (errors.NotFound, errors.Conflict):
            # It is gone, or another one has its name: ours is gone.
            reply = {}
        memory.refusals.pop(DELETE, None)
        if reply.get("kind") == resource.kind:
            informer.put(reply)
        else:
            informer.drop(child.namespace, child.name, child.uid)


def _is_ours(child: Child, found: dict[str, Any], world: World) -> bool:
    """Whether an object that has a child's name is that child; one that `observe` does not count is not.

    A claim that outlives its run has no owner, so there the label must do.
    """
    if label_of_run(found) != world.run.uid:
        return False
    if child is Child.CLAIM:
        return True
    if child is Child.JOB:
        return world.run.uid in owners_of(found)
    return controller_of(found) == world.run.uid


def _refusal(kind: RefusalKind, error: errors.ApiError, now: datetime) -> Refusal:
    if isinstance(error, errors.Forbidden):
        return Refusal(kind, f"the operator may not {error.verb} {error.resource}: {error.message}", now)
    return Refusal(kind, error.message, now)


def _log_transition(world: World, status: dict[str, Any]) -> None:
    before, after = world.run.status.phase, status.get("phase")
    if before != after:
        place = f"{world.run.namespace}/{world.run.name}"
        log.info("%s: %s -> %s (%s) %s", place, before or "new", after, status.get("reason"), status.get("message"))
