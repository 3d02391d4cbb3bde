"""The Ray cluster of the run: the wait until it is what run.json expects, and the runner's connection to it.

`attempt` works inside `joined`. That all pods are ready is no proof: after a replaced head the workers need some
seconds to join the new cluster. Ray is imported only where it is needed. Not here: starting anything in it
(`ray_nodes`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from tuning_contract.causes import Cause
from tuning_contract.run_document import ExpectedCluster
from tuning_runner.episodes.errors import RunError

_PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 1.0


@contextlib.contextmanager
def joined(
    expected: ExpectedCluster, say: Callable[[str], None], patience: float = _PATIENCE_SECONDS
) -> Iterator[None]:
    """Begin when Ray's alive nodes and GPUs equal `expected`; with episode nodes the connection stays until the end.

    A cluster of the head alone without GPUs needs no look: this process runs on it. Outside a Ray job there is none.

    Raises:
        RunError: WorkerLost, naming what was seen last; ConfigInvalid when there are to be episode nodes without Ray.
    """
    if "RAY_ADDRESS" not in os.environ:
        if expected.episode_nodes:
            message = (
                f"run.json expects {expected.episode_nodes} nodes for episodes, but this process is no Ray job "
                "(RAY_ADDRESS is not set): submit it to the run's Ray cluster, or set `cluster.episodeNodes` to 0"
            )
            raise RunError(Cause.CONFIG_INVALID, message)
        yield
        return
    if expected.nodes <= 1 and expected.gpus == 0:
        yield
        return
    ray = _connect(forwards_output=expected.episode_nodes > 0)
    try:
        _wait(ray, expected, say, patience)
        if not expected.episode_nodes:
            ray.shutdown()
        yield
    finally:
        ray.shutdown()


def own_address() -> str:
    """Address of this node that the other nodes of the cluster reach; inside `joined` with episode nodes only."""
    import ray.util

    return str(ray.util.get_node_ip_address())


def _connect(forwards_output: bool) -> Any:
    """Connect to the cluster; what episode workers print is then printed here."""
    # The lines of user code as they are: all of them, and without colours. Ray reads both when it is imported.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    import ray

    # Ray installs a handler of its own, and ours says that the run was stopped.
    handler = signal.getsignal(signal.SIGTERM)
    ray.init(address="auto", log_to_driver=forwards_output, logging_level="WARNING")
    signal.signal(signal.SIGTERM, handler)
    return ray


def _wait(ray: Any, expected: ExpectedCluster, say: Callable[[str], None], patience: float) -> None:
    deadline = time.monotonic() + patience
    seen = (-1, -1)
    while (now := _nodes_and_gpus(ray.nodes())) != (expected.nodes, expected.gpus):
        if now != seen:
            say(f"waiting for Ray: {now[0]} of {expected.nodes} nodes, {now[1]} of {expected.gpus} GPUs")
            seen = now
        if time.monotonic() > deadline:
            message = (
                f"Ray has {now[0]} nodes with {now[1]} GPUs after {patience:.0f} s, "
                f"expected {expected.nodes} with {expected.gpus}"
            )
            raise RunError(Cause.WORKER_LOST, message)
        time.sleep(_POLL_SECONDS)


def _nodes_and_gpus(nodes: list[dict[str, object]]) -> tuple[int, int]:
    alive = [node for node in nodes if node.get("Alive")]
    resources = [node.get("Resources") for node in alive]
    return len(alive), round(sum(entry.get("GPU", 0.0) for entry in resources if isinstance(entry, dict)))
