"""Settings come from the environment that the chart sets."""

import pytest

from tuning_operator.errors import SettingsError
from tuning_operator.settings import Settings

ENVIRONMENT = {"OPERATOR_IMAGE": "operator:1", "RUNNER_IMAGE": "runner:1"}


def test_the_operators_own_image_is_all_that_must_be_set() -> None:
    assert Settings.from_mapping({"OPERATOR_IMAGE": "operator:1"}) == Settings(operator_image="operator:1")


def test_every_variable_is_read() -> None:
    more = {
        "IMAGE_PULL_POLICY": "Never",
        "WATCH_NAMESPACE": "ml",
        "LOG_LEVEL": "debug",
        "LOG_FORMAT": "json",
        "HTTP_PORT": "0",
        "STARTUP_PATIENCE_SECONDS": "60",
    }
    assert Settings.from_mapping(ENVIRONMENT | more) == Settings(
        operator_image="operator:1",
        runner_image="runner:1",
        image_pull_policy="Never",
        watch_namespace="ml",
        log_level="debug",
        log_format="json",
        http_port=0,
        startup_patience_seconds=60,
    )


def test_a_missing_image_is_named() -> None:
    with pytest.raises(SettingsError, match="OPERATOR_IMAGE is not set"):
        Settings.from_mapping({"RUNNER_IMAGE": "runner:1", "OPERATOR_IMAGE": " "})


def test_an_unknown_value_is_answered_with_those_allowed() -> None:
    with pytest.raises(
        SettingsError, match="IMAGE_PULL_POLICY is 'Sometimes': allowed are Always, IfNotPresent, Never"
    ):
        Settings.from_mapping(ENVIRONMENT | {"IMAGE_PULL_POLICY": "Sometimes"})


def test_a_count_must_be_a_whole_number() -> None:
    with pytest.raises(SettingsError, match="HTTP_PORT is 'x': a whole number is needed"):
        Settings.from_mapping(ENVIRONMENT | {"HTTP_PORT": "x"})
