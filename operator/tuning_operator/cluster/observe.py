"""From the local copies to a `World`: no request is made here.

`reconcile` calls `Observer.observe` at the start of every pass.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.cluster.informer import Informer
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.projections import ClaimView, RunView
from tuning_operator.desired import names
from tuning_operator.engine import facts
from tuning_operator.engine.world import ClusterView, JobView, PodView, World

Named = TypeVar("Named", ClusterView, JobView)


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


class Observer:
    """Gathers worlds."""

    def __init__(self, caches: Caches, memory: Memory) -> None:
        """Read from these."""
        self._caches = caches
        self._memory = memory

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
        name, claim_name = names.attempt(run, number), names.claim(run)
        claim = self._caches.claims.find(run.namespace, claim_name)
        made_by_us = run.spec.checkpoint.volume.claim_name is None
        memory = self._memory.of(run.uid, now)
        world = World(
            now=now,
            run=run,
            notes=memory.notes(),
            kuberay_served=self._caches.clusters.served,
            cluster=_named(self._caches.clusters.of(run.uid), name),
            job=_named(self._caches.jobs.of(run.uid), name),
            pods=tuple(pod for pod in self._caches.pods.of(run.uid) if pod.attempt == number),
            claim_found=claim is not None,
            claim_is_foreign=made_by_us and claim is not None and claim.run_uid != run.uid,
        )
        if memory.note_signatures(facts.signatures(world), now):
            world = replace(world, notes=memory.notes())
        return world


def _named(views: list[Named], name: str) -> Named | None:
    return next((view for view in views if view.name == name), None)
