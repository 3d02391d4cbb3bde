"""Processes of a runner that a test has started, as /proc shows them, and waiting for what they do."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = 240) -> None:
    """Until the condition holds; fails with the output when the process ends before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def descendants(pid: int) -> list[int]:
    """All processes below one, the nearest first."""
    parents = {int(path.name): _parent_of(path) for path in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _parent_of(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def end(process: subprocess.Popen) -> None:
    """Kill a process, which leads a group, with all of its group if it lives; and close the end of its output."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
