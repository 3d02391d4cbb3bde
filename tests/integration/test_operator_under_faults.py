"""Many runs while one in a hundred requests, and events of a watch, goes wrong: they end as without faults.

`make kill` lets three hundred live so, `make test` fewer.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.faults.ends import NAME, Ends
from tests.faults.kept_api import KeptApi
from tests.faults.players import Cast, Ending, Life, Seen
from tests.faults.proxy import FaultProxy, Upstream
from tests.faults.requests import Exchange, Fault
from tests.faults.rules import Chances, Nothing, Rule
from tests.integration.operator_process import OperatorProcess

pytestmark = [pytest.mark.control_plane, pytest.mark.timeout(900)]

RUNS = int(os.environ.get("FAULTED_RUNS", "60"))
ENOUGH = 300
"""Runs in which every kind of fault happens but by the rarest chance."""
SEED = 5
PATIENCE_SECONDS = 400
CHANCES = Chances(
    {
        Fault.SERVER_ERROR: 0.0025,
        Fault.TOO_MANY: 0.0025,
        Fault.RESET_BEFORE: 0.0025,
        Fault.RESET_AFTER: 0.0025,
        Fault.LIST_GONE: 0.01,
        Fault.WATCH_DROPPED: 0.005,
        Fault.WATCH_GONE: 0.005,
    },
    SEED,
)
MORE_WRITES = 1.05
"""As many as without faults, at most."""

# Of ten runs eight succeed at once.
SUCCESS = Life((Ending.SUCCEEDS,))
LOST_HEAD = Life((Ending.LOSES_HEAD, Ending.SUCCEEDS), {"retry": {"backoffSeconds": 0}})
SUSPENDED = Life((Ending.SUSPENDED, Ending.SUCCEEDS))
LIVES = (*(SUCCESS for _ in range(8)), LOST_HEAD, SUSPENDED)


@dataclass(frozen=True)
class Round:
    """All runs under one rule."""

    exchanges: list[Exchange]
    ends: Ends
    left: dict[str, Seen]
    seconds: float
    log: str

    @property
    def writes(self) -> int:
        """Requests that were to change an object, those that failed included."""
        return sum(item.request.is_write for item in self.exchanges)

    @property
    def faults(self) -> Counter[Fault]:
        """What went wrong how often."""
        return Counter(item.fault for item in self.exchanges if item.fault)


@pytest.fixture(scope="module")
def rounds(control_plane: ControlPlane) -> Iterator[tuple[Round, Round]]:
    """Without faults, and with them."""
    with KeptApi(control_plane) as api:
        found = tuple(
            _play(control_plane, api, f"faults-{name}", rule) for name, rule in (("no", Nothing()), ("yes", CHANCES))
        )
        yield found[0], found[1]


def _play(plane: ControlPlane, api: KeptApi, name: str, rule: Rule) -> Round:
    config = plane.state / f"{name}.kubeconfig"
    operator = OperatorProcess(plane, name, KUBECONFIG=str(config))
    identity = plane.authority.client(f"behind-{name}", name)
    with FaultProxy(Upstream(plane.server, plane.authority.certificate, identity)) as proxy:
        proxy.kubeconfig(config)
        operator.start()
        proxy.rule = rule
        began = time.monotonic()
        with Cast(api, NAME, {f"{name}-{number}": LIVES[number % len(LIVES)] for number in range(RUNS)}) as cast:
            while on := cast.play():
                assert time.monotonic() < began + PATIENCE_SECONDS, f"{sorted(on)} do not end: {operator.log[-3000:]}"
                time.sleep(0.2)
        seconds = time.monotonic() - began
        operator.stop()
        exchanges = list(proxy.exchanges)
    return Round(exchanges, Ends(plane.audit_events(name), exchanges), cast.look(), seconds, operator.log)


def test_every_run_ends_as_without_faults_and_no_child_is_made_twice(rounds: tuple[Round, Round]) -> None:
    calm, faulty = rounds
    wrong = {}
    for number in range(RUNS):
        before, after = f"faults-no-{number}", f"faults-yes-{number}"
        expected = calm.ends.of(before, calm.left[before])
        assert set(expected.made.values()) == {1}
        told = faulty.ends.of(after, faulty.left[after]).differences(expected)
        if told:
            wrong[after] = (told, faulty.ends.writes(after))
    assert not wrong, json.dumps(wrong, indent=1)[:20000]


def test_faults_cost_few_writes_more(rounds: tuple[Round, Round]) -> None:
    calm, faulty = rounds
    for name, played in (("without faults", calm), ("with faults", faulty)):
        print(f"{name}: {played.writes} writes, {len(played.exchanges)} requests, {played.seconds:.0f} s")
    print({fault.value: count for fault, count in sorted(faulty.faults.items())})
    assert faulty.writes <= MORE_WRITES * calm.writes


def test_faults_have_happened_and_none_was_unexpected(rounds: tuple[Round, Round]) -> None:
    calm, faulty = rounds
    assert not calm.faults
    assert faulty.faults
    if RUNS >= ENOUGH:
        # Lists are few: whether one is gone is up to chance.
        assert set(faulty.faults) | {Fault.LIST_GONE} == set(Fault)
    assert "unexpected" not in calm.log + faulty.log
