"""Events: what changed between two statuses, told once in `kubectl describe`.

A run has three Normal ones at most, Started, Resumed (the first time) and Succeeded, and a Warning for every attempt
that fails, when it fails itself, is not accepted or becomes degraded. A failure ends with the next step.
"""

from dataclasses import dataclass

from tuning_contract.result import FAILED, STOPPED
from tuning_operator.api.conditions import Condition, ConditionStatus, ConditionType, Phase, find, is_true
from tuning_operator.api.v1alpha1_status import TuningRunStatus
from tuning_operator.engine.causes import CAUSES

NORMAL = "Normal"
WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Announcement:
    """One Event."""

    type: str
    reason: str
    message: str


def between(old: TuningRunStatus, new: TuningRunStatus) -> tuple[Announcement, ...]:
    """The Events that the step from one status to the next deserves."""
    found: list[Announcement] = []
    active = new.phase is not None and not new.phase.terminal
    if _became_true(old, new, ConditionType.STARTED) and active and new.attempt.number == 1:
        found.append(Announcement(NORMAL, "Started", f"the training of {new.display.model} has started"))
    if _is_first_resumption(old, new):
        found.append(
            Announcement(NORMAL, "Resumed", f"attempt {new.attempt.number} goes on where the run was suspended")
        )
    if new.phase is Phase.SUCCEEDED and old.phase is not new.phase:
        found.append(Announcement(NORMAL, "Succeeded", new.message or ""))
    if _has_failed(old, new):
        found.append(Announcement(WARNING, new.reason or "Failed", f"{new.message}{_next_step(new.reason)}"))
    accepted = find(new.conditions, ConditionType.ACCEPTED)
    if accepted is not None and accepted.status is ConditionStatus.FALSE and not _known(old, accepted):
        found.append(Announcement(WARNING, accepted.reason, accepted.message))
    degraded = find(new.conditions, ConditionType.DEGRADED)
    if degraded is not None and _became_true(old, new, ConditionType.DEGRADED):
        found.append(Announcement(WARNING, degraded.reason, degraded.message))
    return tuple(found)


def _is_first_resumption(old: TuningRunStatus, new: TuningRunStatus) -> bool:
    if old.phase not in (Phase.SUSPENDED, Phase.SUSPENDING) or new.attempt.number <= old.attempt.number:
        return False
    # A run may rest again after an attempt that has failed, and what its history has lost was told long ago.
    stopped = [record.number for record in old.history if record.outcome == STOPPED]
    return bool(old.history) and old.history[0].number == 1 and stopped == [old.history[-1].number]


def _has_failed(old: TuningRunStatus, new: TuningRunStatus) -> bool:
    """Whether an attempt, or the run itself, has failed with this step."""
    if new.phase is Phase.FAILED and old.phase is not new.phase:
        return True
    last = new.history[-1] if new.history else None
    known = {record.number for record in old.history}
    return last is not None and last.outcome == FAILED and last.number not in known


def _next_step(reason: str | None) -> str:
    advice = {str(cause): row.advice for cause, row in CAUSES.items()}.get(reason or "")
    return f". Next: {advice}" if advice else ""


def _became_true(old: TuningRunStatus, new: TuningRunStatus, kind: ConditionType) -> bool:
    return is_true(new.conditions, kind) and not is_true(old.conditions, kind)


def _known(old: TuningRunStatus, new: Condition) -> bool:
    before = find(old.conditions, new.type)
    return before is not None and (before.status, before.reason) == (new.status, new.reason)
