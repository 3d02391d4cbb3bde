"""Files of JSON lines that attempts append to, one after the other.

Called by `journal` and by `tuning_runner.metrics_writer`. A killed attempt may leave half a line at the end; readers
pass over lines that they cannot parse. Not here: what a line says.
"""

import os
from pathlib import Path
from typing import TextIO


def open_for_lines(path: Path) -> TextIO:
    """The file, opened for appending at the beginning of a line: half a line at its end must not swallow the next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8")
    if _ends_inside_a_line(path):
        file.write("\n")
    return file


def _ends_inside_a_line(path: Path) -> bool:
    with path.open("rb") as content:
        if not content.seek(0, os.SEEK_END):
            return False
        content.seek(-1, os.SEEK_END)
        return content.read(1) != b"\n"
