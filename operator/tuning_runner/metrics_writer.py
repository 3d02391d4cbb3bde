"""Writes metric records: `metrics.jsonl` for the sidecar, TensorBoard events for people.

Called by engines through `engine.Context`, once for each finished step or evaluation; `attempt` and engines read the
records of earlier attempts back. Names and meanings: `tuning_contract.metrics`. Not here: Prometheus (the sidecar
tails the file).
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import EVALUATION, TRAINER, MetricRecord
from tuning_runner.episodes.lines import open_for_lines


def written_records(directory: RunDirectory) -> tuple[MetricRecord, ...]:
    """The records of the run that count, oldest first.

    A step that was trained again, after an attempt that ended before it was saved, takes the place of the first one
    and of all that came after that, evaluations included. Lines that a killed attempt left half are passed over.
    """
    if not directory.metrics.is_file():
        return ()
    records: list[MetricRecord] = []
    for line in directory.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            records.append(MetricRecord.from_line(line))
    first: dict[int, int] = {}
    """The lowest step that each attempt trained after the record in hand."""
    counting = []
    for record in reversed(records):
        if not any(attempt > record.attempt and step <= record.step for attempt, step in first.items()):
            counting.append(record)
        if record.role == TRAINER:
            first[record.attempt] = min(record.step, first.get(record.attempt, record.step))
    return tuple(reversed(counting))


class MetricsWriter:
    """Appends records; a record is on the disk before `step` or `evaluation` returns.

    Args:
        directory: of the run.
        attempt: number of this attempt.
        target_steps: of the whole run.
        resumed_step: of the checkpoint with which this attempt begins, 0 without one.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        directory: RunDirectory,
        attempt: int,
        target_steps: int,
        resumed_step: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        from tensorboardX import SummaryWriter

        self._attempt = attempt
        self._target_steps = target_steps
        self._clock = clock
        self.last_step = 0
        """Newest step that was written by this attempt."""
        self._file = open_for_lines(directory.metrics)
        # TensorBoard forgets what earlier attempts told of the steps that come again.
        purged = resumed_step + 1 if directory.events.is_dir() else None
        self._events: Any = SummaryWriter(logdir=str(directory.events), flush_secs=10, purge_step=purged)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._events.close()

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """One finished step."""
        self.last_step = step
        self._write(MetricRecord(self._clock(), self._attempt, TRAINER, step, self._target_steps, values), "train")

    def evaluation(self, dataset: str, step: int, values: Mapping[str, float]) -> None:
        """One finished evaluation of one set."""
        record = MetricRecord(self._clock(), self._attempt, EVALUATION, step, self._target_steps, values, dataset)
        self._write(record, f"eval/{dataset}")

    def _write(self, record: MetricRecord, prefix: str) -> None:
        self._file.write(record.to_line() + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        for name, value in record.values.items():
            self._events.add_scalar(f"{prefix}/{name}", value, record.step, record.ts)
