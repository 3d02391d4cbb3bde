"""RayClusters of samples, written out whole: what changes in a manifest is seen in review.

`python -m tests.unit.desired.goldens` writes the files anew; `test_samples_manifests.py` fails while they differ.
"""

from pathlib import Path
from typing import Any

import yaml

from tests.builders import UID, some_settings
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import raycluster
from tuning_operator.settings import NodePool

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent / "golden"
NAMES = ("lora-gpu", "node-pool", "episode-workers")
"""Samples with GPUs or worker pods."""

POOLS = {
    "a100": NodePool(
        "a100",
        node_selector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
        max_gpus_per_node=8,
    ),
    "cpu": NodePool("cpu", node_selector={"node.kubernetes.io/instance-type": "c7i.8xlarge"}, max_gpus_per_node=0),
}
"""Those that docs/how-to/use-node-pools.md offers."""


def the_run(name: str) -> TuningRun:
    """The TuningRun of a sample, as the API server would give it in namespace `ml`."""
    documents = yaml.safe_load_all((ROOT / f"crds/samples/tuningrun.{name}.yaml").read_text())
    (found,) = [document for document in documents if document["kind"] == "TuningRun"]
    return TuningRun.from_object(found | {"metadata": found["metadata"] | {"namespace": "ml", "uid": UID}})


def built(name: str) -> dict[str, Any]:
    """The RayCluster of a sample's first attempt."""
    return raycluster.build(the_run(name), some_settings(node_pools=POOLS), 1)


def path(name: str) -> Path:
    """Where the RayCluster of a sample is written out."""
    return FOLDER / f"{name}.yaml"


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        path(name).write_text(yaml.safe_dump(built(name), sort_keys=False, width=120))


if __name__ == "__main__":
    main()
