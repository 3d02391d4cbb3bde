"""What the installation decides: images, the namespace to watch, the log.

Read once in `__main__` from the environment that the chart sets, then passed down; tests pass a plain mapping.
No user of a TuningRun sees these.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuning_operator.errors import SettingsError

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("plain", "json")


@dataclass(frozen=True)
class Settings:
    """The installation's choices."""

    operator_image: str
    """Image with driver and sidecar; normally the one the operator itself runs."""
    runner_image: str = ""
    """Image of the Ray containers of a run that names no `workflow.image`; empty: such a run is not accepted."""
    image_pull_policy: str = "IfNotPresent"
    """For every container that is built."""
    watch_namespace: str = ""
    """The one namespace to watch; empty for all."""
    log_level: str = "info"
    """The least level that is logged."""
    log_format: str = "plain"
    """`plain` for people, `json` for collectors: one object a line."""
    http_port: int = 8080
    """Where /metrics and /healthz are served; 0 takes a free port."""
    startup_patience_seconds: int = 300
    """How long pods may stay in a trouble that does not pass by itself, such as an image that does not exist."""

    @classmethod
    def from_mapping(cls, environment: Mapping[str, str]) -> "Settings":
        """Read the variables whose names are those of the fields in capitals.

        Raises:
            SettingsError: the operator's image is missing, or a value is not one of those allowed.
        """
        return cls(
            operator_image=_required(environment, "OPERATOR_IMAGE"),
            runner_image=environment.get("RUNNER_IMAGE", "").strip(),
            image_pull_policy=_one_of(environment, "IMAGE_PULL_POLICY", cls.image_pull_policy, PULL_POLICIES),
            watch_namespace=environment.get("WATCH_NAMESPACE", ""),
            log_level=_one_of(environment, "LOG_LEVEL", cls.log_level, LOG_LEVELS),
            http_port=_count(environment, "HTTP_PORT", cls.http_port),
            startup_patience_seconds=_count(environment, "STARTUP_PATIENCE_SECONDS", cls.startup_patience_seconds),
            log_format=_one_of(environment, "LOG_FORMAT", cls.log_format, LOG_FORMATS),
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


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, "").strip() or str(default)
    if not value.isdecimal():
        raise SettingsError(f"{name} is {value!r}: a whole number is needed")
    return int(value)
