"""Variables of the Ray containers: who wins, what is set unasked."""

from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.desired.test_raycluster import FROM_HUB, ray, worker
from tuning_operator.desired import raycluster
from tuning_operator.settings import CaBundle, RunDefaults


def values(container: Any) -> dict[str, str]:
    """Variables of a container that have a plain value."""
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


@pytest.mark.parametrize(
    "hub",
    [
        FROM_HUB,
        {"dataset": {"train": {"image": None, "huggingFace": {"repo": "a/b", "split": "train"}}}},
        {"dataset": {"evaluation": [{"name": "x", "huggingFace": {"repo": "a/b", "split": "test"}}]}},
    ],
)
def test_head_and_workers_ask_the_hub_only_where_the_run_has_something_from_it(hub: dict[str, Any]) -> None:
    workers: dict[str, Any] = {"cluster": {"workers": [{"name": "a"}]}}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    cases: list[tuple[dict[str, Any], dict[str, str]]] = [({}, offline), (hub, {})]
    for wanted, expected in cases:
        run = a_run(**wanted, **workers)
        for container in (ray(run), worker(run)["template"]["spec"]["containers"][0]):
            assert {name: value for name, value in values(container).items() if name in offline} == expected


def test_a_run_may_ask_the_hub_though_it_has_nothing_from_it() -> None:
    run = a_run(workflow={"env": [{"name": "HF_HUB_OFFLINE", "value": "0"}]})
    assert values(ray(run))["HF_HUB_OFFLINE"] == "0"
    built = raycluster.build(a_run(), some_settings(defaults=RunDefaults(env={"HF_DATASETS_OFFLINE": "0"})), 1)
    container = built["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert values(container)["HF_DATASETS_OFFLINE"] == "0"


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("place", ["installation", "run"])
def test_beside_a_proxy_the_cluster_itself_is_reached_without_it(name: str, place: str) -> None:
    given = {name: "http://proxy:3128"}
    defaults = RunDefaults(env=given if place == "installation" else {})
    env = [{"name": key, "value": value} for key, value in given.items()] if place == "run" else []
    run = a_run(workflow={"env": env}, cluster={"workers": [{"name": "a"}]})
    spec = raycluster.build(run, some_settings(defaults=defaults), 1)["spec"]
    for template in (spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"]):
        found = values(template["spec"]["containers"][0])
        assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1,.svc,.cluster.local"


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
@pytest.mark.parametrize(
    "value", [{"value": ".example.com"}, {"valueFrom": {"configMapKeyRef": {"name": "n", "key": "k"}}}]
)
def test_who_says_what_a_proxy_is_not_for_is_believed(name: str, value: dict[str, Any]) -> None:
    defaults = RunDefaults(env={"HTTPS_PROXY": "http://proxy:3128"})
    run = a_run(workflow={"env": [{"name": name, **value}]})
    spec = raycluster.build(run, some_settings(defaults=defaults), 1)["spec"]["headGroupSpec"]["template"]["spec"]
    assert [entry for entry in spec["containers"][0]["env"] if entry["name"].upper() == "NO_PROXY"] == [
        {"name": name, **value}
    ]


def test_a_runs_variable_wins_over_the_installations_and_ours_over_both() -> None:
    defaults = RunDefaults(env={"A": "installation", "B": "installation"}, ca_bundle=CaBundle("ca"))
    env = [
        {"name": "A", "value": "run"},
        {"name": "SSL_CERT_FILE", "value": "/own"},
        {"name": "TUNING_RUN_DOCUMENT", "value": "/evil"},
    ]
    built = raycluster.build(a_run(workflow={"env": env}), some_settings(defaults=defaults), 1)
    container = built["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    values = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (values["A"], values["B"], values["SSL_CERT_FILE"]) == ("run", "installation", "/own")
    assert values["REQUESTS_CA_BUNDLE"] == "/etc/agent-tuning/ca/ca.crt"
    assert values["TUNING_RUN_DOCUMENT"] == "/etc/agent-tuning/run/run.json"


def test_a_value_is_taken_literally_where_kubernetes_would_replace_a_part_of_it() -> None:
    env = [{"name": "A", "value": "$(HOME) costs 5$"}]
    assert {"name": "A", "value": "$$(HOME) costs 5$$"} in ray(a_run(workflow={"env": env}))["env"]
