"""Ends single processes of the full cluster, as an accident would, and starts them again.

Called by tests that want to see what a run makes of it. Everything goes by process id; what the cluster's parts are and
how each is started stands in `control_plane` and `node`.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from tests.cluster import node
from tests.cluster.control_plane import API_SERVER, ETCD
from tests.cluster.errors import ClusterError
from tests.cluster.full import NODE_NEEDS, NODE_SECONDS, FullCluster
from tests.cluster.processes import started_at

END_SECONDS = 10


def kill(cluster: FullCluster, *names: str) -> None:
    """End processes of the cluster with SIGKILL, in this order, and wait until they are gone.

    Raises:
        ClusterError: One of them does not run, or does not end.
    """
    pids = {name: cluster.processes.pid(name) for name in names}
    missing = [name for name, pid in pids.items() if pid is None]
    if missing:
        raise ClusterError(f"{missing[0]} does not run, so that it cannot be killed")
    kill_all(pid for pid in pids.values() if pid is not None)


def kill_all(pids: Iterable[int]) -> None:
    """End processes of this machine with SIGKILL, and wait until they are gone."""
    begun = {pid: started_at(pid) for pid in pids}
    for pid in begun:
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + END_SECONDS
    while left := [pid for pid, moment in begun.items() if moment is not None and started_at(pid) == moment]:
        if time.monotonic() > end:
            raise ClusterError(f"processes {left} do not end")
        time.sleep(0.05)


def restore(cluster: FullCluster, *names: str) -> None:
    """Start processes that were killed, in an order in which each finds what it needs, and wait until all is ready."""
    for name, start in _starters(cluster).items():
        if name in names:
            start()
    cluster.plane.wait_ready()
    cluster.processes.wait("the node's readiness", cluster.node.is_ready, NODE_SECONDS, NODE_NEEDS)


@contextmanager
def without(cluster: FullCluster, *names: str) -> Iterator[None]:
    """Have the cluster without these processes for as long as the block."""
    kill(cluster, *names)
    try:
        yield
    finally:
        restore(cluster, *names)


def _starters(cluster: FullCluster) -> Mapping[str, Callable[[], None]]:
    # The control plane's two come together: what still runs is left alone.
    return {
        ETCD: cluster.plane.start_processes,
        API_SERVER: cluster.plane.start_processes,
        node.CONTAINERD: cluster.node.start_containerd,
        node.KUBELET: cluster.node.start_kubelet,
        node.PROXY: cluster.node.start_kubelet,
    }
