"""Verdict (b): the attempt's cluster, or its head, is lost. Nothing of it is made again.

The driver gives no verdict on a loss: it waits for the head to come back, and ends without one. So while it lives it is
heard only for a moment, in case it had read a complete result before.
"""

from datetime import timedelta

from tuning_operator.engine import diagnosis, evidence, facts
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.world import PodView, World
from tuning_operator.settings import Settings

HEARING = timedelta(seconds=10)
"""How long a living driver is waited for: only a complete result that it has read already can still come."""
LATE_POD = timedelta(seconds=5)
"""RayClusters and pods are watched apart: a head that was seen to end may have been replaced by one that is ready."""
UNSEEN_POD = timedelta(seconds=120)
"""For a head of which nothing was ever seen: a watch that is dead, which is noticed only after a while, would explain
it as well."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """End the run with what became of its head."""
    lost = evidence.loss_of(world)
    if not lost:
        return None
    if evidence.lost_before_the_job(world):
        return _before_the_job(world, lost)
    word = evidence.last_word(world)
    deadline = facts.since(world, facts.LOSS) + HEARING
    if word is None and evidence.driver_is_alive(world) and world.now < deadline:
        return Contribution(due=deadline, final=True)
    cause, words = diagnosis.ended_by(_heads(world), evidence.RAY_HEAD)
    step = word.message.step if word else None
    checkpoint = word.message.checkpoint if word else ""
    message = f"{lost}: {words}" if words else lost
    return Contribution(verdict=Verdict(cause, message, step, checkpoint=checkpoint), final=True)


def _before_the_job(world: World, lost: str) -> Contribution:
    # While there is no head at all the cluster's word alone tells that there was one.
    deadline = facts.since(world, facts.LOSS) + (LATE_POD if _heads(world) else UNSEEN_POD)
    if world.now < deadline:
        return Contribution(due=deadline)
    # The last one is what the cluster was complete with; those before it were replaced.
    last = [pod for pod in _heads(world) if pod.uid == _heads(world)[-1].uid]
    cause, words = diagnosis.ended_by(last, evidence.RAY_HEAD)
    return Contribution(verdict=Verdict(cause, f"{lost}: {words}" if words else lost), final=True)


def _heads(world: World) -> list[PodView]:
    """Every view of the head on which training began; of all heads if none of that one is left."""
    departed = [pod for pod in world.notes.departed if pod.attempt == world.attempt]
    heads = [pod for pod in (*departed, *world.pods) if pod.component == "head"]
    recorded = evidence.recorded_head(world)
    return [pod for pod in heads if pod.uid == recorded] or heads
