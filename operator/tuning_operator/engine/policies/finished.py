"""An ended run: its cluster is given back at once; Job, log and claim stay."""

from tuning_operator.engine.contribution import Contribution
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def decide(world: World, settings: Settings) -> Contribution | None:
    """Delete what is left of the cluster of a run whose terminal status is written."""
    phase = world.run.status.phase
    if phase is None or not phase.terminal:
        return None
    left = world.cluster is not None and not world.cluster.deleting
    return Contribution(delete_cluster=left, final=True)
