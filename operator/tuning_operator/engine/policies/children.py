"""RayCluster, ConfigMap and claim. Each is made once and never changed or made again.

ConfigMap and claim serve all attempts, the RayCluster is the attempt's own. Before a later attempt what it needs is
looked at again: a node pool may have gone since the run was accepted.
"""

from dataclasses import replace
from datetime import timedelta

from tuning_contract.causes import Cause
from tuning_operator.api.conditions import ConditionType, Reason
from tuning_operator.desired import names
from tuning_operator.engine import release
from tuning_operator.engine.contribution import Contribution, Verdict, condition
from tuning_operator.engine.policies.acceptance_checks import LATER_CHECKS
from tuning_operator.engine.world import Child, Refusal, RefusalKind, World
from tuning_operator.settings import Settings

TRY_AGAIN = timedelta(seconds=60)
"""Before a refused child is tried again: somebody has to act first."""
LOOK_AGAIN = timedelta(seconds=5)
"""Between two looks at what a later attempt waits for."""


def missing(world: World) -> tuple[Child, ...]:
    """Children that the attempt still lacks, in the order in which they are made.

    An observed RayCluster means that all of them were made: the status that names it was written after them.
    The RayCluster goes first, since it is what takes long; its pods wait for the claim. Where the claim was there
    before, nothing would hold the pods back, so the ConfigMap goes first.
    """
    if world.run.status.attempt.ray_cluster_uid:
        return ()
    cluster = () if world.cluster is not None else (Child.CLUSTER,)
    config = () if world.notes.config_made else (Child.CONFIG,)
    if world.run.spec.checkpoint.volume.claim_name:
        return config + cluster
    claim = () if world.claim_found and not world.claim_is_foreign else (Child.CLAIM,)
    return cluster + config + claim


def decide(world: World, settings: Settings) -> Contribution | None:
    """Make what is missing, and show why it cannot be made."""
    lacks = missing(world)
    if not lacks:
        return None
    if world.run.spec.model.run and world.model_source is None and not {Child.CLUSTER, Child.CONFIG}.isdisjoint(lacks):
        # It was there when the run was accepted, and nothing was recorded yet.
        text = f"TuningRun {world.run.spec.model.run.name} was deleted before this run, which needs its model, was made"
        return Contribution(verdict=Verdict(Cause.CONFIG_INVALID, text), final=True)
    if world.claim_is_foreign and Child.CLAIM in lacks:
        return _conflict(world, "the PersistentVolumeClaim of the run's name belongs to somebody else")
    if world.attempt > 1:
        hindered = _hindered(world, settings, lacks)
        if hindered is not None:
            return hindered
    refused = [(child, world.notes.refusals[child]) for child in lacks if child in world.notes.refusals]
    for child, refusal in refused:
        if refusal.kind is RefusalKind.INVALID and child is not Child.CLUSTER:
            verdict = Verdict(Cause.CONFIG_INVALID, f"the API server refuses the run's {child}: {refusal.message}")
            return Contribution(verdict=verdict, final=True)
    waiting = [refusal for _, refusal in refused if world.now < refusal.at + TRY_AGAIN]
    if waiting:
        return _refused(world, waiting[0])
    return Contribution(create=lacks)


def _hindered(world: World, settings: Settings, lacks: tuple[Child, ...]) -> Contribution | None:
    """What keeps a later attempt from being made: something has gone, or an earlier RayCluster has not."""
    if Child.CLAIM in lacks and world.run.status.checkpoint.path:
        text = f"PersistentVolumeClaim {names.claim(world.run)}, with the checkpoints of the run, was deleted"
        return Contribution(verdict=Verdict(Cause.STORAGE_FAILED, text, fatal=True), final=True)
    disposal = release.disposal_of_clusters(world)
    if disposal.earlier:
        return release.dispose(world, replace(disposal, cluster=False))
    if world.earlier_clusters:
        return Contribution(due=world.now + TRY_AGAIN, final=True)
    problem = next((problem for check in LATER_CHECKS for problem in check(world, settings)), None)
    if problem is None:
        return None
    shown = condition(ConditionType.DEGRADED, True, problem.reason, problem.message)
    due = world.now + LOOK_AGAIN
    return Contribution(conditions=(shown,), reason=problem.reason, message=problem.message, due=due, final=True)


def _refused(world: World, refusal: Refusal) -> Contribution:
    reason = Reason.NAME_CONFLICT if refusal.kind is RefusalKind.NAME_CONFLICT else Reason.FORBIDDEN
    shown = [condition(ConditionType.DEGRADED, True, reason, refusal.message)]
    if reason is Reason.FORBIDDEN and not world.has_children:
        # Whether the run can be executed here is open until the first child is made.
        shown.append(condition(ConditionType.ACCEPTED, None, reason, refusal.message))
    return Contribution(
        conditions=tuple(shown), reason=reason, message=refusal.message, due=refusal.at + TRY_AGAIN, final=True
    )


def _conflict(world: World, message: str) -> Contribution:
    shown = condition(ConditionType.DEGRADED, True, Reason.NAME_CONFLICT, message)
    return Contribution(
        conditions=(shown,), reason=Reason.NAME_CONFLICT, message=message, due=world.now + TRY_AGAIN, final=True
    )
