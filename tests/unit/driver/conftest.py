"""The services that a driver talks to, each served for one test."""

from collections.abc import Iterator

import pytest

from tests.unit.driver.services import FakeRay, FakeSidecar, running


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    service = FakeRay()
    with running(service):
        yield service


@pytest.fixture
def sidecar() -> Iterator[FakeSidecar]:
    service = FakeSidecar()
    with running(service):
        yield service
