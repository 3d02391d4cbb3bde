"""Events: what changed between two statuses, told once in `kubectl describe`.

A run has two Normal ones, Started and Succeeded, and a Warning when it fails, is not accepted or becomes degraded.
"""

from dataclasses import dataclass

from tuning_operator.api.conditions import Condition, ConditionStatus, ConditionType, Phase, find, is_true
from tuning_operator.api.v1alpha1_status import TuningRunStatus

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
    if _became_true(old, new, ConditionType.STARTED) and new.phase is not None and not new.phase.terminal:
        found.append(Announcement(NORMAL, "Started", f"the training of {new.display.model} has started"))
    if new.phase is Phase.SUCCEEDED and old.phase is not new.phase:
        found.append(Announcement(NORMAL, "Succeeded", new.message or ""))
    if new.phase is Phase.FAILED and old.phase is not new.phase:
        found.append(Announcement(WARNING, new.reason or "Failed", new.message or ""))
    accepted = find(new.conditions, ConditionType.ACCEPTED)
    if accepted is not None and accepted.status is ConditionStatus.FALSE and not _known(old, accepted):
        found.append(Announcement(WARNING, accepted.reason, accepted.message))
    degraded = find(new.conditions, ConditionType.DEGRADED)
    if degraded is not None and _became_true(old, new, ConditionType.DEGRADED):
        found.append(Announcement(WARNING, degraded.reason, degraded.message))
    return tuple(found)


def _became_true(old: TuningRunStatus, new: TuningRunStatus, kind: ConditionType) -> bool:
    return is_true(new.conditions, kind) and not is_true(old.conditions, kind)


def _known(old: TuningRunStatus, new: Condition) -> bool:
    before = find(old.conditions, new.type)
    return before is not None and (before.status, before.reason) == (new.status, new.reason)
