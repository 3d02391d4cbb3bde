"""Where things lie: everything that the local cluster keeps is outside the checkout, below one cache folder.

Called by every other module of this package. Nothing is created here.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = PACKAGE.parents[1]


def cache_root() -> Path:
    """Return the folder of this project below the user's cache folder (absolute)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).absolute() / "agent-tuning"


def binaries_root() -> Path:
    """Return the folder of built and fetched programs; one folder per program, version and content."""
    return cache_root() / "bin"


def control_plane_state(name: str) -> Path:
    """Return the state folder of the control plane that the command line calls `name`."""
    return cache_root() / "control-plane" / name


def full_state() -> Path:
    """Return the state folder of the full cluster; removed by `down`."""
    return cache_root() / "cluster"


def containerd_root() -> Path:
    """Return the folder of pulled images; it outlives `down`, since pulling them again is expensive."""
    return cache_root() / "containerd"
