"""The driver's termination message and its exit codes.

The message travels through the pod's status to the operator, so it must fit into 2,048 bytes (the kubelet
keeps 4,096 for a whole pod). The exit code only tells the Job whether another pod may help: the verdict is
in the message.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tuning_contract.checks import are_figures, is_count, is_text

LIMIT = 2048
"""Bytes of the whole message."""

EXIT_SUCCEEDED = 0
EXIT_FAILED = 10
"""The run failed: another driver pod cannot help (podFailurePolicy FailJob)."""
EXIT_ATTEMPT_LOST = 11
"""The Ray cluster is lost: another driver pod cannot help (podFailurePolicy FailJob)."""
EXIT_STOPPED = 12
"""The runner was asked to stop, and has saved: another driver pod cannot help (podFailurePolicy FailJob)."""
EXIT_DRIVER_ERROR = 20
"""The driver itself failed: the next pod attaches to the same Ray job."""

VERDICT_CODES = (EXIT_FAILED, EXIT_ATTEMPT_LOST, EXIT_STOPPED)


@dataclass(frozen=True)
class TerminationMessage:
    """What the driver has to say at its end."""

    outcome: str
    """Succeeded, Failed or Stopped."""
    cause: str = ""
    message: str = ""
    step: int = 0
    target_steps: int = 0
    checkpoint: str = ""
    """Path of the newest complete checkpoint below the volume's root."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_text(self) -> str:
        """JSON of at most LIMIT bytes: the free text is cut on a code point, then whatever else is too long goes."""
        document = asdict(self) | {"metrics": dict(self.metrics)}
        text = _dumped(document)
        message = _writable(self.message)
        while len(text.encode()) > LIMIT and message:
            over = len(text.encode()) - LIMIT
            message = message.encode()[: max(0, len(message.encode()) - max(over, 8) - 4)].decode(errors="ignore")
            text = _dumped(document | {"message": message + "…"})
        # Nothing of ours is so long; whatever it is, a driver must come to its end.
        for name, nothing in (("metrics", {}), ("checkpoint", ""), ("cause", "")):
            if len(text.encode()) > LIMIT:
                document |= {"message": message + "…", name: nothing}
                text = _dumped(document)
        return text

    @classmethod
    def from_text(cls, text: str) -> "TerminationMessage | None":
        """Parse a message; None when the text is something else (the last lines of a log, say)."""
        try:
            document = json.loads(text)
            message = cls(**{name: document[name] for name in cls.__dataclass_fields__ if name in document})
        except (ValueError, TypeError, RecursionError):
            return None
        texts = (message.outcome, message.cause, message.message, message.checkpoint)
        counts = (message.step, message.target_steps)
        right = all(map(is_text, texts)) and all(map(is_count, counts)) and are_figures(message.metrics)
        return message if right else None


def _dumped(document: Mapping[str, Any]) -> str:
    return _writable(json.dumps(document, ensure_ascii=False, separators=(",", ":")))


def _writable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair: Ray's JSON may hold one, UTF-8 cannot."""
    return text.encode(errors="replace").decode()
