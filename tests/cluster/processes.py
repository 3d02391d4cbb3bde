"""Starts, watches and stops the cluster's processes, and finds them again from another process or after a crash.

Called by the profiles. Every process is recorded with its start time, so that a reused process id is never mistaken
for ours, and carries a mark in its environment that its children inherit, so that whatever was left behind is found
by what it is, never by its name.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.packages import SYSTEM_PATH

MARK = "AGENT_TUNING_CLUSTER_STATE"
STOP_SECONDS = 10.0
LOG_TAIL_LINES = 25


class Processes:
    """The processes of one cluster; their records and logs lie in its state folder."""

    def __init__(self, state: Path) -> None:
        """Make a view on the processes of a state folder; `run` and `log` are made in it by the first start."""
        self._state = state

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        namespace_of: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Start a process in a session of its own, unless it runs already; returns its id.

        Args:
            name: Under which it is recorded, and the name of its log.
            command: The program (on the system's path, or absolute) and its arguments.
            namespace_of: Join the mount namespace of this process.
            env: More environment.
        """
        running = self.pid(name)
        if running is not None:
            return running
        for folder in ("run", "log"):
            (self._state / folder).mkdir(parents=True, exist_ok=True)
        if namespace_of is not None:
            command = ["nsenter", f"--mount=/proc/{namespace_of}/ns/mnt", "--", *command]
        environment = {"PATH": SYSTEM_PATH, "HOME": str(self._state), MARK: str(self._state), **(env or {})}
        pid = spawn(["env", "--chdir=/", *command], environment, self.log(name))
        draft = self._record(name).with_suffix(".draft")
        draft.write_text(json.dumps({"pid": pid, "started": started_at(pid)}))
        draft.rename(self._record(name))
        return pid

    def pid(self, name: str) -> int | None:
        """Return the id of a recorded process that still runs, else None."""
        try:
            record = json.loads(self._record(name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        pid = int(record["pid"])
        reap(pid)
        return pid if record["started"] is not None and started_at(pid) == record["started"] else None

    def names(self) -> list[str]:
        """Return the names of all processes that were recorded, running or not."""
        return sorted(path.stem for path in (self._state / "run").glob("*.json"))

    def stop(self, name: str, seconds: float = STOP_SECONDS) -> None:
        """End a recorded process: politely, then by force; forgets it."""
        pid = self.pid(name)
        if pid is not None:
            self._end(pid, seconds)
        self._record(name).unlink(missing_ok=True)

    def strays(self) -> list[int]:
        """Return every running process that carries this cluster's mark, recorded or not."""
        wanted = f"{MARK}={self._state}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                marked = wanted in (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if marked and started_at(int(entry.name)) is not None:
                found.append(int(entry.name))
        return found

    def sweep(self, *, keep_recorded: bool = False) -> list[int]:
        """Kill every process that carries this cluster's mark, or only those without a record; returns their ids."""
        swept = []
        for _ in range(5):  # a process may have started another one between listing and killing
            kept = {self.pid(name) for name in self.names()} if keep_recorded else set()
            left = [pid for pid in self.strays() if pid not in kept]
            if not left:
                break
            swept += left
            for pid in left:
                self._end(pid, 0.0)
        return swept

    def log(self, name: str) -> Path:
        """Return the path of a process's log (both output streams, appended over restarts)."""
        return self._state / "log" / f"{name}.log"

    def tail(self, name: str, lines: int = LOG_TAIL_LINES) -> str:
        """Return the last lines of a process's log."""
        try:
            text = self.log(name).read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(line[:400] for line in text.splitlines()[-lines:])

    def wait(self, what: str, condition: Callable[[], bool], seconds: float, needs: Sequence[str] = ()) -> None:
        """Poll until the condition holds; `needs` are the processes that it takes, the one to suspect first.

        Raises:
            ClusterError: It did not hold in time, or one of the processes ended; with the log's tail.
        """
        end = time.monotonic() + seconds
        while not condition():
            dead = [name for name in needs if self.pid(name) is None]
            if dead:
                raise ClusterError(f"{dead[0]} ended while waiting for {what}; its log ends:\n{self.tail(dead[0])}")
            if time.monotonic() > end:
                logs = "".join(f"\n--- {name}\n{self.tail(name)}" for name in needs[:3])
                raise ClusterError(f"{what}: not within {seconds:.0f} s; the logs end:{logs}")
            time.sleep(0.1)

    def _record(self, name: str) -> Path:
        return self._state / "run" / f"{name}.json"

    def _end(self, pid: int, polite_seconds: float) -> None:
        begun = started_at(pid)
        if begun is None:
            return
        end = time.monotonic() + polite_seconds
        _signal(pid, signal.SIGTERM if polite_seconds else signal.SIGKILL)
        forced_end = end + STOP_SECONDS
        forced = not polite_seconds
        while started_at(pid) == begun:
            reap(pid)
            if not forced and time.monotonic() > end:
                _signal(pid, signal.SIGKILL)
                forced = True
            if time.monotonic() > forced_end:
                raise ClusterError(f"process {pid} does not end, not even by force")
            time.sleep(0.02)


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start a process that outlives this one, in a session of its own; returns its id. Both outputs go to the log."""
    # Not subprocess.Popen: it takes a child that outlives its object for a mistake, and these shall outlive us.
    program = shutil.which(command[0], path=SYSTEM_PATH)
    if program is None:
        raise UnavailableError(f"{command[0]} is missing on this machine")
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), output, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(program, list(command), environment, file_actions=streams, setsid=True)


def started_at(pid: int) -> int | None:
    """Return when a process started (clock ticks since boot), or None if it is gone or a zombie."""
    try:
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A killed program's first thread is a zombie while others still end, and until then its ports are taken.
    is_over = fields[0] in "ZX" and int(fields[17]) <= 1
    return None if is_over else int(fields[19])


def reap(pid: int) -> None:
    """Take note of the end of a process, in case it is our own child."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
