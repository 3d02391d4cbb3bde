"""`spec.deadlines`: how long an attempt may take to start, and how long the run may train.

A standstill of the training is judged by the driver, which says Stalled.
"""

from datetime import datetime, timedelta

from tuning_contract.causes import Cause
from tuning_operator.engine import diagnosis
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def decide(world: World, settings: Settings) -> Contribution | None:
    """End an attempt that does not start; have a training stopped whose time is used up."""
    return _active(world) if world.job_made else _start(world)


def already_exceeded(world: World) -> str:
    """Whether the attempts that have ended used up the run's time, as a sentence; empty while some is left."""
    limit = world.run.spec.deadlines.active_seconds
    used = world.run.status.usage.active_seconds or 0
    return _used_up(limit) if limit is not None and used >= limit else ""


def _start(world: World) -> Contribution | None:
    began = from_text(world.run.status.attempt.start_time)
    if began is None:
        return None
    limit = world.run.spec.deadlines.start_seconds
    deadline = began + timedelta(seconds=limit)
    if world.now < deadline:
        return Contribution(due=deadline)
    trouble = diagnosis.trouble_of(world)
    words = f": {trouble.message}" if trouble else ""
    unschedulable = trouble is not None and trouble.cause is Cause.UNSCHEDULABLE
    cause = Cause.UNSCHEDULABLE if unschedulable else Cause.START_DEADLINE_EXCEEDED
    text = f"the Ray cluster was not ready within `deadlines.startSeconds`, {limit} s{words}"
    return Contribution(verdict=Verdict(cause, text), final=True)


def _active(world: World) -> Contribution | None:
    deadline = _active_until(world)
    if deadline is None or world.now < deadline:
        return Contribution(due=deadline) if deadline else None
    return Contribution(stop=Cause.DEADLINE_EXCEEDED, final=True)


def _active_until(world: World) -> datetime | None:
    """When the run's time will be used up; None without a limit, or while nothing trains."""
    limit, began = world.run.spec.deadlines.active_seconds, from_text(world.run.status.attempt.running_time)
    if limit is None or began is None:
        return None
    return began + timedelta(seconds=limit - (world.run.status.usage.active_seconds or 0))


def _used_up(limit: int) -> str:
    return f"the run has trained for as long as `deadlines.activeSeconds` allows, {limit} s"
