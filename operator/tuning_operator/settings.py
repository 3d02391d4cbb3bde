"""What the installation decides: images, the namespace to watch.

Read once in `__main__` from the environment that the chart sets, then passed down; tests pass a plain mapping.
No user of a TuningRun sees these.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuning_operator.errors import SettingsError

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True)
class Settings:
    """The installation's choices."""

    operator_image: str
    """Image with driver and sidecar; normally the one the operator itself runs."""
    runner_image: str
    """Image of the Ray containers of a run that names no `workflow.image`."""
    image_pull_policy: str = "IfNotPresent"
    """For every container that is built."""
    watch_namespace: str = ""
    """The one namespace to watch; empty for all."""
    pod_namespace: str = ""
    """Namespace of the operator itself; empty outside a cluster."""
    log_level: str = "INFO"

    @classmethod
    def from_mapping(cls, environment: Mapping[str, str]) -> "Settings":
        """Read OPERATOR_IMAGE, RUNNER_IMAGE, IMAGE_PULL_POLICY, WATCH_NAMESPACE, POD_NAMESPACE and LOG_LEVEL.

        Raises:
            SettingsError: an image is missing, or a value is not one of those allowed.
        """
        return cls(
            operator_image=_required(environment, "OPERATOR_IMAGE"),
            runner_image=_required(environment, "RUNNER_IMAGE"),
            image_pull_policy=_one_of(environment, "IMAGE_PULL_POLICY", cls.image_pull_policy, PULL_POLICIES),
            watch_namespace=environment.get("WATCH_NAMESPACE", ""),
            pod_namespace=environment.get("POD_NAMESPACE", ""),
            log_level=_one_of(environment, "LOG_LEVEL", cls.log_level, LOG_LEVELS),
        )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set: it names a container image")
    return value


def _one_of(environment: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = environment.get(name, "").strip() or default
    if value not in allowed:
        raise SettingsError(f"{name} is {value!r}: allowed are {', '.join(allowed)}")
    return value
