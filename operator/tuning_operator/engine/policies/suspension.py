"""`spec.suspend`: before anything is made the run rests at once; later its attempt is brought to an end first.

How an attempt is stopped is in `stopping`, what follows in `between`.
"""

from tuning_operator.api.conditions import Phase, Reason
from tuning_operator.engine import facts, release
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def decide(world: World, settings: Settings) -> Contribution | None:
    """Rest, end an attempt that does not train yet, or have the training stopped."""
    attempt = world.run.status.attempt
    if not world.run.spec.suspend or attempt.stop_time is not None:
        return None
    if world.cluster is None and world.job is None and not attempt.ray_cluster_uid:
        return _rest(world, settings)
    if not world.job_made:
        verdict = Verdict(None, "the run was suspended before the training began", stopped=True)
        return Contribution(verdict=verdict, final=True)
    return Contribution(stop=Reason.SUSPENDED, final=True)


def _rest(world: World, settings: Settings) -> Contribution:
    """Rest, once it is sure that the answer to a RayCluster's making was not lost, or has not been heard of yet."""
    if release.standing(world, settings):
        # Of a RayCluster that somebody deleted before the status had named it.
        return Contribution(phase=Phase.SUSPENDING, due=release.look_again(world, settings), final=True)
    status = world.run.status
    told = status.phase is Phase.SUSPENDED and status.observed_generation == world.run.metadata.generation
    sure = told or facts.is_sure_of_nothing(world)
    return Contribution(phase=Phase.SUSPENDED, final=True) if sure else Contribution(look=True, final=True)
