"""The node pools that the run names exist, and have nodes with as many GPUs as one pod asks for."""

from collections.abc import Iterator

from tuning_operator.api.conditions import Reason
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield NodePoolUnknown and NodePoolTooSmall."""
    cluster = world.run.spec.cluster
    groups = [("head", cluster.head), *((f"workers[{group.name}]", group) for group in cluster.workers)]
    for place, pod in groups:
        if not pod.node_pool:
            continue
        pool = settings.node_pools.get(pod.node_pool)
        if pool is None:
            yield Problem(Reason.NODE_POOL_UNKNOWN, _unknown(place, pod.node_pool, settings))
        elif pool.max_gpus_per_node is not None and pod.gpus > pool.max_gpus_per_node:
            text = (
                f"`cluster.{place}.gpus` is {pod.gpus}, but a node of pool {pool.name} has at most "
                f"{pool.max_gpus_per_node}: ask for fewer in one pod, or use another pool"
            )
            yield Problem(Reason.NODE_POOL_TOO_SMALL, text)


def _unknown(place: str, name: str, settings: Settings) -> str:
    named = f"`cluster.{place}.nodePool` is {name}"
    if not settings.node_pools:
        return f"{named}, but the installation has no node pools: leave it out, or let it be added to `nodePools`"
    return f"{named}, which the installation does not have: use one of {', '.join(sorted(settings.node_pools))}"
