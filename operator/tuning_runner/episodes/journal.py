"""The journal of episodes: `episodes/step-<n>.jsonl`, one record per line, appended and flushed to disk.

Engines call `append` after `tuning_runner.groups` has given the advantages, and with the records of a
RunError. A step that is run again in a later attempt adds its lines after the first ones.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tuning_runner.episodes.record import EpisodeRecord


def append(path: Path, records: Iterable[EpisodeRecord]) -> None:
    """Append records and fsync, so that a finished step's records outlive the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(record.to_line() + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> tuple[dict[str, Any], ...]:
    """All whole records of a journal as JSON objects; a last line that was torn by a crash is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return tuple(json.loads(line) for line in lines)
