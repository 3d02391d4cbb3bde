"""What the sidecar knows of the run: the newest records, checkpoint and pace.

The watcher thread writes it, HTTP threads read snapshots.
"""

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from tuning_contract.metrics import EVALUATION, TRAINER, MetricRecord
from tuning_contract.progress import Progress

PACE_STEPS = 10
"""Steps over which the pace is measured."""


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint."""

    step: int
    path: str
    """Relative to the volume's root."""
    saved_at: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class Snapshot:
    """The newest record of the trainer and of each evaluation set, and the newest checkpoint."""

    trainer: MetricRecord | None
    evaluations: tuple[MetricRecord, ...]
    checkpoint: Saved | None


class RunState:
    """Safe for several threads."""

    def __init__(self, attempt: int) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()
        self._newest: MetricRecord | None = None
        self._recent: deque[MetricRecord] = deque(maxlen=PACE_STEPS + 1)
        self._first_evaluation: dict[str, MetricRecord] = {}
        self._last_evaluation: dict[str, MetricRecord] = {}
        self._checkpoint: Saved | None = None

    def apply(self, record: MetricRecord) -> None:
        """Take one record, in the file's order."""
        with self._lock:
            self._newest = record
            if record.role == TRAINER:
                last = self._recent[-1] if self._recent else None
                if last and (record.attempt != last.attempt or record.step <= last.step):
                    # The time between two attempts is no step.
                    self._recent.clear()
                self._recent.append(record)
            elif record.role == EVALUATION:
                self._first_evaluation.setdefault(record.dataset, record)
                self._last_evaluation[record.dataset] = record

    def set_checkpoint(self, checkpoint: Saved | None) -> None:
        """Note the newest complete checkpoint."""
        with self._lock:
            self._checkpoint = checkpoint

    def snapshot(self) -> Snapshot:
        """The newest records."""
        with self._lock:
            trainer = self._recent[-1] if self._recent else None
            return Snapshot(trainer, tuple(self._last_evaluation.values()), self._checkpoint)

    def progress(self) -> Progress:
        """The answer to `GET /progress`."""
        with self._lock:
            trainer = self._recent[-1] if self._recent else None
            saved = self._checkpoint
            return Progress(
                attempt=self._attempt,
                step=trainer.step if trainer else 0,
                target_steps=self._newest.target_steps if self._newest else 0,
                updated_at=self._newest.ts if self._newest else 0.0,
                eta_seconds=self._eta(),
                values=dict(trainer.values) if trainer else {},
                checkpoint_step=saved.step if saved else 0,
                checkpoint_path=saved.path if saved else "",
                checkpoint_saved_at=saved.saved_at if saved else 0.0,
                evaluation=self._evaluation(),
            )

    def _eta(self) -> float | None:
        """Remaining steps times the mean seconds between recent ones, evaluations and checkpoints included."""
        if not self._recent:
            return None
        first, last = self._recent[0], self._recent[-1]
        seconds: float | None = last.values.get("step_seconds")
        if last.step > first.step:
            seconds = (last.ts - first.ts) / (last.step - first.step)
        return None if seconds is None else round(max(0, last.target_steps - last.step) * seconds, 1)

    def _evaluation(self) -> tuple[dict[str, Any], ...]:
        found: list[dict[str, Any]] = []
        for dataset, first in self._first_evaluation.items():
            last = self._last_evaluation[dataset]
            found += [
                {"dataset": dataset, "step": record.step, "mean": record.values["mean"]}
                for record in ((first,) if last is first else (first, last))
                if "mean" in record.values
            ]
        return tuple(found)
