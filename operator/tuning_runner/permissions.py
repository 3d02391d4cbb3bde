"""Files that this process may not read, in words that say what to change.

Called by whoever reads what users bring: `dataset_files`, `dataset_formats`, engines when they load a model. Pods do
not run as root, while files on a claim often belong to it.
"""

import os
from collections.abc import Sequence
from pathlib import Path


def not_readable(error: PermissionError, path: Path) -> str:
    """What is wrong, and what to do.

    Args:
        error: what the system said.
        path: where it said so, for an error that names no file.
    """
    return f"user {os.geteuid()} may not read {error.filename or path}: make it readable (chmod -R a+rX)"


def require_readable(folder: Path, patterns: Sequence[str]) -> None:
    """Open every file of these names that lies directly in a folder, hidden ones aside.

    Libraries take a file that they may not read for one that is not there, or say so in words of their own.

    Raises:
        PermissionError: names the first one that cannot be opened.
    """
    for entry in sorted(folder.iterdir()):
        if entry.name[0] != "." and any(entry.match(pattern) for pattern in patterns) and entry.is_file():
            entry.open("rb").close()
