"""The journal of episodes: `episodes/step-<n>.jsonl`, one record per line, appended and flushed to disk.

Engines call `append` after `tuning_runner.groups` has given the advantages, and with the records of a
RunError. A step that is run again in a later attempt adds its lines after the first ones.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from tuning_runner.episodes.lines import open_for_lines
from tuning_runner.episodes.record import EpisodeRecord


def append(path: Path, records: Iterable[EpisodeRecord]) -> None:
    """Append records and fsync, so that a finished step's records outlive the machine."""
    with open_for_lines(path) as file:
        file.writelines(record.to_line() + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())
