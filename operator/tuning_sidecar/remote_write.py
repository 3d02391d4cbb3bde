"""The thread that pushes every step to a remote-write receiver, at the step's own time.

`__main__` starts it when run.json names a receiver. It has its own tail of metrics.jsonl, so the file is its
queue and nothing is kept in memory for a receiver that is down. What is not here: /metrics keeps serving the
same series for a look by hand (see `series`), and there is no read of what the receiver has.

All samples of a record carry one timestamp, later than that of any record before it and never in the
future. A resumed attempt does the steps after its checkpoint again: they are pushed as what they are, later
samples of the same series, while counters keep their highest value. After SIGTERM the last records are pushed,
then every series gets a stale marker, so that queries stop showing a run that has ended; but not when a later
attempt writes already, whose sidecar pushes from then on.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuning_sidecar.lineage import Lineage
from tuning_sidecar.remote_write_client import Answer, RemoteWriteClient, Reply
from tuning_sidecar.remote_write_format import STALE, Labels, snappy_block, write_request
from tuning_sidecar.remote_write_mark import Mark
from tuning_sidecar.series import Sample, SeriesMapper
from tuning_sidecar.tail import MetricsTail, TailedRecord


@dataclass(frozen=True)
class Patience:
    """Limits of the sender; seconds unless said otherwise."""

    period: float = 1.0
    """Between two looks at the file."""
    batch: int = 20
    """Records of one request."""
    request: float = 10.0
    """For one request."""
    busy: float = 3000.0
    """For a receiver that cannot be reached; after an hour it would refuse the samples as too old."""
    broken: int = 10
    """Tries for a receiver that answers with an error of its own."""
    longest_wait: float = 30.0
    """Between two tries."""
    drain: float = 4.0
    """For everything after SIGTERM."""


@dataclass
class Statistics:
    """Counters of the sender; written by its thread, read by /metrics."""

    samples: dict[str, int] = field(default_factory=lambda: {"ok": 0, "rejected": 0, "dropped": 0})
    """rejected: the receiver refused them; dropped: given up after all tries."""
    last_success: float = 0.0
    """Seconds since 1970; 0 before the first."""


@dataclass(frozen=True)
class _Pending:
    """A record on its way."""

    moment: int
    samples: tuple[Sample, ...]
    end: int


class RemoteWriter:
    """Pushes one run's records; used by one thread."""

    def __init__(
        self,
        client: RemoteWriteClient,
        metrics: Path,
        mark: Path,
        mapper: SeriesMapper,
        patience: Patience | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._mapper, self._now = client, mapper, now
        self._patience = patience or Patience()
        self._tail = MetricsTail(metrics)
        self._lineage = Lineage(mapper.attempt)
        self._mark_path, self._mark_problem = mark, ""
        self._mark = Mark.load(mark)
        self._size_at_start = _size(metrics)
        self._last_moment = self._mark.timestamp
        self._pending: deque[_Pending] = deque()
        self._series: set[Labels] = set()
        self._stop = threading.Event()
        self._drain_until = 0.0
        self.statistics = Statistics()

    def run(self, stop: threading.Event) -> None:
        """Body of the thread: push until `stop`, then drain and end the series."""
        self._stop = stop
        while not stop.is_set():
            self._push_everything()
            stop.wait(self._patience.period)
        self._push_everything()
        if not self._pending and not self._lineage.superseded:
            self._end_series()

    def _push_everything(self) -> None:
        while True:
            read = self._tail.read()
            for item in read:
                self._take(item)
            if self._lineage.superseded:
                # The later attempt's sidecar has the same mark and pushes these as well.
                self._pending.clear()
            while self._pending:
                batch = [self._pending[place] for place in range(min(self._patience.batch, len(self._pending)))]
                if not self._push(batch):
                    return
                for _ in batch:
                    self._pending.popleft()
                self._move_mark(Mark(batch[-1].end, batch[-1].moment))
            if not read:
                return

    def _take(self, item: TailedRecord) -> None:
        """Queue a record, or only remember its series when an earlier sidecar has pushed it."""
        if not self._lineage.admits(item.record):
            return
        samples = self._mapper.samples(self._lineage.held(item.record))
        self._series.update(_labels(sample) for sample in samples)
        moment = round(item.record.ts * 1000)
        shrunk = item.rereads > 0 or self._mark.offset > self._size_at_start
        done = moment <= self._mark.timestamp if shrunk else item.end <= self._mark.offset
        if done or not samples:
            return
        # Records are in order; a clock that jumped must not cost their samples.
        moment = max(min(moment, round(self._now() * 1000)), self._last_moment + 1)
        self._last_moment = moment
        self._pending.append(_Pending(moment, samples, item.end))

    def _push(self, batch: Sequence[_Pending]) -> bool:
        """Send records until they are accepted, refused or given up; False when the time to drain is over."""
        series: dict[Labels, list[tuple[int, float | bytes]]] = {}
        for pending in batch:
            for sample in pending.samples:
                series.setdefault(_labels(sample), []).append((pending.moment, sample.value))
        answer = self._send_with_retries(snappy_block(write_request(series)))
        if answer is None:
            return False
        count = sum(len(pending.samples) for pending in batch)
        if answer.reply is Reply.ACCEPTED:
            self.statistics.samples["ok"] += count
            self.statistics.last_success = self._now()
        elif answer.reply is Reply.REFUSED and len(batch) > 1:
            # A receiver refuses a request as a whole: one old record must not take new ones with it.
            half = len(batch) // 2
            return self._push(batch[:half]) and self._push(batch[half:])
        else:
            outcome = "rejected" if answer.reply is Reply.REFUSED else "dropped"
            self.statistics.samples[outcome] += count
            _log(f"{count} samples {outcome}: {answer.reason}")
        return True

    def _send_with_retries(self, body: bytes) -> Answer | None:
        """The last answer of the receiver; None when draining and out of time."""
        started, tries, wait = time.monotonic(), 0, 0.5
        while True:
            remaining = self._remaining()
            if remaining is not None and remaining <= 0:
                return None
            limit = self._patience.request
            answer = self._client.send(body, limit if remaining is None else min(limit, remaining))
            tries += 1
            if answer.reply in (Reply.ACCEPTED, Reply.REFUSED):
                return answer
            if answer.reply is Reply.BROKEN and tries >= self._patience.broken:
                return answer
            if time.monotonic() - started >= self._patience.busy:
                return answer
            if tries == 1:
                _log(f"the receiver does not take samples, trying again: {answer.reason}")
            pause = min(max(wait, answer.wait), self._patience.longest_wait)
            # Draining: short pauses, since seconds are all there is; else SIGTERM ends the pause.
            if self._stop.is_set():
                time.sleep(min(pause, 0.2))
            else:
                self._stop.wait(pause)
            wait *= 2

    def _remaining(self) -> float | None:
        """Seconds left for draining; None while the sidecar is not being stopped."""
        if not self._stop.is_set():
            return None
        if not self._drain_until:
            self._drain_until = time.monotonic() + self._patience.drain
        return self._drain_until - time.monotonic()

    def _end_series(self) -> None:
        if not self._series:
            return
        moment = max(round(self._now() * 1000), self._last_moment + 1)
        body = snappy_block(write_request({labels: [(moment, STALE)] for labels in self._series}))
        answer = self._send_with_retries(body)
        if answer is not None and answer.reply is Reply.ACCEPTED:
            self._move_mark(Mark(self._mark.offset, moment))
        else:
            _log(f"the series could not be ended: {answer.reason if answer else 'out of time'}")

    def _move_mark(self, mark: Mark) -> None:
        self._mark, self._size_at_start = mark, max(self._size_at_start, mark.offset)
        try:
            mark.save(self._mark_path)
            self._mark_problem = ""
        except OSError as error:
            if str(error) != self._mark_problem:
                _log(f"the high-water mark cannot be saved, a restart may send steps again: {error}")
            self._mark_problem = str(error)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _labels(sample: Sample) -> Labels:
    return (("__name__", sample.name), *sample.labels)


def _log(text: str) -> None:
    sys.stderr.write(f"sidecar: remote-write: {text}\n")
