"""What the full cluster changes on the host beside its own folders: recorded before it starts, put back after it.

Called by `full`. The kubelet and kube-proxy change kernel settings, the runtime makes cgroups, a bridge, packet filter
chains and a few folders at fixed places. Only what was not there before is removed, and only what is of our kind.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError

BRIDGE = "cni-tuning0"
SYSCTLS = (
    "kernel.panic",
    "kernel.panic_on_oops",
    "net.ipv4.conf.all.route_localnet",
    "net.ipv4.ip_forward",
    "vm.overcommit_memory",
    "vm.panic_on_oom",
)
# Sockets have short names only, so what is volatile lies here and not below the state folder.
VOLATILE = "/run/agent-tuning"
# Fixed places that the runtime, its plugins and the kubelet write to, whatever they are told.
FOLDERS = (
    "/opt/containerd",
    VOLATILE,
    "/run/containerd",
    "/run/netns",
    "/run/runc",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
)
CGROUPS = ("kubepods", "k8s.io")
CHAINS = ("KUBE-", "CNI-")
TABLES = ("nat", "filter", "mangle")
KILL_SECONDS = 20.0


@dataclass(frozen=True)
class HostState:
    """The host as it was before the cluster started."""

    sysctls: dict[str, str]
    folders: list[str]
    cgroups: list[str]
    filter_tables: list[str]

    @classmethod
    def now(cls) -> "HostState":
        """Take down how the host is at this moment."""
        return cls(
            sysctls={name: value for name in SYSCTLS if (value := _sysctl(name)) is not None},
            folders=[folder for folder in FOLDERS if folder != VOLATILE and Path(folder).exists()],
            cgroups=[str(path) for path in _cgroups()],
            filter_tables=_filter_tables(),
        )

    @classmethod
    def load(cls, path: Path) -> "HostState":
        """Read a record that `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        """Write it down, whole or not at all."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self), indent=1))
        draft.rename(path)

    def restore(self) -> None:
        """Put the host back; every part is tried, and the first failure is raised at the end."""
        failures = []
        parts = (self._remove_cgroups, remove_bridge, self._clean_filters, self._remove_folders, self._restore_sysctls)
        for part in parts:
            try:
                part()
            except (ClusterError, OSError, subprocess.SubprocessError) as error:
                failures.append(f"{part.__name__.strip('_')}: {error}")
        if failures:
            raise ClusterError("the host is not as it was before:\n" + "\n".join(failures))

    def kill_containers(self) -> None:
        """Kill what runs in cgroups that were not there before; the kubelet must not run, or it would start more."""
        end = time.monotonic() + KILL_SECONDS
        while pids := [pid for path in self._new_cgroups() for pid in _members(path)]:
            if time.monotonic() > end:
                raise ClusterError(f"processes in containers do not end: {pids}")
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _remove_cgroups(self) -> None:
        end = time.monotonic() + KILL_SECONDS
        while left := self._new_cgroups():
            self.kill_containers()
            for path in left:
                for folder, _, _ in os.walk(path, topdown=False):
                    with suppress(OSError):  # the kernel takes a moment to let go of the last process
                        Path(folder).rmdir()
            if time.monotonic() > end:
                raise ClusterError(f"cgroups cannot be removed: {left}")
            time.sleep(0.02)

    def _new_cgroups(self) -> list[Path]:
        return [path for path in _cgroups() if str(path) not in self.cgroups]

    def _clean_filters(self) -> None:
        for command in ("iptables", "ip6tables"):
            for table in TABLES:
                _remove_chains(command, table)
        for table in _filter_tables():
            if table not in self.filter_tables and _is_empty(table):
                _output("nft", "delete", "table", *table.split())

    def _remove_folders(self) -> None:
        for folder in FOLDERS:
            if folder not in self.folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _restore_sysctls(self) -> None:
        for name, value in self.sysctls.items():
            if _sysctl(name) != value:
                _sysctl_path(name).write_text(value)


def remove_bridge() -> None:
    """Remove the pods' bridge; the other ends of its cables went away with the pods."""
    if Path("/sys/class/net", BRIDGE).exists():
        _output("ip", "link", "delete", BRIDGE)


def foreign_containers() -> list[int]:
    """Return processes in a kubelet's cgroups: at a fresh start they belong to another Kubernetes on this machine."""
    return [pid for path in _cgroups() for pid in _members(path)]


def _cgroups() -> list[Path]:
    """Return the top folders of containers in every hierarchy (version 1 has one per controller)."""
    root = Path("/sys/fs/cgroup")
    parents = [root, *(path for path in root.iterdir() if path.is_dir())] if root.is_dir() else []
    return [parent / name for parent in parents for name in CGROUPS if (parent / name).is_dir()]


def _members(cgroup: Path) -> Iterator[int]:
    for folder, _, _ in os.walk(cgroup):
        with suppress(OSError):  # it may vanish while we look
            yield from (int(pid) for pid in Path(folder, "cgroup.procs").read_text().split())


def _remove_chains(command: str, table: str) -> None:
    """Remove our chains and the rules in other chains that lead to them, in one transaction."""
    rules = _output(command, "--table", table, "--list-rules").splitlines()
    chains = [rule.split()[1] for rule in rules if rule.startswith("-N ") and rule.split()[1].startswith(CHAINS)]
    if not chains:
        return
    ours = set(chains)
    leading = [rule for rule in rules if rule.startswith("-A ") and rule.split()[1] not in ours]
    # A rule goes back in as it was listed: the two programs quote alike.
    lines = [f"-D {rule.removeprefix('-A ')}" for rule in leading if ours & set(rule.split())]
    lines += [f"-F {chain}" for chain in chains] + [f"-X {chain}" for chain in chains]
    _output(f"{command}-restore", "--noflush", text="\n".join([f"*{table}", *lines, "COMMIT", ""]))


def _filter_tables() -> list[str]:
    """Return the packet filter's tables, like `ip nat`."""
    return [line.removeprefix("table ").strip() for line in _output("nft", "list", "tables").splitlines()]


def _is_empty(table: str) -> bool:
    """Whether a table has built-in chains without rules at most."""
    noise = ("table ", "chain ", "type ", "policy ", "}", "#")
    lines = [line.strip() for line in _output("nft", "list", "table", *table.split()).splitlines()]
    return all(line.startswith(noise) for line in lines if line)


def _sysctl_path(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def _sysctl(name: str) -> str | None:
    try:
        return _sysctl_path(name).read_text().strip()
    except OSError:
        return None


def _output(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout
