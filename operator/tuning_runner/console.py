"""Standard output of the runner, teed to the attempt's log on the volume.

Called by `supervision`, first of all; the training process inherits it. Output goes straight into the file and is
copied to the old standard output from there, so that whatever a crash leaves behind is in the file, and lines of child
processes and native libraries are too.
"""

import contextlib
import os
import sys
import threading
from pathlib import Path
from types import TracebackType

from tuning_runner.episodes.text import writable

_INTERVAL = 0.2
"""Seconds between two copies."""


class Tee:
    """Sends file descriptors 1 and 2 to `path` until it is left, and copies what arrives to the old descriptor 1."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._old: tuple[int, int] = (-1, -1)
        self._copier = threading.Thread(target=self._copy, name="tee", daemon=True)

    def __enter__(self) -> "Tee":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._offset = os.fstat(log).st_size
        _flush()
        self._old = (os.dup(1), os.dup(2))
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(line_buffering=True)
        self._copier.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _flush()
        self._stop.set()
        self._copier.join()
        os.dup2(self._old[0], 1)
        os.dup2(self._old[1], 2)
        for number in self._old:
            os.close(number)

    def _copy(self) -> None:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            while True:
                last = self._stop.wait(_INTERVAL)
                while piece := log.read(1 << 16):
                    _write_all(self._old[0], piece)
                if last:
                    return


def _write_all(number: int, piece: bytes) -> None:
    while piece:
        try:
            piece = piece[os.write(number, piece) :]
        except OSError:
            return  # nobody reads the old output any more; the file has it all


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def say(text: str) -> None:
    """Print one line of progress. A full volume loses the line, not the run: what is saved and told next finds out."""
    with contextlib.suppress(OSError):
        print(writable(text), flush=True)  # noqa: T201 - the runner's log is its standard output
