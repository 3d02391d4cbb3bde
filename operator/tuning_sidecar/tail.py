"""Read metrics.jsonl as it grows.

The watcher and the remote-writer each have a tail of their own, so that a slow receiver never holds the
figures of `/metrics` back. The runner appends whole lines; a line without its end is one that is still
being written, or was torn by a crash, and waits.
"""

from dataclasses import dataclass
from pathlib import Path

from tuning_contract.metrics import MetricRecord

CHUNK = 1 << 20
"""Bytes of one read: bounds the memory of a restart over a long file."""


@dataclass(frozen=True)
class TailedRecord:
    """A record and where it ends."""

    record: MetricRecord
    end: int
    """Offset of the first byte after its line."""
    rereads: int
    """How often the file had shrunk before: above 0, `end` cannot be compared with an older mark."""


class MetricsTail:
    """A position in one file; not safe for several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rereads = 0
        self.errors = 0
        """Lines that are no records, and failures to read."""

    def read(self) -> tuple[TailedRecord, ...]:
        """Complete records since the last call, at most about CHUNK bytes; none when there is no file yet.

        A file that became shorter is read again from its start.
        """
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset, self._rereads = 0, self._rereads + 1
                file.seek(self._offset)
                data = file.read(CHUNK)
        except FileNotFoundError:
            return ()
        except OSError:
            self.errors += 1
            return ()
        return self._parse(data)

    def _parse(self, data: bytes) -> tuple[TailedRecord, ...]:
        lines = data.split(b"\n")[:-1]
        if not lines and len(data) == CHUNK:
            # No record is that long: skip the piece instead of reading it for ever.
            self.errors += 1
            self._offset += len(data)
        found = []
        for line in lines:
            self._offset += len(line) + 1
            if not line.strip():
                continue
            try:
                record = MetricRecord.from_line(line.decode())
            except ValueError:
                self.errors += 1
                continue
            found.append(TailedRecord(record, self._offset, self._rereads))
        return tuple(found)
