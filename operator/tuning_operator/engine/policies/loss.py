"""Verdict (b): the attempt's cluster, or its head, is lost. Nothing of it is made again.

The driver gives no verdict on a loss: it waits for the head to come back, and ends without one. So while it lives it is
heard only for a moment, in case it had read a complete result before.
"""

from datetime import timedelta

from tuning_contract.result import STOPPED
from tuning_operator.engine import diagnosis, evidence, facts
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.policies.stopping import MARGIN
from tuning_operator.engine.world import World
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
    deadline = facts.since(world, facts.LOSS) + _hearing(world)
    if word is None and evidence.driver_is_alive(world) and world.now < deadline:
        return Contribution(due=deadline, final=True)
    cause, words = evidence.end_of_head(world)
    message = f"{lost}: {words}" if words else lost
    if word is None:
        return Contribution(verdict=Verdict(cause, message), final=True)
    told = word.message
    if told.outcome == STOPPED:
        if world.run.status.attempt.stop_reason:
            return Contribution(verdict=evidence.stopped(world, told.message or "it has stopped", told), final=True)
        message = f"{message}; {told.message}" if told.message else message
    return Contribution(verdict=Verdict(cause, message, told.step, checkpoint=told.checkpoint), final=True)


def _hearing(world: World) -> timedelta:
    """How long a living driver is waited for: a head that is evicted or preempted saves before it goes."""
    saves = world.head is not None and world.head.deleting and diagnosis.has_its_grace(world.head)
    grace = timedelta(seconds=world.run.spec.deadlines.stop_grace_seconds) + MARGIN
    return grace if saves else HEARING


def _before_the_job(world: World, lost: str) -> Contribution:
    # While there is no head at all the cluster's word alone tells that there was one.
    deadline = facts.since(world, facts.LOSS) + (LATE_POD if evidence.heads(world) else UNSEEN_POD)
    if world.now < deadline:
        return Contribution(due=deadline)
    # The last one is what the cluster was complete with; those before it were replaced.
    last = [pod for pod in evidence.heads(world) if pod.uid == evidence.heads(world)[-1].uid]
    cause, words = diagnosis.ended_by(last, evidence.RAY_HEAD)
    return Contribution(verdict=Verdict(cause, f"{lost}: {words}" if words else lost), final=True)
