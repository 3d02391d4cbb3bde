"""What a run loses on the way: its driver, which it survives, and its head, which ends it and frees everything."""

import pytest

from tests.e2e.conftest import Installation
from tests.e2e.runs import a_tiny_run, cluster_is_gone, start, the_end, the_run
from tests.harness import Object, wait_for

pytestmark = pytest.mark.cluster


def a_long_run(here: Installation, name: str) -> Object:
    """The tiny sample with more steps than fit into the time that a test needs to act."""
    run = a_tiny_run(here, name)
    run["spec"]["algorithm"] |= {"steps": 120, "saveEverySteps": 40}
    return run


def pod_names(here: Installation, selector: str) -> list[str]:
    """Pods that a selector matches."""
    return [pod["metadata"]["name"] for pod in here.cluster.objects("pods", here.namespace, selector)]


def training_has_begun(here: Installation, name: str) -> bool:
    """Whether the training log shows a finished step."""
    job = the_run(here, name).get("status", {}).get("attempt", {}).get("jobName")
    if not job or not pod_names(here, f"batch.kubernetes.io/job-name={job}"):
        return False
    log = here.cluster.kubectl("logs", f"job/{job}", "--namespace", here.namespace, "--ignore-errors")
    return "step 3/120" in log


def test_a_run_outlives_its_drivers_pod(installation: Installation) -> None:
    start(installation, a_long_run(installation, "lost-driver"))
    wait_for("third step", lambda: training_has_begun(installation, "lost-driver"), 120)
    selector = "agenttuning.io/run=lost-driver,batch.kubernetes.io/job-name"
    installation.cluster.kubectl("delete", "pod", "--selector", selector, "--namespace", installation.namespace)
    run = the_end(installation, "lost-driver")
    assert run["status"]["phase"] == "Succeeded", run["status"]
    assert run["status"]["progress"]["step"] == 120
    log = installation.cluster.kubectl(
        "logs", f"job/{run['status']['attempt']['jobName']}", "--namespace", installation.namespace
    )
    assert "attached to Ray job" in log
    assert "step 1/120" in log
    cluster_is_gone(installation, "lost-driver")


@pytest.mark.parametrize(
    ("name", "kind", "selector"),
    [("lost-head", "pod", "ray.io/node-type=head"), ("lost-cluster", "raycluster", "agenttuning.io/run-uid")],
)
def test_a_run_that_loses_its_head_says_so_frees_everything_and_makes_no_other(
    installation: Installation, name: str, kind: str, selector: str
) -> None:
    start(installation, a_long_run(installation, name))
    wait_for("third step", lambda: training_has_begun(installation, name), 120)
    chosen = ["--selector", f"agenttuning.io/run={name},{selector}", "--namespace", installation.namespace]
    installation.cluster.kubectl("delete", kind, *chosen)
    run = the_end(installation, name, 120)
    assert run["status"]["phase"] == "Failed"
    assert run["status"]["reason"] == "HeadLost", run["status"]
    cluster_is_gone(installation, name, 60)
