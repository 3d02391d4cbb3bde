"""Facts whose age matters: the observer notes since when each has its present value.

Pure: a fact is a short text, equal as long as nothing changed. `Notes.since` holds the times.
"""

from datetime import datetime

from tuning_operator.engine import diagnosis, evidence, release
from tuning_operator.engine.world import World

TROUBLE = "trouble"
LOSS = "loss"
SILENCE = "silence"
REMAINS = "remains"


def signatures(world: World) -> dict[str, str]:
    """The present value of each fact."""
    trouble = diagnosis.trouble_of(world)
    return {
        TROUBLE: trouble.signature if trouble else "",
        LOSS: evidence.loss_of(world),
        SILENCE: "silent" if evidence.job_ended_in_silence(world) else "",
        REMAINS: release.remains(world),
    }


def since(world: World, fact: str) -> datetime:
    """Since when the fact has its present value, as far as this process knows."""
    return world.notes.since.get(fact, world.now)


def is_sure_of_nothing(world: World) -> bool:
    """Whether the API server itself has said that nothing is left: a local copy may lag behind another."""
    looked = world.notes.looked_at
    return looked is not None and looked >= since(world, REMAINS)
