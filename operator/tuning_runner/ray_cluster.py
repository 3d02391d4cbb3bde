"""Waits until Ray shows the cluster that run.json expects.

Called by `attempt` before anything heavy. That all pods are ready is no proof: after a replaced head the workers need
some seconds to join the new cluster. Not here: starting anything in Ray.
"""

import os
import time
from collections.abc import Callable

from tuning_contract.causes import Cause
from tuning_contract.run_document import ExpectedCluster
from tuning_runner.episodes.errors import RunError

_PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 1.0


def wait_for_cluster(
    expected: ExpectedCluster, say: Callable[[str], None], patience: float = _PATIENCE_SECONDS
) -> None:
    """Return when Ray's alive nodes and GPUs equal `expected`.

    A cluster of the head alone without GPUs needs no look: this process runs on it. Outside a Ray job there is none.

    Raises:
        RunError: WorkerLost, naming what was seen last.
    """
    if "RAY_ADDRESS" not in os.environ or (expected.nodes <= 1 and expected.gpus == 0):
        return
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="WARNING")
    try:
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
    finally:
        ray.shutdown()


def _nodes_and_gpus(nodes: list[dict[str, object]]) -> tuple[int, int]:
    alive = [node for node in nodes if node.get("Alive")]
    resources = [node.get("Resources") for node in alive]
    return len(alive), round(sum(entry.get("GPU", 0.0) for entry in resources if isinstance(entry, dict)))
