"""What the run's patches make of the pods' templates can be made."""

from collections.abc import Iterator

from tuning_operator.api.conditions import Reason
from tuning_operator.desired import pod_template
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield Invalid for every part of a patch that is refused."""
    known = world.notes.patch_problems
    for text in pod_template.problems(world.run, settings) if known is None else known:
        yield Problem(Reason.INVALID, text)
