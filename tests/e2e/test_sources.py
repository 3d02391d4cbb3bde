"""Models and datasets from elsewhere: a Hugging Face hub that these tests serve themselves, and a finished run."""

import base64
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.full import FullCluster
from tests.e2e.conftest import Installation
from tests.e2e.runs import a_short_run, cluster_is_gone, in_a_pod, log_of, start, succeeds, the_run
from tests.harness import Object, condition, install_operator, wait_for
from tests.hub import Hub

pytestmark = pytest.mark.cluster
CACHE = "hub-cache"
MODEL, TASKS = "agent-tuning/tiny", "agent-tuning/sums"
PACK = (
    "import base64, io, tarfile\n"
    "packed = io.BytesIO()\n"
    "with tarfile.open(fileobj=packed, mode='w:gz') as archive:\n"
    f"    archive.add('/opt/models/tiny', 'models/{MODEL}')\n"
    f"    archive.add('/opt/data/train.jsonl', 'datasets/{TASKS}/train.jsonl')\n"
    "print(base64.b64encode(packed.getvalue()).decode())\n"
)


@pytest.fixture(scope="module")
def hub(installation: Installation, cluster: FullCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with the tiny model and its tasks, known to the installation, which shares one cache among all runs."""
    root = tmp_path_factory.mktemp("hub")
    start(installation, a_shared_claim(CACHE))
    unpack(in_a_pod(installation, CACHE, PACK), root)
    with Hub(root, host=cluster.plane.address.node) as hub:
        values = {
            "defaults.env[0].name": "HF_ENDPOINT",
            "defaults.env[0].value": hub.url,
            "defaults.huggingFaceCache.claimName": CACHE,
        }
        install_operator(installation.cluster, installation.images, values=values)
        yield hub
    install_operator(installation.cluster, installation.images)


def a_shared_claim(name: str) -> Object:
    """A claim that several pods may write."""
    spec: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def unpack(text: str, folder: Path) -> None:
    """Write what PACK printed."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text)), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")


def a_run_from_the_hub(here: Installation, name: str) -> Object:
    """A short run with model and tasks from the hub."""
    run = a_short_run(here, name, steps=2)
    run["spec"]["model"] = of_tiny_size(huggingFace={"repo": MODEL})
    run["spec"]["dataset"] = run["spec"]["dataset"] | {"train": {"huggingFace": {"repo": TASKS, "split": "train"}}}
    return run


def of_tiny_size(**source: Any) -> dict[str, Any]:
    """A model block with a source, and the lengths of the tiny sample."""
    return {**source, "maxModelLength": 64, "maxResponseTokens": 4}


def downloads(hub: Hub, ending: str) -> int:
    """How often the content of a file with this ending was sent."""
    return sum(
        request.method == "GET" and request.path.endswith(ending) and request.status == 200 for request in hub.requests
    )


def test_runs_from_a_hub_download_once_and_another_run_goes_on_from_what_came_out(
    installation: Installation, hub: Hub
) -> None:
    start(installation, a_run_from_the_hub(installation, "hub-first"))
    chained = a_short_run(installation, "chained", steps=2)
    chained["spec"]["model"] = of_tiny_size(run={"name": "hub-first"})
    start(installation, chained)
    refusal = wait_for("word on the unfinished run", lambda: refused(installation, "chained"), 20)
    assert refusal["reason"] == "RunNotFinished"
    assert "hub-first" in refusal["message"]
    first = succeeds(installation, "hub-first")
    assert first["status"]["display"]["model"] == "tiny"
    assert (downloads(hub, "model.safetensors"), downloads(hub, "train.jsonl")) == (1, 1)
    assert succeeds(installation, "chained")["status"]["progress"]["step"] == 2
    start(installation, a_run_from_the_hub(installation, "hub-second"))
    assert succeeds(installation, "hub-second")["status"]["progress"]["step"] == 2
    assert (downloads(hub, "model.safetensors"), downloads(hub, "train.jsonl")) == (1, 1), log_of(
        installation, "hub-second"
    )


def test_a_repository_that_does_not_exist_is_named(installation: Installation, hub: Hub) -> None:
    run = a_run_from_the_hub(installation, "hub-absent")
    run["spec"]["model"] = of_tiny_size(huggingFace={"repo": "agent-tuning/absent"})
    start(installation, run)
    wait_for("end", lambda: condition(the_run(installation, "hub-absent"), "Finished").get("status") == "True", 120)
    status = the_run(installation, "hub-absent")["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "ConfigInvalid"), status
    assert "agent-tuning/absent" in status["message"]
    cluster_is_gone(installation, "hub-absent")


def refused(here: Installation, name: str) -> Object | None:
    """The condition Accepted of a run, when it is False."""
    found = condition(the_run(here, name), "Accepted")
    return found if found.get("status") == "False" else None
