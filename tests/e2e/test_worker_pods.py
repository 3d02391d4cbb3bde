"""Runs with worker pods, on which the episodes run while the head trains: that they do, and that one may be lost."""

import pytest

from tests.e2e.conftest import Installation
from tests.e2e.runs import (
    VOLUME,
    claim_of,
    in_a_pod,
    log_of,
    pods,
    start,
    succeeds,
    wait_for_step,
    with_workflow,
)
from tests.harness import Object, condition, sample, wait_for

pytestmark = pytest.mark.cluster


def a_run_with_workers(here: Installation, name: str, steps: int) -> list[Object]:
    """The sample with two worker pods, short; its episodes leave the names of their pods."""
    (run,) = sample("episode-workers", here.images["tiny"])
    run["metadata"] = {"name": name}
    run["spec"]["algorithm"] |= {"steps": steps, "saveEverySteps": steps}
    for pod in (run["spec"]["cluster"]["head"], *run["spec"]["cluster"]["workers"]):
        pod["cpu"] = "300m"  # all three fit on a machine with two cores
    return with_workflow(run, "leaves_a_mark.py")


def workers_of(here: Installation, name: str) -> set[str]:
    """Names of the run's worker pods that are ready."""
    found = pods(here, f"agenttuning.io/run={name},ray.io/node-type=worker")
    return {pod["metadata"]["name"] for pod in found if condition(pod, "Ready").get("status") == "True"}


def marks(here: Installation, run: Object) -> set[str]:
    """Names of the pods in which episodes ran."""
    folder = f"{VOLUME}/{here.namespace}/{claim_of(run)}/marks"
    return set(in_a_pod(here, claim_of(run), f"import os; print(*os.listdir({folder!r}))").split())


def test_episodes_run_in_the_worker_pods_and_nowhere_else(installation: Installation) -> None:
    start(installation, *a_run_with_workers(installation, "workers", 3))
    workers = wait_for("two workers", lambda: both(workers_of(installation, "workers")), 150)
    run = succeeds(installation, "workers")
    assert run["status"]["progress"]["step"] == 3
    assert marks(installation, run) == workers
    assert "episode workers on 2 nodes" in log_of(installation, "workers")


def test_a_run_survives_the_loss_of_a_worker_pod_and_uses_the_one_that_replaces_it(installation: Installation) -> None:
    start(installation, *a_run_with_workers(installation, "lost-worker", 50))
    wait_for_step(installation, "lost-worker", 3)
    before = workers_of(installation, "lost-worker")
    assert len(before) == 2
    lost = min(before)
    installation.cluster.kubectl("delete", "pod", lost, "--namespace", installation.namespace, "--wait=false")
    after = wait_for("its successor", lambda: both(workers_of(installation, "lost-worker") - {lost}), 90)
    run = succeeds(installation, "lost-worker", 300)
    assert run["status"]["progress"]["step"] == 50
    assert run["status"]["attempt"]["number"] == 1
    assert marks(installation, run) == before | after


def both(names: set[str]) -> set[str] | None:
    """The names, once there are two."""
    return names if len(names) == 2 else None
