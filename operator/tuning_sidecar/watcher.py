"""The thread that keeps `RunState` current: new records every second, checkpoints every few.

`__main__` starts it. The HTTP threads only read the state, so a slow volume never blocks an answer.
"""

import threading
import time
from pathlib import Path

from tuning_contract.checkpoint import complete_checkpoints
from tuning_contract.directory import RunDirectory
from tuning_sidecar.state import RunState, Saved
from tuning_sidecar.tail import MetricsTail


class Watcher:
    """Reads the run directory until it is told to stop, and once more after that."""

    def __init__(
        self, volume: Path, directory: RunDirectory, state: RunState, period: float = 1.0, checkpoints: float = 5.0
    ) -> None:
        self._volume, self._directory, self._state = volume, directory, state
        self._tail = MetricsTail(directory.metrics)
        self._period, self._checkpoint_period = period, checkpoints
        self._checkpoints_due = 0.0
        self._checkpoint_known = False
        self._volume_errors = 0
        self.last_pass = time.monotonic()
        """Monotonic seconds at the end of the last pass."""

    @property
    def errors(self) -> int:
        """Failures to read the volume and lines that are no records."""
        return self._tail.errors + self._volume_errors

    def run(self, stop: threading.Event) -> None:
        """Body of the thread."""
        while not stop.is_set():
            self.look()
            stop.wait(self._period)
        self._checkpoints_due = 0.0
        self.look()

    def look(self) -> None:
        """One pass: everything new. The first checkpoint comes before the first record, which is judged by it."""
        if time.monotonic() >= self._checkpoints_due:
            self._find_checkpoint()
        while self._checkpoint_known and (records := self._tail.read()):
            for item in records:
                self._state.apply(item.record)
        self.last_pass = time.monotonic()

    def _find_checkpoint(self) -> None:
        try:
            found = complete_checkpoints(self._directory.checkpoints)
        except OSError:
            self._volume_errors += 1
            return
        newest = None
        if found:
            folder, manifest = found[-1]
            newest = Saved(manifest.step, str(folder.relative_to(self._volume)), manifest.saved_at)
        self._state.set_checkpoint(newest)
        self._checkpoint_known = True
        self._checkpoints_due = time.monotonic() + self._checkpoint_period
