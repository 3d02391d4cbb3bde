"""How many CPUs this container really has.

Called by `__main__` before torch is imported: OpenMP reads its number of threads at its first use. torch itself counts
the cores of the machine, which with a CPU limit makes more threads than can run.
"""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_cpus(cgroup: Path = _CGROUP) -> int:
    """Whole CPUs that this process may use: the smaller of its affinity and its cgroup's quota, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return max(1, min(allowed, int(quota)) if quota else allowed)


def _quota(cgroup: Path) -> float | None:
    """CPUs by quota: cgroup v2 `cpu.max`, else v1; None without a limit."""
    try:
        limit, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii")
        period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii")
        return int(limit) / int(period) if int(limit) > 0 else None
    except (OSError, ValueError):
        return None
