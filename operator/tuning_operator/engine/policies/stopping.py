"""A training that we have asked to stop: it is waited for, but not for longer than its grace.

What the driver says meanwhile is heard by the policies before this one. A training that cannot be asked, or does not
listen, is asked once more by the preStop hook of its pods when its cluster is deleted.
"""

from datetime import timedelta

from tuning_operator.engine import evidence
from tuning_operator.engine.contribution import Contribution
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import StopAnswer, World
from tuning_operator.settings import Settings

MARGIN = timedelta(seconds=30)
"""Beyond the grace, for the word to reach us."""
ASK_AGAIN = timedelta(seconds=5)
"""Before a sidecar that did not answer is asked again."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """Ask, wait, and end the attempt when the time is over."""
    asked = from_text(world.run.status.attempt.stop_time)
    if asked is None:
        return None
    deadline = asked + timedelta(seconds=world.run.spec.deadlines.stop_grace_seconds) + MARGIN
    answer, last = world.notes.stop, world.notes.stop_asked_at
    if not settings.stop_key or answer is StopAnswer.REFUSED:
        return _over(world, "it is stopped with its pods")
    if world.now >= deadline:
        return _over(world, f"it did not stop within {world.run.spec.deadlines.stop_grace_seconds} s")
    if answer is StopAnswer.TAKEN:
        return Contribution(due=deadline, final=True)
    if last is not None and world.now < last + ASK_AGAIN:
        return Contribution(due=min(deadline, last + ASK_AGAIN), final=True)
    return Contribution(ask_stop=True, due=min(deadline, world.now + ASK_AGAIN), final=True)


def _over(world: World, how: str) -> Contribution:
    return Contribution(verdict=evidence.stopped(world, how), final=True)
