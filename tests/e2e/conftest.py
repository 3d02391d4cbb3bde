"""The operator, installed by its chart on the full cluster, for all end-to-end tests."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.harness import Cluster, build_images, install_operator

NAMESPACE = "e2e"


@dataclass(frozen=True)
class Installation:
    """The cluster with the operator on it, and the images that runs use."""

    cluster: Cluster
    images: dict[str, str]
    namespace: str = NAMESPACE


@pytest.fixture(scope="session")
def installation(cluster: object) -> Iterator[Installation]:
    """The operator in a pod, and a namespace that enforces the restricted pod security standard."""
    here = Cluster.current()
    images = build_images("operator", "runner-trl", "tiny")
    install_operator(here, images)
    here.ensure_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
    yield Installation(here, images)
    # Tests that stop the cluster come last, and take the namespace with it.
    if here.answers():
        here.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s", seconds=150)
