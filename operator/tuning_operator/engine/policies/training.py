"""The Job, made as soon as the cluster is ready, and again when it is lost while the same head lives."""

from tuning_contract.causes import Cause
from tuning_operator.api.conditions import ConditionType, Reason
from tuning_operator.engine.contribution import Contribution, Verdict, condition
from tuning_operator.engine.policies.children import TRY_AGAIN, missing
from tuning_operator.engine.world import Child, RefusalKind, World
from tuning_operator.settings import Settings


def decide(world: World, settings: Settings) -> Contribution | None:
    """Make the Job. That its cluster is still the observed one was judged before."""
    if world.job is not None or missing(world) or world.cluster is None or not world.cluster.ready:
        return None
    workers = min(world.cluster.ready_workers, world.workers_ready)
    if world.head is None or not world.head.serves_ray or workers < world.workers_wanted:
        # The RayCluster says ready, the pods' own watch is behind or ahead: it will wake us.
        return None
    refusal = world.notes.refusals.get(Child.JOB)
    if refusal is None or world.now >= refusal.at + TRY_AGAIN:
        return Contribution(create=(Child.JOB,))
    if refusal.kind is RefusalKind.INVALID:
        verdict = Verdict(Cause.CONFIG_INVALID, f"the API server refuses the run's Job: {refusal.message}")
        return Contribution(verdict=verdict, final=True)
    reason = Reason.NAME_CONFLICT if refusal.kind is RefusalKind.NAME_CONFLICT else Reason.FORBIDDEN
    shown = condition(ConditionType.DEGRADED, True, reason, refusal.message)
    return Contribution(conditions=(shown,), reason=reason, message=refusal.message, due=refusal.at + TRY_AGAIN)
