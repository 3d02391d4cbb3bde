"""The checks of the policy `acceptance`, one file each, in the order in which their reasons are told.

Each has one function `check(world, settings)`, which yields what is wrong. To add a check, add a file, a line, and its
reason to docs/how-to/read-the-status.md.
"""

from collections.abc import Callable, Iterator

from tuning_operator.engine.policies.acceptance_checks import (
    claims,
    config_maps,
    engine,
    engine_config,
    image,
    kuberay,
    node_pools,
    pod_template,
    source_run,
)
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings

Check = Callable[[World, Settings], Iterator[Problem]]

CHECKS: tuple[Check, ...] = (
    engine.check,  # engine and algorithm are there
    image.check,  # something runs in the Ray containers
    kuberay.check,  # RayClusters can be made, with all their fields
    node_pools.check,  # the pools exist and have nodes that are large enough
    engine_config.check,  # the engine takes the overrides
    pod_template.check,  # the patches leave the operator's own parts alone
    source_run.check,  # the run whose model is wanted has succeeded
    claims.check,  # the claims exist and can be mounted as they must
    config_maps.check,  # the ConfigMaps exist and have the keys, as far as they were read
)

LATER_CHECKS: tuple[Check, ...] = tuple(check for check in CHECKS if check not in (source_run.check, config_maps.check))
"""What is looked at again before a later attempt: another run's model is recorded by then, and ConfigMaps are not
watched, so that of one that is missing the pods' containers tell."""
