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
    """All records of the run so far, oldest first; lines that a killed attempt left half are passed over."""
    if not directory.metrics.is_file():
        return ()
    records = []
    for line in directory.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            records.append(MetricRecord.from_line(line))
    return tuple(records)


class MetricsWriter:
    """Appends records; a record is on the disk before `step` or `evaluation` returns.

    Args:
        directory: of the run.
        attempt: number of this attempt.
        target_steps: of the whole run.
        clock: seconds since 1970.
    """

    def __init__(
        self, directory: RunDirectory, attempt: int, target_steps: int, clock: Callable[[], float] = time.time
    ) -> None:
        from tensorboardX import SummaryWriter

        self._attempt = attempt
        self._target_steps = target_steps
        self._clock = clock
        self.last_step = 0
        """Newest step that was written by this attempt."""
        self._file = open_for_lines(directory.metrics)
        self._events: Any = SummaryWriter(logdir=str(directory.events), flush_secs=10)

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
