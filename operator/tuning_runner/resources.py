"""What this container really has: CPUs, and memory with the kernel's killings for lack of it.

CPUs are asked for by `training` before torch is imported: OpenMP reads its number of threads at its first use. torch
itself counts the cores of the machine, which with a CPU limit makes more threads than can run. Memory is asked for by
`supervision`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""Bytes; version 1 shows no limit as a huge one."""


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


@dataclass(frozen=True)
class Memory:
    """The memory cgroup of a container, of either version."""

    folder: Path

    @classmethod
    def of_this_process(cls, root: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> "Memory":
        """The cgroup of this process. In a container it is the root of all that can be seen."""
        paths: dict[str, str] = {}
        try:
            for line in own.read_text(encoding="utf-8").splitlines():
                _, controllers, path = line.split(":", 2)
                paths |= dict.fromkeys(controllers.split(","), path)
        except (OSError, ValueError):
            return cls(root)
        mount, path = (root / "memory", paths["memory"]) if "memory" in paths else (root, paths.get("", "/"))
        folder = mount / path.lstrip("/")
        return cls(folder if folder.is_dir() else mount)

    def kills(self) -> int:
        """Processes that the kernel has killed in it for lack of memory, since it was made; 0 when nothing tells."""
        for name in ("memory.events", "memory.oom_control"):
            try:
                text = (self.folder / name).read_text(encoding="ascii")
            except OSError:
                continue
            for line in text.splitlines():
                key, _, number = line.partition(" ")
                if key == "oom_kill":
                    return int(number)
        return 0

    def limit_in_words(self) -> str:
        """The limit as the end of a sentence; empty without one."""
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                limit = int((self.folder / name).read_text(encoding="ascii"))
            except (OSError, ValueError):
                continue
            if limit < _UNLIMITED:
                return f" at the container's memory limit of {limit >> 20} MiB"
        return ""
