"""The operator is killed between every two consecutive writes of a run's life, and each time the end is the same.

Each life is lived once undisturbed; that gives its writes. Then it is lived twice for each of its writes, all side by
side: once the operator dies before the write reached the server, once after, before it heard of that. In one more it
dies after every single write. The proxy holds each write where it shall be, so that one SIGKILL serves many runs.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.cluster.api import Api
from tests.cluster.control_plane import ControlPlane
from tests.faults.ends import NAME, End, Ends
from tests.faults.gate import Moment
from tests.faults.kept_api import KeptApi
from tests.faults.players import Cast, Ending, Life, Seen
from tests.faults.proxy import FaultProxy, Upstream
from tests.integration.operator_process import OperatorProcess

pytestmark = [pytest.mark.control_plane, pytest.mark.timeout(900)]

HANDS = 10
"""Writes that are held before a kill: the operator works on 24 runs at a time, and most must go on."""
QUIET_SECONDS = 1.0
"""Without a request for so long, nothing more will come to be held."""
PATIENCE_SECONDS = 500


LIVES = {
    "success": Life((Ending.SUCCEEDS,)),
    "lost-head": Life((Ending.LOSES_HEAD, Ending.SUCCEEDS), {"retry": {"backoffSeconds": 0}}),
    "suspended": Life((Ending.SUSPENDED, Ending.SUCCEEDS)),
    "cleaned-up": Life((Ending.FAILS,), {"cleanup": {"clusterTTLSeconds": 1, "runTTLSeconds": 2}}),
}


@pytest.fixture(scope="module")
def theatre(control_plane: ControlPlane) -> Iterator["Theatre"]:
    """A running operator behind a proxy."""
    config = control_plane.state / "proxy.kubeconfig"
    operator = OperatorProcess(control_plane, "killed", KUBECONFIG=str(config))
    identity = control_plane.authority.client(f"behind-{operator.user}", operator.user)
    upstream = Upstream(control_plane.server, control_plane.authority.certificate, identity)
    with FaultProxy(upstream) as proxy, KeptApi(control_plane) as api:
        proxy.kubeconfig(config)
        operator.start()
        yield Theatre(api, proxy, operator)
        operator.stop()


@dataclass(frozen=True)
class Part:
    """One run: its life, and the writes at which the operator is killed."""

    life: Life
    points: Mapping[int, Moment] = field(default_factory=dict)


class Theatre:
    """One proxy, one operator that may die, and runs that live."""

    def __init__(self, api: Api, proxy: FaultProxy, operator: OperatorProcess) -> None:
        self.api, self.proxy, self.operator = api, proxy, operator
        self.kills = 0
        self.left: dict[str, Seen] = {}

    def play(self, parts: Mapping[str, Part]) -> None:
        """Let one run live in each namespace."""
        for namespace, part in parts.items():
            self.proxy.gate.hold((namespace, NAME), part.points)
        with Cast(self.api, NAME, {namespace: part.life for namespace, part in parts.items()}) as cast:
            self._play(cast)

    def _play(self, cast: Cast) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        requests, quiet_since = 0, time.monotonic()
        while True:
            held = {namespace for namespace, _ in self.proxy.gate.held}
            on = cast.play(waiting=held)
            if not on:
                self.left |= cast.look()
                return
            if len(self.proxy.exchanges) != requests:
                requests, quiet_since = len(self.proxy.exchanges), time.monotonic()
            if held and (len(held) >= min(HANDS, len(on)) or time.monotonic() - quiet_since > QUIET_SECONDS):
                self._kill()
            assert time.monotonic() < deadline, self._complaint(cast, on)
            time.sleep(0.05)

    def _kill(self) -> None:
        self.operator.kill()
        self.proxy.gate.forget_held()
        self.kills += 1
        self.operator.start()

    def _complaint(self, cast: Cast, on: set[str]) -> str:
        seen = cast.look()
        ends = self.ends
        told = {name: (seen[name].status.get("phase"), ends.writes(name)) for name in sorted(on)}
        return f"these runs do not end: {json.dumps(told, indent=1)}\n{self.operator.log[-3000:]}"

    @property
    def ends(self) -> Ends:
        """What is recorded of all runs."""
        return Ends(self.operator.plane.audit_events(self.operator.user), list(self.proxy.exchanges))


@dataclass(frozen=True)
class Performance:
    """What was played."""

    theatre: Theatre
    ends: Ends
    namespaces: tuple[str, ...]

    def end(self, namespace: str) -> End:
        """What is left in a namespace."""
        return self.ends.of(namespace, self.theatre.left[namespace])


@pytest.fixture(scope="module")
def performance(theatre: Theatre) -> Performance:
    """All lives undisturbed, then all lives with all kills, side by side."""
    theatre.play({f"killed-{name}-not": Part(life) for name, life in LIVES.items()})
    ends = theatre.ends
    parts: dict[str, Part] = {}
    for name, life in LIVES.items():
        for number in range(len(ends.writes(f"killed-{name}-not"))):
            parts |= {f"killed-{name}-{moment}-{number}": Part(life, {number: moment}) for moment in Moment}
        parts[f"killed-{name}-after-each"] = Part(life, dict.fromkeys(range(1000), Moment.AFTER))
    began = time.monotonic()
    theatre.play(parts)
    print(f"{len(parts)} runs, {theatre.kills} kills, {time.monotonic() - began:.0f} s")
    return Performance(theatre, theatre.ends, tuple(parts))


@pytest.mark.parametrize("name", LIVES)
def test_a_run_ends_the_same_wherever_the_operator_is_killed(name: str, performance: Performance) -> None:
    calm = f"killed-{name}-not"
    expected = performance.end(calm)
    namespaces = [namespace for namespace in performance.namespaces if namespace.startswith(f"killed-{name}-")]
    assert len(namespaces) > 2 * len(performance.ends.writes(calm))
    found = {namespace: performance.end(namespace).differences(expected) for namespace in namespaces}
    wrong = {name: (told, performance.ends.writes(name)) for name, told in found.items() if told}
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.parametrize("name", LIVES)
def test_a_life_without_a_kill_is_the_life_that_was_meant(name: str, performance: Performance) -> None:
    end, life = performance.end(f"killed-{name}-not"), LIVES[name]
    numbers = range(1, len(life.endings) + 1)
    assert end.made == {f"{kind} {NAME}-{number}": 1 for kind in ("Job", "RayCluster") for number in numbers}
    assert set(end.attempts) == set(numbers)
    assert end.status["phase"] == ("Failed" if Ending.FAILS in life.endings else "Succeeded")
    assert [item["number"] for item in end.status["history"]] == list(numbers)


def test_the_operator_never_meets_what_it_did_not_expect(performance: Performance) -> None:
    assert "unexpected" not in performance.theatre.operator.log
