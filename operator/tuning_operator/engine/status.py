"""The status that a world deserves: the facts, with what the policies contribute laid over them.

Called by `plan`, and by `reconcile` for an object that cannot be read (`unreadable`). Everything is computed anew
in every pass; `plan` decides whether the difference is worth a write.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from tuning_operator.api.conditions import Condition, ConditionType, Phase, Reason, merge
from tuning_operator.api.v1alpha1_status import ModelSourceStatus, TuningRunStatus
from tuning_operator.desired import names
from tuning_operator.engine import attempts, ending, evidence, figures, status_conditions
from tuning_operator.engine.contribution import MESSAGE_BYTES, Contribution, condition, cut
from tuning_operator.engine.ending import Ending
from tuning_operator.engine.policies.children import missing
from tuning_operator.engine.world import World

_MAKING = "making the run's objects"


def compose(world: World, contributions: Iterable[Contribution]) -> TuningRunStatus:
    """Build the whole status; usage but for `activeSeconds` is left as it was, since it changes with every second."""
    parts = tuple(contributions)
    verdict = next((part.verdict for part in parts if part.verdict is not None), None)
    ended = ending.of(world, verdict) if verdict is not None else None
    if any(part.next_attempt for part in parts):
        world = attempts.with_next(world)
    old = world.run.status
    told = next((part for part in parts if part.reason), Contribution())
    stop = next((part.stop for part in parts if part.stop), old.attempt.stop_reason or "")
    phase = next((part.phase for part in parts if part.phase is not None), None) or _phase(world, ended, stop)
    known = {item.type: item for item in status_conditions.conditions(world, phase, verdict)}
    known |= {item.type: item for part in parts for item in part.conditions}
    reason, message = _words(world, phase, ended, stop)
    heard = verdict or evidence.late_word(world)
    new = old.model_copy(
        update={
            "phase": phase,
            "reason": told.reason or reason,
            "message": cut(told.message or message, MESSAGE_BYTES),
            "observed_generation": world.run.metadata.generation,
            "conditions": _merged(world, known.values()),
            "attempt": attempts.attempt_status(world, phase, ended, stop),
            "model_source": _model_source(world, phase),
            "history": attempts.history(world, ended),
            "progress": figures.progress_of(world, heard),
            "checkpoint": figures.checkpoint_of(world, heard),
            "evaluation": figures.evaluation_of(world, heard),
            "usage": attempts.usage(world, ended),
        }
    )
    return new.model_copy(update={"display": figures.display_of(world, new, verdict)})


def with_conditions(world: World, contributions: Iterable[Contribution]) -> TuningRunStatus:
    """The old status, which holds for the present spec as well, with only the contributed conditions laid over it."""
    old, generation = world.run.status, world.run.metadata.generation
    conditions = [item for part in contributions for item in part.conditions]
    if not conditions and old.observed_generation in (None, generation):
        return old
    conditions = [*old.conditions, *conditions]
    return old.model_copy(update={"observed_generation": generation, "conditions": _merged(world, conditions)})


def unreadable(status: Mapping[str, Any], generation: int, message: str, now: datetime) -> dict[str, Any]:
    """The status of an object whose spec cannot be read, as a merge patch; empty when it says so already."""
    accepted = condition(ConditionType.ACCEPTED, False, Reason.INVALID, message)
    old = [Condition.model_validate(item) for item in status.get("conditions", ())]
    generation_seen = accepted.model_copy(update={"observed_generation": generation})
    new = {
        "phase": str(Phase.REJECTED),
        "reason": str(Reason.INVALID),
        "message": cut(message, MESSAGE_BYTES),
        "observedGeneration": generation,
        "conditions": [item.to_object() for item in merge(old, [generation_seen], now)],
    }
    return {} if all(status.get(key) == value for key, value in new.items()) else new


def _phase(world: World, ended: Ending | None, stop: str) -> Phase:
    if ended is not None:
        return ended.phase
    if world.attempt_over:
        return _phase_between(world)
    if stop == Reason.SUSPENDED:
        return Phase.SUSPENDING
    if world.job_made:
        return Phase.RUNNING
    # A later attempt is on its way from the moment on in which its number is written.
    return Phase.PENDING if missing(world) and world.attempt == 1 else Phase.STARTING


def _phase_between(world: World) -> Phase:
    """While an attempt that is over is cleared away."""
    old = world.run.status.phase
    if old is Phase.SUSPENDED or old is Phase.SUSPENDING:
        return old
    return Phase.SUSPENDING if world.run.spec.suspend else Phase.RETRYING


def _words(world: World, phase: Phase, ended: Ending | None, stop: str) -> tuple[str, str]:
    """Reason and message."""
    old = world.run.status
    if ended is not None:
        cause = ended.verdict.cause
        fine = Reason.SUSPENDING if ended.verdict.stopped else Reason.COMPLETED
        return fine if cause is None else cause, ended.message
    if phase is Phase.SUSPENDED:
        return Reason.SUSPENDED, _rest(world)
    if world.attempt_over and phase is old.phase:
        return old.reason or Reason.BACKING_OFF, old.message or ""
    if stop:
        return (Reason.SUSPENDING if stop == Reason.SUSPENDED else stop), _stop(world, stop)
    if phase is Phase.SUSPENDING:
        return (
            Reason.SUSPENDING,
            f"the run is suspended; attempt {world.attempt} has ended, its pods are on their way out",
        )
    if phase is Phase.RETRYING:
        return Reason.BACKING_OFF, f"attempt {world.attempt} has ended"
    if phase is Phase.RUNNING:
        started = status_conditions.started(world)
        return started.reason, started.message
    return (Reason.CREATING, _starting(world)) if phase is Phase.STARTING else (Reason.VALID, _MAKING)


def _rest(world: World) -> str:
    step = world.run.status.checkpoint.step
    source = f" from the checkpoint of step {step}" if step else ""
    return f"the run is suspended and holds no resources; it goes on{source} when `suspend` is false"


def _stop(world: World, stop: str) -> str:
    seconds = world.run.spec.deadlines.stop_grace_seconds
    why = "suspended" if stop == Reason.SUSPENDED else "out of time, by `deadlines.activeSeconds`"
    return f"the run is {why}: the training is asked to save and to stop, which may take {seconds} s"


def _starting(world: World) -> str:
    if missing(world):
        return f"attempt {world.attempt} begins"
    waiting = f"waiting for RayCluster {names.attempt(world.run, world.attempt)}"
    return f"{waiting}: {status_conditions.pods_ready(world)}" if world.workers_wanted else waiting


def _merged(world: World, new: Iterable[Condition]) -> tuple[Condition, ...]:
    generation = world.run.metadata.generation
    seen = [item.model_copy(update={"observed_generation": generation}) for item in new]
    return merge(world.run.status.conditions, seen, world.now)


def _model_source(world: World, phase: Phase) -> ModelSourceStatus:
    """Where another run's model lies, recorded with the attempt: that run may be deleted from then on."""
    source = world.model_source
    if source is None or phase is Phase.REJECTED or missing(world):
        return world.run.status.model_source
    return ModelSourceStatus(run_uid=source.run_uid, claim_name=source.claim_name)
