"""A Ray cluster of several nodes on this machine: a head and workers, each with a raylet of its own, as in pods.

Started by `test_ray_workers` only. Nothing is left out but the dashboard, which takes most of the time to start. Each
node has a folder of its own for modules, so that nodes can run other code.
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_STORE_BYTES = 80 << 20


@dataclass(frozen=True)
class LocalNode:
    """One worker node."""

    node: Any
    modules: Path
    """On the module path of what runs on this node only."""

    def processes(self) -> list[int]:
        """The raylet, and all that it started."""
        (raylet,) = self.node.all_processes["raylet"]
        return [raylet.process.pid, *descendants_of(raylet.process.pid)]


@dataclass
class LocalRay:
    """The running cluster."""

    cluster: Any
    folder: Path
    nodes: list[LocalNode] = field(default_factory=list)

    def add(self) -> LocalNode:
        """Start a node and wait until Ray knows it."""
        modules = Path(tempfile.mkdtemp(prefix="modules-", dir=self.folder))
        paths = os.pathsep.join([str(modules), *(path or os.getcwd() for path in sys.path)])
        node = LocalNode(self.cluster.add_node(**_options(), env_vars={"PYTHONPATH": paths}), modules)
        self.nodes.append(node)
        return node

    def kill(self, node: LocalNode) -> None:
        """End a node as a pod ends that is killed: everything at once."""
        for process in node.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.cluster.remove_node(node.node, allow_graceful=False)
        self.nodes.remove(node)


@contextlib.contextmanager
def a_local_ray(nodes: int) -> Iterator[LocalRay]:
    """A head and worker nodes; RAY_ADDRESS leads to it, as in a Ray job."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        (Path(folder) / "ray").mkdir()
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray._private import node, services
        from ray.cluster_utils import Cluster

        patch.setattr(services, "_build_python_executable_command_memory_profileable", _python)
        patch.setattr(node.Node, "start_api_server", lambda node, **_: setattr(node, "_webui_url", ""))
        handler = signal.getsignal(signal.SIGTERM)
        cluster = Cluster(initialize_head=True, head_node_args=_options() | {"no_monitor": True})
        local = LocalRay(cluster, Path(folder))
        try:
            for _ in range(nodes):
                local.add()
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield local
        finally:
            ray.shutdown()
            cluster.shutdown()
            signal.signal(signal.SIGTERM, handler)
            shutil.rmtree(Path(folder) / "ray", ignore_errors=True)


def descendants_of(process: int) -> list[int]:
    """All processes below one."""
    children: list[str] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):  # any thread may have started some
        with contextlib.suppress(OSError):
            children += task.read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants_of(child))]


def _python(component: str, session_dir: str, unbuffered: bool = True) -> list[str]:
    """What Ray puts before the path of a component's program."""
    if component == "dashboard_agent":
        return [sys.executable, "-S", str(Path(__file__).with_name("silent_agent.py"))]
    return [sys.executable, "-u"] if unbuffered else [sys.executable]


def _options() -> dict[str, Any]:
    """No CPU, so that no worker is started before it is asked for; ports are told, so that nobody waits for them."""
    names = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = dict(zip(names, (each.getsockname()[1] for each in sockets), strict=True))
    return {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False, **ports}
