"""From the local copies to a `World`: no request is made here.

`reconcile` calls `Observer.observe` at the start of every pass. A label is only a claim, and anybody who may make a
pod in any namespace can write it: what counts for a run lies in its namespace and is owned by it, or by what it owns.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from tuning_operator.api import meta
from tuning_operator.api.conditions import Phase
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.cluster.informer import Informer
from tuning_operator.cluster.kuberay import KubeRay
from tuning_operator.cluster.memory import Memory, RunMemory
from tuning_operator.cluster.projections import RunView
from tuning_operator.desired import names, pod_template
from tuning_operator.engine import facts, references
from tuning_operator.engine.world import ClaimView, ClusterView, JobView, PodView, SourceRun, World
from tuning_operator.errors import SpecRejected
from tuning_operator.settings import Settings

Named = TypeVar("Named", ClusterView, JobView)
_DRIVER = meta.COMPONENT_DRIVER
_ENDED = (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, slots=True)
class Caches:
    """The local copies, one for each kind."""

    runs: Informer[RunView]
    clusters: Informer[ClusterView]
    jobs: Informer[JobView]
    pods: Informer[PodView]
    claims: Informer[ClaimView]

    def all(self) -> tuple[Informer[Any], ...]:
        """Every copy."""
        return self.runs, self.clusters, self.jobs, self.pods, self.claims

    def controls(self, uid: str, pod: PodView) -> bool:
        """Whether a pod is controlled by a RayCluster or Job of the run, as it is seen or as the status has it."""
        for view in self.runs.of(uid):
            attempt = view.parsed()["status"].get("attempt") or {}
            owners = {attempt.get("rayClusterUID"), attempt.get("jobUID")}
            owners |= {cluster.uid for cluster in self.clusters.of(uid) if cluster.owner == uid}
            owners |= {job.uid for job in self.jobs.of(uid) if uid in job.owners}
            return view.namespace == pod.namespace and bool(pod.owner) and pod.owner in owners
        return False

    def head_address(self, view: RunView) -> str:
        """Where the sidecar of a run's recorded RayCluster listens; empty while no head serves."""
        cluster = (view.parsed()["status"].get("attempt") or {}).get("rayClusterUID")
        heads = [
            pod
            for pod in self.pods.of(view.uid)
            if pod.component == meta.COMPONENT_HEAD
            and pod.ip
            and pod.alive
            and (pod.namespace, pod.owner) == (view.namespace, cluster)
        ]
        return max(heads, key=lambda pod: (pod.serves_ray, pod.name)).ip if heads else ""


class Observer:
    """Gathers worlds."""

    def __init__(self, caches: Caches, memory: Memory, kuberay: KubeRay, settings: Settings) -> None:
        """Read from these."""
        self._caches = caches
        self._memory = memory
        self._kuberay = kuberay
        self._settings = settings

    def find(self, uid: str) -> RunView | None:
        """The run of that UID, as text."""
        return next(iter(self._caches.runs.of(uid)), None)

    def observe(self, view: RunView, now: datetime) -> World:
        """Gather all that belongs to a run.

        Raises:
            SpecRejected: The object cannot be read.
        """
        run = TuningRun.from_object(view.parsed())
        number = run.status.attempt.number or 1
        name = names.attempt(run, number)
        memory = self._memory.of(run.uid, now)
        memory.begin(number)
        clusters = [item for item in self._caches.clusters.of(run.uid) if item.owner == run.uid]
        cluster = _named(clusters, run, name)
        owner = run.status.attempt.ray_cluster_uid or (cluster.uid if cluster else "")
        jobs = [item for item in self._caches.jobs.of(run.uid) if {run.uid, owner} & set(item.owners)]
        job = _named(jobs, run, name)
        if view.phase in _ENDED and (job is None or job.complete or job.failed):
            memory.rest()
        notes = memory.notes()
        # Until the status names the Job that was made in a lost one's place, the pods of both speak for the attempt.
        drivers = {uid for uid in (run.status.attempt.job_uid, job.uid if job else None) if uid}

        def ours(pods: Iterable[PodView]) -> tuple[PodView, ...]:
            return tuple(pod for pod in pods if pod.attempt == number and _is_owned(pod, run, owner, drivers))

        world = World(
            now=now,
            run=run,
            notes=replace(notes, departed=ours(notes.departed)),
            kuberay_served=self._kuberay.served,
            kuberay_lacks=self._kuberay.lacks,
            cluster=cluster,
            job=job,
            pods=ours(self._caches.pods.of(run.uid)),
            source_run=self._source_run(run),
            earlier_clusters=tuple(view for view in clusters if _is_earlier(view, run, number)),
            earlier_jobs=tuple(view for view in jobs if _is_earlier(view, run, number)),
        )
        world = replace(world, claims=self._claims(world))
        if memory.note_signatures(facts.signatures(world), now):
            world = replace(world, notes=replace(world.notes, since=memory.notes().since))
        return world if world.has_children else self._with_patch_problems(world, memory)

    def _with_patch_problems(self, world: World, memory: RunMemory) -> World:
        """Look at the patches once for each generation: all pods are built for it, and a run may wait for long."""
        generation = world.run.metadata.generation
        if memory.patch_problems is None or memory.patch_problems[0] != generation:
            memory.patch_problems = generation, pod_template.problems(world.run, self._settings)
        return replace(world, notes=replace(world.notes, patch_problems=memory.patch_problems[1]))

    def _claims(self, world: World) -> dict[str, ClaimView]:
        """The claims that a run needs and that are there."""
        run = world.run
        wanted = {use.name for use in references.claims(run, self._settings, world.model_source)} | {names.claim(run)}
        found = {name: self._caches.claims.find(run.namespace, name) for name in sorted(wanted)}
        return {name: view for name, view in found.items() if view is not None}

    def _source_run(self, run: TuningRun) -> SourceRun | None:
        """The run of which this one takes the model, until that is recorded."""
        wanted = run.spec.model.run
        view = self._caches.runs.find(run.namespace, wanted.name) if wanted else None
        if view is None or run.status.model_source.run_uid:
            return None
        try:
            source = TuningRun.from_object(view.parsed())
        except SpecRejected:
            # It says so itself; as a source it is one that has not succeeded.
            return SourceRun(view.name, view.uid, Phase.REJECTED, "")
        return SourceRun(view.name, view.uid, view.phase, names.claim(source))


def _named(views: list[Named], run: TuningRun, name: str) -> Named | None:
    return next((view for view in views if (view.namespace, view.name) == (run.namespace, name)), None)


def _is_earlier(view: ClusterView | JobView, run: TuningRun, number: int) -> bool:
    """Whether an object is of an attempt before this one. One of a later attempt tells that our view of the run is old:
    nothing may be done to it.
    """
    prefix, _, suffix = view.name.rpartition("-")
    mine = (view.namespace, prefix) == (run.namespace, names.child(run))
    return mine and suffix.isdecimal() and int(suffix) < number


def _is_owned(pod: PodView, run: TuningRun, cluster: str, jobs: set[str]) -> bool:
    """Whether a pod was made by the attempt's Job or, any but the driver, by its RayCluster."""
    owned = pod.owner in jobs if pod.component == _DRIVER else pod.owner == cluster
    return bool(pod.owner) and owned and pod.namespace == run.namespace
