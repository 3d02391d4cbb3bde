"""Whether the run can be executed here and now; if not it is Rejected, and goes on by itself when it can.

What is looked at is in `acceptance_checks`, one file each. Everything that needs no look-up is refused by the CRD
already. Once a child exists a run stays accepted.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from tuning_operator.api.conditions import ConditionType, Phase, Reason
from tuning_operator.engine.contribution import Contribution, condition
from tuning_operator.engine.policies.acceptance_checks import CHECKS, config_maps
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import Child, RefusalKind, World
from tuning_operator.settings import Settings

LOOK_AGAIN = timedelta(seconds=3)
"""Between two looks at what a rejected run waits for, as far as the local copies tell."""
READ_AGAIN = timedelta(seconds=5)
"""Between two reads of a ConfigMap that a rejected run waits for."""
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
    problems = [problem for check in CHECKS for problem in check(world, settings)]
    if problems:
        return _rejected(problems, world.now + LOOK_AGAIN)
    unread = config_maps.unread(world, settings)
    if unread:
        return _unreadable(world) or Contribution(read=unread, final=True)
    missing = config_maps.missing(world, settings)
    if missing:
        old = tuple(sorted(reference.name for reference in missing if world.now - reference.read_at >= READ_AGAIN))
        due = min(reference.read_at for reference in missing) + READ_AGAIN
        found = list(config_maps.check(world, settings))
        return Contribution(read=old, final=True) if old else _rejected(found, due)
    return _refused(world)


def _unreadable(world: World) -> Contribution | None:
    """A read that the operator has no right to."""
    refusal = world.notes.refusals.get(READ)
    if refusal is None or world.now >= refusal.at + NO_RIGHT:
        return None
    shown = condition(ConditionType.DEGRADED, True, Reason.FORBIDDEN, refusal.message)
    return Contribution(
        conditions=(shown,),
        reason=Reason.FORBIDDEN,
        message=refusal.message,
        due=refusal.at + NO_RIGHT,
        final=True,
    )


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


def _rejected(problems: Sequence[Problem], due: datetime) -> Contribution:
    """All that is wrong at once, so that a user need not find it out one by one; the first gives the reason."""
    reason = problems[0].reason
    message = "; ".join(dict.fromkeys(problem.message for problem in problems))
    accepted = condition(ConditionType.ACCEPTED, False, reason, message)
    return Contribution(
        phase=Phase.REJECTED,
        reason=reason,
        message=message,
        conditions=(accepted, condition(ConditionType.ADMITTED, False, reason, "the run is not accepted")),
        due=due,
        final=True,
    )
