"""An ended run: its cluster is given back at once; Job, log and claim stay."""

from datetime import timedelta

from tuning_operator.api.conditions import ConditionType, Reason, find, is_true
from tuning_operator.engine.contribution import NOTHING_WRONG, Contribution, condition
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings

DELETE = "delete"
"""Key of a refused clean-up in `Notes.refusals`."""
TRY_AGAIN = timedelta(seconds=60)


def decide(world: World, settings: Settings) -> Contribution | None:
    """Delete what is left of the cluster of a run whose terminal status is written."""
    phase = world.run.status.phase
    if phase is None or not phase.terminal:
        return None
    if world.cluster is None or world.cluster.deleting:
        return _given_back(world)
    refusal = world.notes.refusals.get(DELETE)
    if refusal is None or world.now >= refusal.at + TRY_AGAIN:
        return Contribution(delete_cluster=True, final=True)
    shown = condition(ConditionType.DEGRADED, True, Reason.FORBIDDEN, refusal.message)
    return Contribution(conditions=(shown,), due=refusal.at + TRY_AGAIN, final=True)


def _given_back(world: World) -> Contribution:
    """Nothing is left; a complaint that the cluster could not be deleted is over."""
    degraded = find(world.run.status.conditions, ConditionType.DEGRADED)
    if degraded is None or degraded.reason != Reason.FORBIDDEN:
        return Contribution(final=True)
    if not is_true(world.run.status.conditions, ConditionType.DEGRADED):
        return Contribution(final=True)
    fine = condition(ConditionType.DEGRADED, False, Reason.AS_EXPECTED, NOTHING_WRONG)
    return Contribution(conditions=(fine,), final=True)
