"""KubeRay is installed, and new enough for what the operator makes."""

from collections.abc import Iterator

from tuning_operator.api.conditions import Reason
from tuning_operator.engine.kuberay import OLDEST
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield KubeRayMissing or KubeRayTooOld."""
    if not world.kuberay_served:
        text = f"the API server does not serve RayClusters (ray.io/v1): install KubeRay {OLDEST} or later"
        yield Problem(Reason.KUBERAY_MISSING, text)
    elif world.kuberay_lacks:
        fields = ", ".join(f"`{field}`" for field in world.kuberay_lacks)
        text = f"the installed KubeRay has no {fields} in its RayClusters: install {OLDEST} or later, with its CRDs"
        yield Problem(Reason.KUBERAY_TOO_OLD, text)
