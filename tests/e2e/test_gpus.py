"""The sample with a GPU, on a node that gets one (nothing stands behind it) while the run waits for it."""

import pytest

from tests.cluster.full import FullCluster
from tests.e2e.conftest import Installation
from tests.e2e.runs import delete, pods, start, the_run
from tests.harness import Object, condition, sample, wait_for

pytestmark = pytest.mark.cluster
GPU = "nvidia.com/gpu"
ASK_RAY = "import ray; ray.init(address='auto', log_to_driver=False); print('GPUs', ray.cluster_resources().get('GPU'))"


def test_a_run_waits_for_a_gpu_says_so_and_its_ray_head_then_sees_it(
    installation: Installation, cluster: FullCluster
) -> None:
    name = "lora-gpu"
    code, run = sample(name, None)
    # As much as this machine has; the GPU is what matters.
    run["spec"]["cluster"]["head"] |= {"cpu": "1", "memory": "4Gi"}
    start(installation, code, run)
    wait_for("word of the missing GPU", lambda: f"Insufficient {GPU}" in message_of(installation, name), 40)
    with cluster.node.offering(GPU, 1):
        head = wait_for("ready head", lambda: ready_head(installation, name), 120)
        resources = next(item for item in head["spec"]["containers"] if item["name"] == "ray-head")["resources"]
        assert resources["limits"][GPU] == resources["requests"][GPU] == "1"
        place = ["exec", head["metadata"]["name"], "--namespace", installation.namespace, "-c", "ray-head"]
        assert "GPUs 1.0" in installation.cluster.kubectl(*place, "--", "python", "-c", ASK_RAY)
        assert the_run(installation, name)["status"]["display"]["gpus"] == "1"
        wait_for("ClusterReady", lambda: cluster_is_ready(installation, name), 20)
        delete(installation, name)
    assert GPU not in cluster.plane.api.get("/api/v1/nodes/node1")["status"]["capacity"]


def message_of(here: Installation, name: str) -> str:
    """What the status says."""
    return str(the_run(here, name).get("status", {}).get("message", ""))


def ready_head(here: Installation, name: str) -> Object | None:
    """The head pod once it is ready."""
    found = pods(here, f"agenttuning.io/run={name},ray.io/node-type=head")
    ready = [pod for pod in found if condition(pod, "Ready").get("status") == "True"]
    return ready[0] if ready else None


def cluster_is_ready(here: Installation, name: str) -> bool:
    """Whether the operator takes the cluster for ready."""
    return bool(condition(the_run(here, name), "ClusterReady").get("status") == "True")
