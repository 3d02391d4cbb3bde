"""Engine and algorithm are available in this version of the operator."""

from collections.abc import Iterator

from tuning_contract.algorithms import ALGORITHMS, ENGINES
from tuning_operator.api.conditions import Reason
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield NotAvailable, with what is available."""
    spec = world.run.spec
    engine, algorithm = spec.engine.type, spec.algorithm.type
    if engine not in ENGINES or not ENGINES[engine].available:
        able = ", ".join(row.name for row in ENGINES.values() if row.available)
        text = f"engine {engine} is not available in this version of the operator: use {able}"
        yield Problem(Reason.NOT_AVAILABLE, text)
        return
    able = ", ".join(row.name for row in ALGORITHMS.values() if engine in row.engines)
    if algorithm not in ALGORITHMS or engine not in ALGORITHMS[algorithm].engines:
        text = f"algorithm {algorithm} is not available on engine {engine} in this version of the operator: use {able}"
        yield Problem(Reason.NOT_AVAILABLE, text)
