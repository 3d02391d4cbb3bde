"""Whether the run can be executed here and now; if not it is Rejected, and goes on by itself when it can.

What is looked at is in `acceptance_checks`, one file each. Everything that needs no look-up is refused by the CRD
already. Once a child exists a run stays accepted.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from tuning_operator.api.conditions import Condition, ConditionType, Phase, Reason
from tuning_operator.engine.contribution import (
    CONDITION_BYTES,
    MESSAGE_BYTES,
    Contribution,
    condition,
    listed,
)
from tuning_operator.engine.policies.acceptance_checks import CHECKS, config_maps
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import Child, Refusal, RefusalKind, World
from tuning_operator.settings import Settings

LOOK_AGAIN = timedelta(seconds=5)
"""Between two looks at what a rejected run waits for, as far as the local copies tell."""
READ_AGAIN = timedelta(seconds=5)
"""Between two reads of a ConfigMap that a rejected run waits for."""
FRESH = timedelta(seconds=60)
"""Age at which a ConfigMap that was there is read again before anything is made: a run may have waited for long."""
TRY_AGAIN = timedelta(seconds=300)
"""Before a RayCluster that the server refused is tried again: only an administrator can have changed the answer."""

NO_RIGHT = timedelta(seconds=60)
"""Before a read without the right to it is tried again."""
READ = "read"
"""Key of a refused read in `Notes.refusals`."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """Reject, or ask for the ConfigMaps that must be read first."""
    if world.has_children:
        return None
    no_right = _refused_read(world)
    due = _due_reads(world, settings)
    if due and no_right is None:
        return Contribution(read=due, final=True)
    problems = [problem for check in CHECKS for problem in check(world, settings)]
    if problems:
        return _rejected(problems, _next_look(world, settings, no_right), no_right)
    refused = _refused(world)
    stale = config_maps.last_read(world, settings, world.now - FRESH)
    if refused is not None or not (due or stale):
        return refused
    return Contribution(read=stale, final=True) if no_right is None else _unreadable(no_right)


def _due_reads(world: World, settings: Settings) -> tuple[str, ...]:
    """ConfigMaps that were never read, and those that lacked something a while ago."""
    lacking = config_maps.missing(world, settings)
    old = {reference.name for reference in lacking if world.now - reference.read_at >= READ_AGAIN}
    return tuple(sorted(old | {*config_maps.unread(world, settings)}))


def _next_look(world: World, settings: Settings, no_right: Refusal | None) -> datetime:
    """When something may have changed that nobody tells us; reads without the right to them come later."""
    reads = [reference.read_at + READ_AGAIN for reference in config_maps.missing(world, settings)]
    return min([world.now + LOOK_AGAIN, *(reads if no_right is None else [no_right.at + NO_RIGHT])])


def _refused_read(world: World) -> Refusal | None:
    """A read that the operator had no right to a short while ago."""
    refusal = world.notes.refusals.get(READ)
    return None if refusal is None or world.now >= refusal.at + NO_RIGHT else refusal


def _unreadable(refusal: Refusal) -> Contribution:
    """Nothing that is known is wrong, but not all is known."""
    unknown = condition(ConditionType.ACCEPTED, None, Reason.FORBIDDEN, refusal.message)
    return Contribution(
        conditions=(unknown, _lacks_right(refusal)),
        reason=Reason.FORBIDDEN,
        message=refusal.message,
        due=refusal.at + NO_RIGHT,
        final=True,
    )


def _lacks_right(refusal: Refusal) -> Condition:
    return condition(ConditionType.DEGRADED, True, Reason.FORBIDDEN, refusal.message)


def _refused(world: World) -> Contribution | None:
    """A RayCluster that the API server will not have: no child exists yet, so the run is not accepted."""
    refusal = world.notes.refusals.get(Child.CLUSTER)
    if refusal is None or refusal.kind is RefusalKind.FORBIDDEN or world.now >= refusal.at + TRY_AGAIN:
        return None
    due = refusal.at + TRY_AGAIN
    if refusal.kind is RefusalKind.NAME_CONFLICT:
        return _rejected([Problem(Reason.NAME_CONFLICT, refusal.message)], due)
    cluster = world.run.spec.cluster
    patched = any(pod.pod_template_patch for pod in (cluster.head, *cluster.workers))
    advice = ": correct `podTemplatePatch` of head or workers" if patched else ""
    text = f"the API server refuses the RayCluster of the run: {refusal.message}{advice}"
    return _rejected([Problem(Reason.INVALID, text)], due)


def _rejected(problems: Sequence[Problem], due: datetime, no_right: Refusal | None = None) -> Contribution:
    """All that is wrong at once, so that a user need not find it out one by one; the first gives the reason."""
    reason = problems[0].reason
    messages = tuple(dict.fromkeys(problem.message for problem in problems))
    accepted = condition(ConditionType.ACCEPTED, False, reason, listed(messages, CONDITION_BYTES))
    admitted = condition(ConditionType.ADMITTED, False, reason, "the run is not accepted")
    return Contribution(
        phase=Phase.REJECTED,
        reason=reason,
        message=listed(messages, MESSAGE_BYTES),
        conditions=(accepted, admitted, *([_lacks_right(no_right)] if no_right else ())),
        due=due,
        final=True,
    )
