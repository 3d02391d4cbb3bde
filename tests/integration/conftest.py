"""Fixtures of the operator's own integration tests."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.integration.operator_process import OperatorProcess, shared_operator
from tests.integration.stage import Stage

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane) -> Iterator[OperatorProcess]:
    """A running operator with a user of its own; all tests of a module share it."""
    with shared_operator(control_plane, f"operator-{next(_numbers)}") as process:
        yield process


@pytest.fixture
def stage(control_plane: ControlPlane) -> Stage:
    """A namespace of its own."""
    return Stage(control_plane.api, f"test-{next(_numbers)}")


@pytest.fixture
def another_operator(control_plane: ControlPlane) -> Iterator[Callable[..., OperatorProcess]]:
    """Makes operators that are stopped after the test."""
    made: list[OperatorProcess] = []

    def make(**environment: str) -> OperatorProcess:
        made.append(OperatorProcess(control_plane, f"operator-{next(_numbers)}", **environment))
        return made[-1]

    yield make
    for process in made:
        process.stop()
