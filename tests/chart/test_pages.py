"""The pages on installing, operating and node pools show values that the chart takes, and a run that the API takes."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from tests.builders import a_run, a_run_object
from tests.chart.test_chart import only, operator_variables, render
from tests.chart.test_values import installed
from tests.cluster import binaries
from tests.harness import ROOT
from tests.unit.cluster.caches import some_caches
from tests.unit.engine.worlds import RUNNING
from tuning_operator.cluster.queue import WorkQueue
from tuning_operator.settings import CaBundle, NodePool, Settings
from tuning_operator.telemetry import Telemetry

PAGES = ROOT / "docs" / "how-to"


def blocks(page: str) -> list[dict[str, Any]]:
    """The YAML examples of a page."""
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)]


def settings_of(example: dict[str, Any], folder: Path) -> Settings:
    """What the operator reads when the example is the values file of its installation."""
    (folder / "values.yaml").write_text(yaml.safe_dump(example))
    return installed(values=folder / "values.yaml")


@pytest.fixture
def pools(tmp_path: Path) -> dict[str, NodePool]:
    """The pools of the page on node pools."""
    return dict(settings_of(blocks("use-node-pools.md")[0], tmp_path).node_pools)


def test_the_pools_of_the_page_can_be_installed(pools: dict[str, NodePool]) -> None:
    assert {name: (pool.resource_name, pool.max_gpus_per_node) for name, pool in pools.items()} == {
        "a100": ("nvidia.com/gpu", 8),
        "a100-slice": ("nvidia.com/mig-3g.40gb", 1),
        "cpu": ("nvidia.com/gpu", 0),
    }


def test_the_run_of_the_page_asks_for_pools_that_it_has_defined_and_for_no_more_gpus_than_they_have(
    pools: dict[str, NodePool],
) -> None:
    cluster = a_run(**blocks("use-node-pools.md")[1]).spec.cluster
    for pod in (cluster.head, *cluster.workers):
        assert pod.node_pool is not None
        most = pools[pod.node_pool].max_gpus_per_node
        assert most is not None
        assert pod.gpus <= most


def test_every_example_of_the_page_on_installing_can_be_installed(tmp_path: Path) -> None:
    found = [settings_of(example, tmp_path) for example in blocks("install.md")]
    namespaced, storage, proxy, patience, cache, lost = found
    assert namespaced.watch_namespace == "ml"
    assert storage.defaults.storage_class_name == "fast"
    assert set(proxy.defaults.env) == {"HTTPS_PROXY", "HF_ENDPOINT"}
    assert proxy.defaults.ca_bundle == CaBundle("authorities", "ca.crt")
    assert patience.startup_patience_seconds == 600
    assert cache.defaults.hub_cache_claim == "hub"
    assert lost.node_lost_seconds == 600


def test_the_pages_upgrade_with_options_that_helm_has_and_never_with_the_images_of_the_old_chart() -> None:
    helm = str(binaries.clients() / "helm")
    usage = subprocess.run([helm, "upgrade", "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    for page in ("use-node-pools.md", "install.md"):
        (command,) = re.findall(r"^helm upgrade(?: .*\\\n)* .*$", (PAGES / page).read_text(), re.MULTILINE)
        options = set(re.findall(r"--[a-z-]+", command))
        assert {option for option in options if f" {option} " not in usage} == set()
        assert "--reuse-values" not in options


def test_the_page_on_operating_speaks_of_series_that_the_operator_has() -> None:
    text = (PAGES / "operate.md").read_text()
    telemetry = Telemetry()
    caches = some_caches()
    telemetry.show(caches, WorkQueue(), lambda: True)
    caches.runs.put(a_run_object(status=RUNNING))
    served = generate_latest(telemetry.registry).decode()
    known = set(re.findall(r"^# TYPE (\S+)", served, re.MULTILINE))
    named = set(re.findall(r"\btuning(?:run|_operator)_[a-z_]+", text))
    assert len(named) > 8
    assert {name for name in named if name not in known and f"{name}_total" not in known} == set()


def test_the_names_that_the_page_on_operating_gives_are_those_of_its_installation(tmp_path: Path) -> None:
    text = (PAGES / "operate.md").read_text()
    assert settings_of(blocks("operate.md")[1], tmp_path).stop_key == "tuning-stop-key/key"
    objects = render("fullnameOverride=agent-tuning-operator")
    assert f"`{only(objects, 'Secret')['metadata']['name']}`" in text
    assert f"job/{only(objects, 'Job')['metadata']['name']}`" in text
    lease = next(item["value"] for item in operator_variables(objects) if item["name"] == "LEASE_NAME")
    assert f"get lease {lease} " in text
