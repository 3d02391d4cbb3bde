"""What one policy has to say about a world, and the judgement that ends a run.

Made by the policies, put together by `plan` and `status`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tuning_contract.causes import Cause
from tuning_operator.api.conditions import Condition, ConditionStatus, ConditionType, Phase
from tuning_operator.engine.world import Child


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the run ended, and the last figures."""

    cause: Cause | None
    """None: it succeeded."""
    message: str
    step: int | None = None
    target_steps: int = 0
    checkpoint: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    complaint: str = ""
    """What was wrong beside the result: becomes Degraded."""

    @property
    def succeeded(self) -> bool:
        """Whether the run has reached its end with everything saved."""
        return self.cause is None


@dataclass(frozen=True, slots=True)
class Contribution:
    """One policy's part of the plan; everything is optional."""

    create: tuple[Child, ...] = ()
    delete_cluster: bool = False
    delete_job: bool = False
    read: tuple[str, ...] = ()
    """ConfigMaps whose keys must be known."""
    ask_result: bool = False
    """The sidecar's /result must be known."""
    phase: Phase | None = None
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    verdict: Verdict | None = None
    due: datetime | None = None
    """When the world must be looked at again even if nothing happens."""
    final: bool = False
    """The policies behind this one are not asked."""


MESSAGE_BYTES = 1024
"""Of `status.message`, where a reader looks first."""
CONDITION_BYTES = 384
"""Of each condition's message; the longest of them repeat what the status says."""
HISTORY_BYTES = 128
"""Of the message of an attempt that has ended."""
_MARK = "…"

NOTHING_WRONG = "nothing is known to be wrong"
"""Message of a condition Degraded that is False."""


def condition(kind: ConditionType, status: bool | None, reason: str, message: str) -> Condition:
    """A condition without its times; None is Unknown."""
    value = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[status]
    return Condition(type=kind, status=value, reason=reason, message=cut(message, CONDITION_BYTES))


def cut(text: str, limit: int) -> str:
    """The text within a limit of bytes, as JSON and UTF-8 write it, with a mark where it was cut.

    Characters would not bound a status: one may take four bytes, and a control character six.
    """
    text = text.encode(errors="replace").decode()
    if _size(text) <= limit:
        return text
    kept, room = [], limit - _size(_MARK)
    for character in text:
        room -= _size(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + _MARK


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2
