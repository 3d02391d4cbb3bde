"""The driver's standard output: the runner's log as it is, and the driver's own lines between.

The container's log is what `kubectl logs job/...` shows. The runner's bytes are passed on unchanged and in
whole lines, so that a chunk that ends inside a character never meets one of our lines.
"""

from typing import BinaryIO

LONGEST_LINE = 64 * 1024
"""Bytes of an unfinished line that are held back; longer ones are passed on in pieces."""


class Console:
    """Writes to one binary stream, and flushes after each write."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._unfinished = b""
        self.raw_bytes = 0
        """Bytes of the runner's log so far."""

    def raw(self, data: bytes) -> None:
        """Pass on bytes of the runner's log; the last line waits for its end."""
        self.raw_bytes += len(data)
        lines, newline, rest = (self._unfinished + data).rpartition(b"\n")
        self._unfinished = rest
        self._write(lines + newline)
        if len(rest) > LONGEST_LINE:
            cut = _whole_characters(rest)
            self._write(rest[:cut])
            self._unfinished = rest[cut:]

    def say(self, text: str) -> None:
        """Write one of the driver's own lines."""
        for line in text.splitlines() or [""]:
            self._write(f"driver: {line}\n".encode(errors="replace"))

    def finish(self) -> None:
        """Write what is left of an unfinished line."""
        if self._unfinished:
            self._write(self._unfinished + b"\n")
            self._unfinished = b""

    def _write(self, data: bytes) -> None:
        if data:
            self._stream.write(data)
            self._stream.flush()


def _whole_characters(data: bytes) -> int:
    """Length of `data` without a UTF-8 character that is cut off at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(data) - back if needed > back else len(data)
    return len(data)
