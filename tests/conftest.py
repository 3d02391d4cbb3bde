"""Fixtures of the local cluster, for every test that needs a real Kubernetes.

`control_plane`: etcd and kube-apiserver with an audit log and all CRDs, for this test session alone. `cluster`: the
full cluster of this machine, shared with whoever started it. Where the machine cannot run them the tests are skipped
with the reason; with REQUIRE_CLUSTER=1 they fail instead. KUBERAY=1.5.1 gives the control plane the CRDs of that
version of KubeRay instead of the newest one's.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cluster import paths
from tests.cluster.binaries import KUBERAY_VERSION
from tests.cluster.control_plane import ControlPlane, running_control_planes
from tests.cluster.errors import UnavailableError
from tests.cluster.full import FullCluster

UseKuberay = Callable[[str], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A running control plane; gone after the session."""
    _stop_abandoned()
    plane = ControlPlane(paths.control_plane_state(f"pytest-{os.getpid()}"))
    try:
        try:
            plane.start(os.environ.get("KUBERAY", KUBERAY_VERSION))
        except UnavailableError as error:
            _unavailable(error)
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def kuberay_crds(control_plane: ControlPlane) -> UseKuberay:
    """Swaps KubeRay's CRDs on the control plane for as long as a `with` block: `with kuberay_crds("1.5.1"):`.

    The other version's come back after it. Clean up what the block made: objects outlive the swap.
    """

    @contextmanager
    def use(version: str) -> Iterator[None]:
        before = control_plane.kuberay_version or KUBERAY_VERSION
        control_plane.use_kuberay(version)
        try:
            yield
        finally:
            control_plane.use_kuberay(before)

    return use


@pytest.fixture(scope="session")
def cluster_was_there() -> bool:
    """Whether a full cluster, healthy or not, was there before this session."""
    return FullCluster().state.is_dir()


@pytest.fixture(scope="session")
def cluster(cluster_was_there: bool) -> Iterator[FullCluster]:
    """The full cluster, healthy; stopped after the session if it was the session that started it.

    With KEEP_CLUSTER=1 it stays up, so that the next session starts sooner.
    """
    full = FullCluster()
    try:
        full.up()
    except UnavailableError as error:
        _unavailable(error)
    yield full
    if not cluster_was_there and os.environ.get("KEEP_CLUSTER") != "1":
        full.down(keep_registry=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that stop the cluster after all others."""
    items.sort(key=lambda item: item.get_closest_marker("stops_cluster") is not None)


def _stop_abandoned() -> None:
    """Stop the control planes of test sessions that were killed."""
    for name in running_control_planes(paths.control_plane_state("")):
        session = name.removeprefix("pytest-")
        if name != session and not Path("/proc", session).exists():
            ControlPlane(paths.control_plane_state(name)).stop()


def _unavailable(error: UnavailableError) -> NoReturn:
    if os.environ.get("REQUIRE_CLUSTER") == "1":
        pytest.fail(f"REQUIRE_CLUSTER=1, but this machine cannot run it: {error}", pytrace=False)
    pytest.skip(str(error))
