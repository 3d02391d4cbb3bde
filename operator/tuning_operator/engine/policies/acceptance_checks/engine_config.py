"""The engine takes the overrides of `engine.config`: the runner would find out only when its pods are there."""

import json
from collections.abc import Iterator

from tuning_contract.engine_config import overrides_from_text
from tuning_operator.api.conditions import Reason
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings

_TRL = "TRL"


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield Invalid, with the key and what to change."""
    spec = world.run.spec
    if spec.engine.type != _TRL or not spec.engine.config:
        return
    try:
        overrides_from_text(json.dumps(spec.engine.config), spec.algorithm.lora is not None)
    except ValueError as error:
        yield Problem(Reason.INVALID, str(error))
