"""Pods that cannot start: some troubles pass, others need somebody to act, and are given up after a while.

A head that ends before it was ready is made again by KubeRay, at once and for ever; so the third one is the last.
"""

from datetime import UTC, datetime, timedelta

from tuning_contract.causes import Cause
from tuning_operator.api.conditions import ConditionType, find
from tuning_operator.engine import diagnosis, evidence, facts
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.diagnosis import Trouble
from tuning_operator.engine.world import PodView, World
from tuning_operator.settings import Settings

HEADS = 3
"""Heads that may end before the cluster was ready."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """Fail a run whose heads end one after the other, or whose pods are in hopeless trouble for too long."""
    ended = _ended_heads(world)
    if len({pod.uid for pod in ended}) >= HEADS:
        cause, words = diagnosis.ended_by(ended, evidence.RAY_HEAD)
        text = f"{HEADS} head pods ended before the cluster was ready: {words}"
        return Contribution(verdict=Verdict(cause, text), final=True)
    trouble = diagnosis.trouble_of(world)
    if trouble is None or not (trouble.hopeless and trouble.vital and isinstance(trouble.cause, Cause)):
        return None
    began = min(facts.since(world, facts.TROUBLE), _shown_since(world, trouble))
    deadline = began + timedelta(seconds=settings.startup_patience_seconds)
    if world.now < deadline:
        return Contribution(due=deadline)
    seconds = int((world.now - began).total_seconds())
    return Contribution(verdict=Verdict(trouble.cause, f"{trouble.message} (for {seconds} s)"), final=True)


def _ended_heads(world: World) -> list[PodView]:
    """Heads that ended by themselves before training began, oldest first."""
    if world.job_made:
        return []
    pods = [pod for pod in (*world.notes.departed, *world.pods) if pod.attempt == world.attempt]
    return [pod for pod in pods if pod.component == "head" and pod.phase == "Failed"]


def _shown_since(world: World, trouble: Trouble) -> datetime:
    """Since when the status shows this trouble: a restart of the operator does not start the wait anew."""
    shown = find(world.run.status.conditions, ConditionType.DEGRADED)
    if shown is None or shown.last_transition_time is None or not trouble.is_told_by(shown):
        return world.now
    return datetime.fromisoformat(shown.last_transition_time).astimezone(UTC)
