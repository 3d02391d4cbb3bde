"""Pods that cannot start: some troubles pass, others need somebody to act, and are given up after a while."""

from datetime import UTC, datetime, timedelta

from tuning_operator.api.conditions import ConditionType, find
from tuning_operator.engine import diagnosis, facts
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def decide(world: World, settings: Settings) -> Contribution | None:
    """Fail a run whose pods have been in the same hopeless trouble for longer than the installation's patience."""
    trouble = diagnosis.trouble_of(world)
    if trouble is None or not trouble.hopeless:
        return None
    began = min(facts.since(world, facts.TROUBLE), _shown_since(world, trouble.cause))
    deadline = began + timedelta(seconds=settings.startup_patience_seconds)
    if world.now < deadline:
        return Contribution(due=deadline)
    seconds = int((world.now - began).total_seconds())
    return Contribution(verdict=Verdict(trouble.cause, f"{trouble.message} (for {seconds} s)"), final=True)


def _shown_since(world: World, cause: str) -> datetime:
    """Since when the status shows this trouble: a restart of the operator does not start the wait anew."""
    shown = find(world.run.status.conditions, ConditionType.DEGRADED)
    if shown is None or shown.reason != cause or shown.last_transition_time is None:
        return world.now
    return datetime.fromisoformat(shown.last_transition_time).astimezone(UTC)
