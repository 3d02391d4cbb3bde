"""What keeps pods from running is shown in the status, with the container's own reason.

Pods pass through many states on their way, so only what has not changed for a while is written.
"""

from datetime import datetime, timedelta

from tuning_contract.causes import Cause
from tuning_operator.api.conditions import Condition, ConditionStatus, ConditionType, Reason, find
from tuning_operator.engine import diagnosis, facts
from tuning_operator.engine.contribution import CONDITION_BYTES, Contribution, condition, cut
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings

SETTLED = timedelta(seconds=10)
"""Age at which a reason is worth a write."""
_TROUBLES = frozenset({*Cause, Reason.POD_NOT_CREATED})


def decide(world: World, settings: Settings) -> Contribution | None:
    """Show the trouble, or that it is over, once it has not changed for ten seconds."""
    trouble = diagnosis.trouble_of(world)
    shown = _shown(world)
    deadline = facts.since(world, facts.TROUBLE) + SETTLED
    if trouble is None and shown is None:
        look = diagnosis.next_look(world)
        return Contribution(due=look) if look else None
    if world.now < deadline:
        return _as_before(world, shown, deadline) if shown else Contribution(due=deadline)
    if trouble is None:
        return None
    if shown is not None and trouble.is_told_by(shown):
        # The kubelet alternates between two sentences for one trouble: the first one stays.
        return _as_before(world, shown)
    degraded = condition(ConditionType.DEGRADED, True, trouble.cause, trouble.message)
    return Contribution(conditions=(degraded,), reason=trouble.cause, message=trouble.message)


def _shown(world: World) -> Condition | None:
    """The trouble that the status shows now."""
    degraded = find(world.run.status.conditions, ConditionType.DEGRADED)
    if degraded is None or degraded.status is not ConditionStatus.TRUE:
        return None
    if degraded.reason not in _TROUBLES:
        return None
    return degraded


def _as_before(world: World, shown: Condition, due: datetime | None = None) -> Contribution:
    """What is shown already; in full where the status still has it so, since a condition's message is cut shorter."""
    full = world.run.status.message or ""
    message = full if cut(full, CONDITION_BYTES) == shown.message else shown.message
    return Contribution(conditions=(shown,), reason=shown.reason, message=message, due=due)
