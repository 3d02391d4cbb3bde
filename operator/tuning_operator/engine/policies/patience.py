"""Pods that cannot start: some troubles pass, others need somebody to act, and are given up after a while.

A head or worker that ends before the cluster was ready is made again by KubeRay, at once and for ever; so the third
one is the last.
"""

from datetime import UTC, datetime, timedelta

from tuning_contract.causes import Cause
from tuning_operator.api import meta
from tuning_operator.api.conditions import ConditionType, find
from tuning_operator.desired.pods import RAY_CONTAINER, RAY_WORKER_CONTAINER
from tuning_operator.engine import diagnosis, facts
from tuning_operator.engine.causes import CAUSES, Patience
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.diagnosis import Trouble
from tuning_operator.engine.world import PodView, World
from tuning_operator.settings import Settings

PODS = 3
"""Heads, or workers, that may end before the cluster was ready."""
_MADE_AGAIN = (
    (meta.COMPONENT_HEAD, RAY_CONTAINER, Cause.HEAD_LOST),
    (meta.COMPONENT_WORKER, RAY_WORKER_CONTAINER, Cause.WORKER_LOST),
)
"""What KubeRay makes again: the component, its Ray container, and the cause when nothing better is known."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """Fail a run whose heads or workers end one after the other, or whose pods are in hopeless trouble for too long."""
    for component, container, otherwise in _MADE_AGAIN:
        ended = _ended(world, component)
        if len({pod.uid for pod in ended}) >= PODS:
            cause, words = diagnosis.ended_by(ended, container, otherwise)
            text = f"{PODS} {component} pods ended before the cluster was ready: {words}"
            return Contribution(verdict=Verdict(cause, text), final=True)
    trouble = diagnosis.trouble_of(world)
    if trouble is None or not (trouble.hopeless and trouble.vital and isinstance(trouble.cause, Cause)):
        return None
    if CAUSES[trouble.cause].patience is not Patience.STARTUP:
        return None
    began = min(facts.since(world, facts.TROUBLE), _shown_since(world, trouble))
    deadline = began + timedelta(seconds=settings.startup_patience_seconds)
    if world.now < deadline:
        return Contribution(due=deadline)
    seconds = int((world.now - began).total_seconds())
    return Contribution(verdict=Verdict(trouble.cause, f"{trouble.message} (for {seconds} s)"), final=True)


def _ended(world: World, component: str) -> list[PodView]:
    """Pods of a component that ended by themselves before training began, oldest first."""
    if world.job_made:
        return []
    pods = [pod for pod in (*world.notes.departed, *world.pods) if pod.attempt == world.attempt]
    ended = [pod for pod in pods if pod.component == component and pod.phase == "Failed"]
    # Of many workers some may well be evicted; a head that is has a cause that must be told.
    return [pod for pod in ended if component == meta.COMPONENT_HEAD or not diagnosis.is_disrupted(pod)]


def _shown_since(world: World, trouble: Trouble) -> datetime:
    """Since when the status shows this trouble: a restart of the operator does not start the wait anew."""
    shown = find(world.run.status.conditions, ConditionType.DEGRADED)
    if shown is None or shown.last_transition_time is None or not trouble.is_told_by(shown):
        return world.now
    return datetime.fromisoformat(shown.last_transition_time).astimezone(UTC)
