"""What a run loses on the way: its driver, which it survives, and its head, which ends it and frees everything."""

import pytest

from tests.e2e.conftest import Installation
from tests.e2e.runs import a_tiny_run, cluster_is_gone, log_of, start, succeeds, the_end, wait_for_step
from tests.harness import Object

pytestmark = pytest.mark.cluster


def a_long_run(here: Installation, name: str) -> Object:
    """The tiny sample with more steps than fit into the time that a test needs to act."""
    run = a_tiny_run(here, name)
    run["spec"]["algorithm"] |= {"steps": 120, "saveEverySteps": 40}
    return run


def test_a_run_outlives_its_drivers_pod(installation: Installation) -> None:
    start(installation, a_long_run(installation, "lost-driver"))
    wait_for_step(installation, "lost-driver", 3)
    selector = "agenttuning.io/run=lost-driver,batch.kubernetes.io/job-name"
    installation.cluster.kubectl("delete", "pod", "--selector", selector, "--namespace", installation.namespace)
    run = succeeds(installation, "lost-driver")
    assert run["status"]["progress"]["step"] == 120
    log = log_of(installation, "lost-driver")
    assert "attached to Ray job" in log
    assert "step 1/120" in log


@pytest.mark.parametrize(
    ("name", "kind", "selector"),
    [("lost-head", "pod", "ray.io/node-type=head"), ("lost-cluster", "raycluster", "agenttuning.io/run-uid")],
)
def test_a_run_that_loses_its_head_says_so_frees_everything_and_makes_no_other(
    installation: Installation, name: str, kind: str, selector: str
) -> None:
    start(installation, a_long_run(installation, name))
    wait_for_step(installation, name, 3)
    chosen = ["--selector", f"agenttuning.io/run={name},{selector}", "--namespace", installation.namespace]
    installation.cluster.kubectl("delete", kind, *chosen)
    run = the_end(installation, name, 120)
    assert run["status"]["phase"] == "Failed"
    assert run["status"]["reason"] == "HeadLost", run["status"]
    cluster_is_gone(installation, name, 60)
