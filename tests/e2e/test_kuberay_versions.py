"""KubeRay in the other supported versions: the journey of a run on each, put in place on the running cluster."""

from collections.abc import Iterator

import pytest

from tests.cluster.addons import KUBERAY_NAMESPACE
from tests.cluster.binaries import KUBERAY_VERSION, KUBERAY_VERSIONS
from tests.cluster.full import FullCluster
from tests.e2e.conftest import Installation
from tests.e2e.runs import a_short_run, start, succeeds

pytestmark = pytest.mark.cluster


@pytest.fixture(params=[version for version in KUBERAY_VERSIONS if version != KUBERAY_VERSION])
def kuberay(request: pytest.FixtureRequest, cluster: FullCluster) -> Iterator[str]:
    """Another version of KubeRay, for one test."""
    cluster.use_kuberay(request.param)
    yield request.param
    cluster.use_kuberay(KUBERAY_VERSION)


def test_a_run_succeeds_on_each_supported_version_of_kuberay(installation: Installation, kuberay: str) -> None:
    name = f"kuberay-{kuberay.replace('.', '-')}"
    operators = installation.cluster.objects("pods", KUBERAY_NAMESPACE)
    assert [f":{kuberay}-" in pod["spec"]["containers"][0]["image"] for pod in operators] == [True]
    start(installation, a_short_run(installation, name))
    run = succeeds(installation, name)
    assert run["status"]["progress"]["step"] == 3
