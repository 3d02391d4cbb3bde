"""A real Prometheus that takes remote writes, shared by the tests of the sidecar."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sidecar.processes import Prometheus, a_prometheus


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A real Prometheus that takes remote-write."""
    if not Path("/usr/bin/prometheus").exists():
        message = "no /usr/bin/prometheus (Debian package `prometheus`)"
        if os.environ.get("REQUIRE_CLUSTER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    with a_prometheus(tmp_path_factory.mktemp("prometheus")) as server:
        yield server
