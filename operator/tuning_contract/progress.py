"""What the sidecar answers to `GET /progress`.

The operator polls it for status only: unreachable means that nothing is known, never that the run is unwell.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuning_contract.checks import are_figures, is_count, is_number, is_text


@dataclass(frozen=True)
class Progress:
    """Newest figures of a running attempt."""

    attempt: int
    step: int = 0
    target_steps: int = 0
    updated_at: float = 0.0
    """Seconds since 1970 of the newest record; 0 before the first one."""
    eta_seconds: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    """Newest trainer values by canonical name."""
    checkpoint_step: int = 0
    checkpoint_path: str = ""
    """Newest complete checkpoint, relative to the volume's root."""
    checkpoint_saved_at: float = 0.0
    evaluation: tuple[Mapping[str, Any], ...] = ()
    """`{dataset, step, mean}` for the first and the newest evaluation of each set."""
    evaluation_seconds: float = 0.0
    """The longest evaluation of one set so far, earlier attempts included."""

    def to_text(self) -> str:
        """One JSON object."""
        return json.dumps(
            {name: getattr(self, name) for name in self.__dataclass_fields__}
            | {"values": dict(self.values), "evaluation": [dict(entry) for entry in self.evaluation]}
        )

    @classmethod
    def from_text(cls, text: str | bytes) -> "Progress":
        """Parse; ValueError when it is no progress document. Unknown keys are a newer sidecar's and are ignored."""
        try:
            document = json.loads(text)
            known = {name: document[name] for name in cls.__dataclass_fields__ if name in document}
            progress = cls(**known | {"evaluation": tuple(known.get("evaluation", ()))})
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a progress document: {error}") from error
        if not _has_its_types(progress):
            raise ValueError("not a progress document: a field has the wrong type")
        return progress


def _has_its_types(progress: Progress) -> bool:
    counts = (progress.attempt, progress.step, progress.target_steps, progress.checkpoint_step)
    numbers = [progress.updated_at, progress.checkpoint_saved_at, progress.evaluation_seconds]
    numbers += [] if progress.eta_seconds is None else [progress.eta_seconds]
    return (
        all(map(is_count, counts))
        and all(map(is_number, numbers))
        and is_text(progress.checkpoint_path)
        and are_figures(progress.values)
        and all(map(_is_evaluation, progress.evaluation))
    )


def _is_evaluation(entry: object) -> bool:
    if not isinstance(entry, Mapping):
        return False
    return is_text(entry.get("dataset")) and is_count(entry.get("step")) and is_number(entry.get("mean"))
