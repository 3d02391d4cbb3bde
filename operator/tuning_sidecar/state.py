"""What the sidecar knows of the run: the newest records, checkpoint and pace.

The watcher thread writes it, HTTP threads read snapshots. Until a resumed attempt has finished a step of its own, it
stands at its checkpoint: what earlier attempts did after that is lost and will be done again.
"""

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from tuning_contract.metrics import EVALUATION, TRAINER, MetricRecord
from tuning_contract.progress import Progress
from tuning_sidecar.lineage import Lineage

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
        self._lineage = Lineage(attempt)
        self._lock = threading.Lock()
        self._newest: MetricRecord | None = None
        self._resumed_step: int | None = None
        self._resumed: MetricRecord | None = None
        """The step of an earlier attempt that this one goes on from."""
        self._recent: deque[MetricRecord] = deque(maxlen=PACE_STEPS + 1)
        """Steps of this attempt."""
        self._first_evaluation: dict[str, MetricRecord] = {}
        self._last_evaluation: dict[str, MetricRecord] = {}
        self._longest_evaluation = 0.0
        """In seconds."""
        self._checkpoint: Saved | None = None

    def apply(self, record: MetricRecord) -> None:
        """Take one record, in the file's order, after the first `set_checkpoint`."""
        with self._lock:
            if not self._lineage.admits(record):
                return
            self._newest = record
            if record.role == EVALUATION:
                self._longest_evaluation = max(self._longest_evaluation, record.values.get("seconds", 0.0))
            own = record.attempt == self._attempt
            if not own and record.step > (self._resumed_step or 0):
                return
            if record.role == TRAINER and own:
                if self._recent and record.step <= self._recent[-1].step:
                    # The file was read anew.
                    self._recent.clear()
                self._recent.append(record)
            elif record.role == TRAINER:
                self._resumed = record
            elif record.role == EVALUATION:
                self._note_evaluation(record)

    def set_checkpoint(self, checkpoint: Saved | None) -> None:
        """Note the newest complete checkpoint; the first that is told is the one that this attempt begins with."""
        with self._lock:
            self._checkpoint = checkpoint
            if self._resumed_step is None:
                self._resumed_step = checkpoint.step if checkpoint else 0

    def snapshot(self) -> Snapshot:
        """The newest records."""
        with self._lock:
            return Snapshot(self._trainer(), tuple(self._last_evaluation.values()), self._checkpoint)

    def progress(self) -> Progress:
        """The answer to `GET /progress`."""
        with self._lock:
            trainer = self._trainer()
            saved = self._checkpoint
            return Progress(
                attempt=self._attempt,
                step=self._step(),
                target_steps=self._newest.target_steps if self._newest else 0,
                updated_at=self._newest.ts if self._newest else 0.0,
                eta_seconds=self._eta(),
                values=dict(trainer.values) if trainer else {},
                checkpoint_step=saved.step if saved else 0,
                checkpoint_path=saved.path if saved else "",
                checkpoint_saved_at=saved.saved_at if saved else 0.0,
                evaluation=self._evaluation(),
                evaluation_seconds=self._longest_evaluation,
            )

    def _eta(self) -> float | None:
        """Remaining steps times the mean seconds between recent ones, evaluations and checkpoints included."""
        last = self._trainer()
        if last is None:
            return None
        seconds: float | None = last.values.get("step_seconds")
        if self._recent and last.step > (first := self._recent[0]).step:
            seconds = (last.ts - first.ts) / (last.step - first.step)
        return None if seconds is None else round(max(0, last.target_steps - self._step()) * seconds, 1)

    def _step(self) -> int:
        return self._recent[-1].step if self._recent else self._resumed_step or 0

    def _trainer(self) -> MetricRecord | None:
        newest = self._recent[-1] if self._recent else self._resumed
        return self._lineage.held(newest) if newest else None

    def _note_evaluation(self, record: MetricRecord) -> None:
        """Of two of the same weights the later counts: the earlier may have had no figure."""
        first, last = self._first_evaluation.get(record.dataset), self._last_evaluation.get(record.dataset)
        if first is None or record.step <= first.step:
            self._first_evaluation[record.dataset] = record
        if last is None or record.step >= last.step:
            self._last_evaluation[record.dataset] = record

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
