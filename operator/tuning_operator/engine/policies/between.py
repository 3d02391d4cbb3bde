"""Between two attempts: the old cluster is given back and awaited, then the next attempt begins, or the run rests.

The present attempt is in the history by then, and never comes back. Its number is only replaced when its RayCluster
and its pods are gone, so that two attempts never live at once; and before anything of the next one is made.
"""

from tuning_contract.causes import Cause
from tuning_operator.api.conditions import Phase
from tuning_operator.engine import facts, release
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.policies import deadlines
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def decide(world: World, settings: Settings) -> Contribution | None:
    """Give back, wait, and begin anew or rest."""
    if not world.attempt_over:
        return None
    disposal = release.disposal_of_clusters(world)
    if disposal:
        return release.dispose(world, disposal)
    if (
        not world.kuberay_served
        or world.cluster is not None
        or world.earlier_clusters
        or release.standing(world, settings)
    ):
        return Contribution(due=release.look_again(world, settings), final=True)
    status = world.run.status
    rests = world.run.spec.suspend
    if rests and status.phase is Phase.SUSPENDED:
        return Contribution(final=True)
    late = deadlines.already_exceeded(world)
    if late and not rests:
        return Contribution(verdict=Verdict(Cause.DEADLINE_EXCEEDED, late, fatal=True), final=True)
    due = from_text(status.attempt.retry_time)
    if not rests and status.phase is not Phase.SUSPENDED and due is not None and world.now < due:
        return Contribution(due=due, final=True)
    if not facts.is_sure_of_nothing(world):
        return Contribution(look=True, final=True)
    return Contribution(phase=Phase.SUSPENDED, final=True) if rests else Contribution(next_attempt=True, final=True)
