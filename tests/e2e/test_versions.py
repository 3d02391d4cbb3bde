"""Two versions side by side: the chart is upgraded while a run is alive, and an older runner meets a newer operator."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.image_spec import PREVIOUS_VERSION
from tests.e2e.conftest import Installation
from tests.e2e.runs import a_short_run, cluster_is_gone, pods, start, succeeds, the_end, wait_for_step
from tests.harness import OPERATOR_NAMESPACE, CommandError, Object, build_images, install_operator, remove_operator

pytestmark = pytest.mark.cluster
CHART = Path(__file__).parent / "releases" / PREVIOUS_VERSION / f"agent-tuning-operator-{PREVIOUS_VERSION}.tgz"


@pytest.fixture(scope="module")
def older_images(installation: Installation) -> dict[str, str]:
    """Images with the code of the previous version."""
    built = build_images(*(f"{name}-{PREVIOUS_VERSION}" for name in ("operator", "tiny")))
    return installation.images | {name.removesuffix(f"-{PREVIOUS_VERSION}"): image for name, image in built.items()}


@pytest.fixture
def previous(installation: Installation, older_images: dict[str, str]) -> Iterator[Installation]:
    """The previous version, newly installed: chart, operator and runner."""
    remove_operator(installation.cluster)
    install_operator(installation.cluster, older_images, CHART)
    yield replace(installation, images=older_images)
    install_operator(installation.cluster, installation.images)


def test_a_run_lives_through_an_upgrade_of_the_chart_and_succeeds(
    installation: Installation, previous: Installation
) -> None:
    run = a_short_run(previous, "upgraded", steps=60)
    start(previous, run)
    wait_for_step(previous, "upgraded", 3)
    with pytest.raises(CommandError, match="unknown field"):
        dry_run(previous, with_something_new(run, "refused"))
    before = lives_of_pods(previous, "upgraded")
    assert len(before) == 2, before
    install_operator(installation.cluster, installation.images)
    operators = installation.cluster.objects("pods", OPERATOR_NAMESPACE, "!job-name")
    assert installation.images["operator"] in {pod["spec"]["containers"][0]["image"] for pod in operators}
    assert lives_of_pods(installation, "upgraded") == before
    dry_run(installation, with_something_new(run, "accepted"))
    ended = succeeds(installation, "upgraded")
    assert ended["status"]["progress"]["step"] == 60
    assert ended["status"]["attempt"]["number"] == 1
    job = installation.cluster.find("job", ended["status"]["attempt"]["jobName"], installation.namespace)
    assert job is not None
    assert (job["status"].get("succeeded"), job["status"].get("failed", 0)) == (1, 0)


def test_a_newer_operator_runs_what_an_older_runner_can(
    installation: Installation, older_images: dict[str, str]
) -> None:
    older = replace(installation, images=older_images)
    start(older, a_short_run(older, "older-runner", steps=2))
    assert succeeds(older, "older-runner")["status"]["progress"]["step"] == 2


def test_what_an_older_runner_lacks_is_named_with_its_version(
    installation: Installation, older_images: dict[str, str]
) -> None:
    older = replace(installation, images=older_images)
    start(older, with_something_new(a_short_run(older, "too-old"), "too-old"))
    run = the_end(older, "too-old")
    assert (run["status"]["phase"], run["status"]["reason"]) == ("Failed", "ConfigInvalid"), run["status"]
    assert "the image has runner 0.1, which lacks `engine_config`: use a newer runner image" in run["status"]["message"]
    cluster_is_gone(older, "too-old")


def with_something_new(run: Object, name: str) -> Object:
    """The run under another name, with a field that the previous version does not have."""
    spec: dict[str, Any] = run["spec"] | {"engine": {"config": {"weight_decay": 0.01}}}
    return run | {"metadata": {"name": name}, "spec": spec}


def dry_run(here: Installation, run: Object) -> None:
    """Let the server judge a run; CommandError has its words."""
    here.cluster.apply([run], here.namespace, "--dry-run=server")


def lives_of_pods(here: Installation, name: str) -> dict[str, tuple[str, int]]:
    """UID and restarts of every pod of a run."""
    found = {}
    for pod in pods(here, f"agenttuning.io/run={name}"):
        restarts = sum(state["restartCount"] for state in pod["status"].get("containerStatuses", []))
        found[pod["metadata"]["name"]] = (pod["metadata"]["uid"], restarts)
    return found
