"""What one policy has to say about a world, and the judgement that ends a run.

Made by the policies, put together by `plan` and `status`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tuning_contract.causes import Cause
from tuning_operator.api.conditions import Condition, ConditionStatus, ConditionType, Phase
from tuning_operator.engine.world import Child, JobView


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended, and the last figures. What it means for the run is decided in `ending`."""

    cause: Cause | None
    """None: it did not fail."""
    message: str
    step: int | None = None
    target_steps: int = 0
    checkpoint: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    complaint: str = ""
    """What was wrong beside the result: becomes Degraded."""
    stopped: bool = False
    """It was stopped because the run is suspended."""
    fatal: bool = False
    """No other attempt can help, whatever the run's rules say of the cause."""

    @property
    def succeeded(self) -> bool:
        """Whether the run has reached its end with everything saved."""
        return self.cause is None and not self.stopped


@dataclass(frozen=True, slots=True)
class Contribution:
    """One policy's part of the plan; everything is optional."""

    create: tuple[Child, ...] = ()
    delete_cluster: bool = False
    delete_job: bool = False
    delete_earlier: bool = False
    """RayClusters of earlier attempts that should not be there."""
    delete_run: bool = False
    end_jobs: tuple[JobView, ...] = ()
    """Jobs that do not end by themselves."""
    ask_stop: bool = False
    """The present attempt's sidecar must have the request to stop."""
    look: bool = False
    """RayClusters and pods of the run must be listed from the API server itself."""
    read: tuple[str, ...] = ()
    """ConfigMaps whose keys must be known."""
    ask_result: bool = False
    """The sidecar's /result must be known."""
    next_attempt: bool = False
    """The next attempt begins: its number is written before anything of it is made."""
    stop: str = ""
    """The training is to stop from now on, and why: Suspended or DeadlineExceeded."""
    phase: Phase | None = None
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    verdict: Verdict | None = None
    due: datetime | None = None
    """When the world must be looked at again even if nothing happens."""
    final: bool = False
    """The policies behind this one are not asked."""


MESSAGE_BYTES = 512
"""Of `status.message`, where a reader looks first."""
CONDITION_BYTES = 160
"""Of each condition's message; the longest of them repeat what the status says."""
HISTORY_BYTES = 56
"""Of the message of an attempt that has ended. With these, ten of them fit into a status of 8 KiB."""
MARK = "…"
"""Stands for what was cut out of a text."""

NOTHING_WRONG = "nothing is known to be wrong"
"""Message of a condition Degraded that is False."""


def condition(kind: ConditionType, status: bool | None, reason: str, message: str) -> Condition:
    """A condition without its times; None is Unknown."""
    value = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[status]
    return Condition(type=kind, status=value, reason=reason, message=cut(message, CONDITION_BYTES))


def listed(texts: Sequence[str], limit: int) -> str:
    """As many of some texts as fit within a limit of bytes, each of them whole, and how many more there are.

    The first is always among them, cut if it must be.
    """
    for shown in range(len(texts), 0, -1):
        more = f"; and {len(texts) - shown} more" if shown < len(texts) else ""
        text = "; ".join(texts[:shown])
        if shown == 1:
            return f"{cut(text, limit - len(more))}{more}"
        if _size(text) + len(more) <= limit:
            return f"{text}{more}"
    return ""


def cut(text: str, limit: int) -> str:
    """The text within a limit of bytes, as JSON and UTF-8 write it, with a mark where it was cut.

    Both ends are kept, the first quarter and what fits of the end: a text begins with what it is about, and ends with
    the innermost cause. Characters would not bound a status: one may take four bytes, and a control character six.
    """
    text = text.encode(errors="replace").decode()
    if _size(text) <= limit:
        return text
    first = _beginning(text, limit // 4)
    last = _beginning(reversed(text), limit - _size(first) - _size(MARK))
    return f"{first}{MARK}{last[::-1]}"


def _beginning(characters: Iterable[str], room: int) -> str:
    kept = []
    for character in characters:
        room -= _size(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept)


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2
