"""Settings come from the environment that the chart sets."""

import json
from typing import Any

import pytest

from tuning_operator.api.v1alpha1_execution import DeletionPolicy
from tuning_operator.errors import SettingsError
from tuning_operator.settings import CaBundle, NodePool, RunDefaults, Settings

ENVIRONMENT = {"OPERATOR_IMAGE": "operator:1", "RUNNER_IMAGE": "runner:1"}
TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
A100: dict[str, Any] = {
    "name": "a100",
    "nodeSelector": {"nvidia.com/gpu.product": "A100"},
    "tolerations": [TAINT],
    "resourceName": "nvidia.com/mig-3g.40gb",
    "maxGPUsPerNode": 8,
}
DEFAULTS: dict[str, Any] = {
    "storageClassName": "fast",
    "deletionPolicy": "Delete",
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "caBundle": {"configMap": "authorities", "key": "all.pem"},
    "huggingFaceCache": {"claimName": "hub"},
}


def settings(**values: Any) -> Settings:
    """Settings with these variables, each as JSON."""
    return Settings.from_mapping(ENVIRONMENT | {name: json.dumps(value) for name, value in values.items()})


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
        "NODE_LOST_SECONDS": "30",
        "STOP_KEY": "secret\n",
        "LEASE_NAMESPACE": "tuning",
        "LEASE_NAME": "second",
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
        node_lost_seconds=30,
        stop_key="secret",
        lease_namespace="tuning",
        lease_name="second",
    )


def test_the_stop_key_stays_out_of_what_is_printed() -> None:
    assert "s3cret" not in repr(Settings.from_mapping(ENVIRONMENT | {"STOP_KEY": "s3cret"}))


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


def test_a_node_pool_is_read() -> None:
    assert settings(NODE_POOLS=[A100, {"name": "any"}, {"name": "cpu", "maxGPUsPerNode": 0}]).node_pools == {
        "a100": NodePool(
            name="a100",
            node_selector={"nvidia.com/gpu.product": "A100"},
            tolerations=(TAINT,),
            resource_name="nvidia.com/mig-3g.40gb",
            max_gpus_per_node=8,
        ),
        "any": NodePool(name="any", node_selector={}, tolerations=(), resource_name="nvidia.com/gpu"),
        "cpu": NodePool(name="cpu", max_gpus_per_node=0),
    }


def test_what_every_run_gets_is_read() -> None:
    assert settings(RUN_DEFAULTS=DEFAULTS).defaults == RunDefaults(
        storage_class_name="fast",
        deletion_policy=DeletionPolicy.DELETE,
        env={"HTTPS_PROXY": "http://proxy:3128"},
        ca_bundle=CaBundle("authorities", "all.pem"),
        hub_cache_claim="hub",
    )


@pytest.mark.parametrize("empty", [{}, {"caBundle": {"configMap": "", "key": "ca.crt"}, "huggingFaceCache": None}])
def test_what_is_left_out_of_the_defaults_is_nothing(empty: dict[str, Any]) -> None:
    assert settings(RUN_DEFAULTS=empty).defaults == RunDefaults()


def test_a_bundle_has_the_usual_key_unless_it_says_another() -> None:
    assert settings(RUN_DEFAULTS={"caBundle": {"configMap": "ca"}}).defaults.ca_bundle == CaBundle("ca", "ca.crt")


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("cpu", 'nodePools[0] is "cpu": an object is needed'),
        ({}, 'nodePools[0].name is "": use 1 to 63 small letters, digits and hyphens'),
        ({"name": "a" * 64}, f'nodePools[0].name is "{"a" * 64}": use 1 to 63 small letters, digits and hyphens'),
        ({"name": "A_100"}, 'nodePools[0].name is "A_100": use 1 to 63 small letters, digits and hyphens'),
        (
            A100 | {"taints": []},
            "nodePools[0].taints is not known: known are name, nodeSelector, tolerations, resourceName, maxGPUsPerNode",
        ),
        (
            A100 | {"nodeSelector": {"gpu": True}},
            "nodePools[0].nodeSelector.gpu is true: a text is needed: put it in quotes",
        ),
        *(
            (
                A100 | {"nodeSelector": {key: "x"}},
                f'nodePools[0].nodeSelector has the key "{key}": use a name such as team or example.com/team, with at '
                "most 63 letters, digits, hyphens, underscores and dots after the slash",
            )
            for key in ("a b", "a/b/c", "", "x" * 64, "a" * 254 + "/b")
        ),
        (
            A100 | {"nodeSelector": {"gpu": "a b"}},
            'nodePools[0].nodeSelector.gpu is "a b": use at most 63 letters, digits, hyphens, underscores and dots, '
            "the first and last no sign",
        ),
        (A100 | {"tolerations": TAINT}, f"nodePools[0].tolerations is {json.dumps(TAINT)}: a list is needed"),
        (
            A100 | {"tolerations": [{"kye": "gpu"}]},
            "nodePools[0].tolerations[0].kye is not known: known are key, operator, value, effect, tolerationSeconds",
        ),
        (
            A100 | {"resourceName": "gpu"},
            'nodePools[0].resourceName is "gpu": name a resource, such as nvidia.com/gpu',
        ),
        (A100 | {"maxGPUsPerNode": -1}, "nodePools[0].maxGPUsPerNode is -1: a whole number is needed, not below 0"),
        (A100 | {"maxGPUsPerNode": True}, "nodePools[0].maxGPUsPerNode is true: a whole number is needed, not below 0"),
    ],
)
def test_a_wrong_node_pool_is_refused_with_the_place_in_the_charts_values(pool: Any, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(NODE_POOLS=[pool])
    assert str(caught.value) == message


def test_two_pools_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        settings(NODE_POOLS=[A100, {"name": "cpu"}, {"name": "a100"}])
    assert str(caught.value) == 'nodePools[2].name is "a100": another pool has it: give each pool a name of its own'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"storageClass": "fast"},
            "defaults.storageClass is not known: "
            "known are storageClassName, deletionPolicy, env, caBundle, huggingFaceCache",
        ),
        ({"storageClassName": "Fast"}, 'defaults.storageClassName is "Fast": name a StorageClass'),
        ({"deletionPolicy": "Keep"}, 'defaults.deletionPolicy is "Keep": allowed are Retain, Delete'),
        ({"caBundle": {"name": "ca"}}, "defaults.caBundle.name is not known: known are configMap, key"),
        (
            {"caBundle": {"configMap": "ca", "key": "a/b"}},
            'defaults.caBundle.key is "a/b": name a key of the ConfigMap',
        ),
        ({"huggingFaceCache": {"claim": "hub"}}, "defaults.huggingFaceCache.claim is not known: known are claimName"),
        (
            {"huggingFaceCache": {"claimName": 7}},
            "defaults.huggingFaceCache.claimName is 7: a text is needed: put it in quotes",
        ),
        ({"env": {"A": "b"}}, 'defaults.env is {"A": "b"}: a list is needed'),
    ],
)
def test_a_wrong_default_is_refused_with_the_place_in_the_charts_values(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(RUN_DEFAULTS=DEFAULTS | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (
            {"name": "1ST", "value": "a"},
            'env[1].name is "1ST": use letters, digits and underscores, no digit first',
        ),
        ({"name": "RETRIES", "value": 3}, "env[1].value is 3: a text is needed: put it in quotes"),
        (
            {"name": "A", "valueFrom": {}},
            "env[1].valueFrom is not known: known are name, value",
        ),
        ({"name": "HTTPS_PROXY"}, 'env[1].name is "HTTPS_PROXY": it is set twice: remove one'),
        (
            {"name": "HF_HOME", "value": "/cache"},
            'env[1].name is "HF_HOME": the operator sets it: for a shared cache use `defaults.huggingFaceCache`',
        ),
        (
            {"name": "SSL_CERT_FILE", "value": "/ca"},
            'env[1].name is "SSL_CERT_FILE": `defaults.caBundle` sets it: remove one of the two',
        ),
        ({"name": "TUNING_ATTEMPT"}, 'env[1].name is "TUNING_ATTEMPT": the operator sets it: remove it'),
        ({"name": "PYTHONPATH"}, 'env[1].name is "PYTHONPATH": the operator sets it: remove it'),
    ],
)
def test_a_wrong_variable_is_refused(variable: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(RUN_DEFAULTS=DEFAULTS | {"env": [*DEFAULTS["env"], variable]})
    assert str(caught.value) == f"defaults.{message}"


def test_without_a_bundle_the_images_own_authorities_may_be_named() -> None:
    env = [{"name": "SSL_CERT_FILE", "value": "/etc/ssl/ours.pem"}]
    assert settings(RUN_DEFAULTS={"env": env}).defaults.env == {"SSL_CERT_FILE": "/etc/ssl/ours.pem"}


def test_what_is_no_json_is_named_as_variable_and_as_value_of_the_chart() -> None:
    with pytest.raises(SettingsError, match=r"NODE_POOLS is no JSON \(.*\): it must be the chart's value `nodePools`"):
        Settings.from_mapping(ENVIRONMENT | {"NODE_POOLS": "[{name: a100}]"})
