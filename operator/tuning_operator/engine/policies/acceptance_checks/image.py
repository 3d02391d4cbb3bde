"""The Ray containers have an image."""

from collections.abc import Iterator

from tuning_operator.api.conditions import Reason
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield ImageNotSet."""
    if not world.run.spec.workflow.image and not settings.runner_image:
        text = "set `workflow.image`: the installation has no image of its own for the Ray containers"
        yield Problem(Reason.IMAGE_NOT_SET, text)
