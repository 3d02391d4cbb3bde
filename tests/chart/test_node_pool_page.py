"""The page on node pools shows pools that the chart takes, and a run that the API takes and that names them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders import a_run
from tests.chart.test_values import installed
from tests.harness import ROOT
from tuning_operator.settings import NodePool

PAGE = (ROOT / "docs/how-to/use-node-pools.md").read_text()


def blocks(key: str) -> list[dict[str, Any]]:
    """The YAML examples of the page that have this key."""
    found = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    return [block for block in found if key in block]


@pytest.fixture
def pools(tmp_path: Path) -> dict[str, NodePool]:
    """The pools of the page, as the operator reads them from an installation with these values."""
    (tmp_path / "pools.yaml").write_text(yaml.safe_dump(blocks("nodePools")[0]))
    return dict(installed(values=tmp_path / "pools.yaml").node_pools)


def test_its_pools_can_be_installed(pools: dict[str, NodePool]) -> None:
    assert {name: (pool.resource_name, pool.max_gpus_per_node) for name, pool in pools.items()} == {
        "a100": ("nvidia.com/gpu", 8),
        "a100-slice": ("nvidia.com/mig-3g.40gb", 1),
        "cpu": ("nvidia.com/gpu", None),
    }


def test_its_run_asks_for_pools_that_it_has_defined_and_for_no_more_gpus_than_they_have(
    pools: dict[str, NodePool],
) -> None:
    cluster = a_run(**blocks("cluster")[0]).spec.cluster
    for pod in (cluster.head, *cluster.workers):
        assert pod.node_pool is not None
        assert pod.gpus <= (pools[pod.node_pool].max_gpus_per_node or 0)
