"""A small file on the run's volume that is given up when the volume is full, so that the result can be written.

Called by `attempt` and `supervision`. Not here: whether there is room for checkpoints (`preflight`).
"""

import os

from tuning_contract.directory import RunDirectory

_BYTES = 64 << 10


def keep_reserve(directory: RunDirectory) -> None:
    """Make it if it is not there; OSError when the volume is full already."""
    path = directory.root / ".reserve"
    if path.is_file() and path.stat().st_size == _BYTES:
        return
    directory.root.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        # No holes: they would take no room.
        file.write(os.urandom(_BYTES))
        file.flush()
        os.fsync(file.fileno())


def release_reserve(directory: RunDirectory) -> None:
    """Give its room to what is written next."""
    (directory.root / ".reserve").unlink(missing_ok=True)
