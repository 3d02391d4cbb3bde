"""The high-water mark of remote-write: how far metrics.jsonl has been pushed.

It lies on the volume beside the records, so that the next sidecar neither sends a step twice nor skips one.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tuning_contract.checkpoint import write_atomically


@dataclass(frozen=True)
class Mark:
    """A position in the file and in time."""

    offset: int = 0
    """Bytes of metrics.jsonl that are done with: accepted, or refused for good."""
    timestamp: int = 0
    """Milliseconds since 1970 of the newest sample that was sent."""

    @classmethod
    def load(cls, path: Path) -> "Mark":
        """Read; the beginning when there is no mark or it is damaged (the receiver refuses what it has)."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(offset=int(document["offset"]), timestamp=int(document["timestamp"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def save(self, path: Path) -> None:
        """Write, fsync and rename. OSError when the volume does not take it."""
        write_atomically(path, json.dumps(asdict(self)))
