"""The operator is killed between every two consecutive writes of a run's life, and each time the end is the same.

Each life is lived once undisturbed; that gives its writes. Then it is lived twice for each of its writes, all side by
side: once the operator dies before the write reached the server, once after, before it heard of that. In some more it
dies after every single write, or by chance. The proxy holds each write where it shall be, so that one SIGKILL serves
many runs.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.faults.gate import Moment
from tests.faults.players import Cast, Ending, Life, Player, Seen
from tests.faults.proxy import FaultProxy, Upstream
from tests.faults.requests import Exchange
from tests.integration.operator_process import OperatorProcess
from tests.integration.stage import Stage

pytestmark = pytest.mark.control_plane

NAME = "math-agent"
HANDS = 16
"""Writes that are held before a kill at the latest: the operator works on 24 runs at a time, some must go on."""
QUIET_SECONDS = 1.5
"""Without a request for so long, nothing more will come to be held."""
PATIENCE_SECONDS = 150

CHANCES = 4
"""Runs of each life at which the operator is killed by chance, again and again."""

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
    with FaultProxy(Upstream(control_plane.server, control_plane.authority.certificate, identity)) as proxy:
        proxy.kubeconfig(config)
        operator.start()
        yield Theatre(control_plane, proxy, operator)
        operator.stop()


@dataclass(frozen=True)
class Part:
    """One run: its life, and the writes at which the operator is killed."""

    life: Life
    points: Mapping[int, Moment] = field(default_factory=dict)


@dataclass(frozen=True)
class End:
    """What is left at the end of a run: what must not depend on who died when."""

    status: Any
    children: tuple[str, ...]
    """Kind and name of all that is left."""
    made: Mapping[str, int]
    """How often the server made a RayCluster or Job of that name."""
    attempts: tuple[int, ...]
    """The attempt's number as each write of the status left it."""


class Theatre:
    """One proxy, one operator that may die, and runs that live."""

    def __init__(self, plane: ControlPlane, proxy: FaultProxy, operator: OperatorProcess) -> None:
        self.plane, self.proxy, self.operator = plane, proxy, operator
        self.kills = 0
        self.left: dict[str, Seen] = {}

    def play(self, parts: Mapping[str, Part]) -> None:
        """Let one run live in each namespace."""
        for namespace, part in parts.items():
            self.proxy.gate.hold((namespace, NAME), part.points)
        api = self.plane.api
        cast = Cast(api, (Player(Stage(api, namespace, NAME), part.life) for namespace, part in parts.items()))
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
        told = {name: (seen[name].status.get("phase"), self.writes(name)) for name in sorted(on)}
        return f"these runs do not end: {json.dumps(told, indent=1)}\n{self.operator.log[-3000:]}"

    def exchanges(self, namespace: str) -> list[Exchange]:
        """The writes about one namespace."""
        return [
            item for item in list(self.proxy.exchanges) if item.request.is_write and item.request.namespace == namespace
        ]

    def writes(self, namespace: str) -> list[str]:
        """The writes about one namespace in words."""
        return [f"{item.request.verb} {item.request.resource} {item.status}" for item in self.exchanges(namespace)]

    def end(self, namespace: str) -> End:
        """What is left."""
        made = Counter(
            event["objectRef"]["name"]
            for event in self.plane.audit_events(self.operator.user)
            if event["verb"] == "create"
            and (event.get("objectRef") or {}).get("namespace") == namespace
            and event["objectRef"]["resource"] in ("rayclusters", "jobs")
            and event["responseStatus"]["code"] == 201
        )
        statuses = [
            json.loads(item.reply)
            for item in self.exchanges(namespace)
            if item.request.resource == "tuningruns/status" and item.status == 200
        ]
        seen = self.left[namespace]
        left = [f"{kind} {item['metadata']['name']}" for kind in ("jobs", "pods") for item in getattr(seen, kind)]
        return End(
            status=settled(statuses[-1]["status"]),
            children=tuple(sorted(map(without_uid, left))),
            made={without_uid(name): count for name, count in made.items()},
            attempts=tuple(item["status"]["attempt"]["number"] for item in statuses),
        )


@dataclass(frozen=True)
class Performance:
    """What was played, by namespace."""

    theatre: Theatre
    namespaces: tuple[str, ...]


def without_uid(text: str) -> str:
    return re.sub(rf"{NAME}-[0-9a-f]{{6}}", NAME, text)


def settled(value: Any, name: str = "") -> Any:
    """A status without what differs from run to run: times, UIDs, namespaces, and how long something took."""
    if isinstance(value, dict):
        return {key: settled(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [settled(item, name) for item in value]
    if name.endswith(("UID", "Time", "At", "Seconds")):
        return "..."
    if isinstance(value, str):
        return re.sub(r"killed-[a-z0-9-]+", "...", without_uid(value))
    return value


@pytest.fixture(scope="module")
def performance(theatre: Theatre) -> Performance:
    """All lives undisturbed, then all lives with all kills, side by side."""
    calm = {f"killed-{name}-not": Part(life) for name, life in LIVES.items()}
    theatre.play(calm)
    parts: dict[str, Part] = {}
    for name, life in LIVES.items():
        for number in range(len(theatre.writes(f"killed-{name}-not"))):
            parts |= {f"killed-{name}-{moment}-{number}": Part(life, {number: moment}) for moment in Moment}
        parts[f"killed-{name}-after-each"] = Part(life, dict.fromkeys(range(1000), Moment.AFTER))
        parts |= {f"killed-{name}-by-chance-{seed}": Part(life, by_chance(seed)) for seed in range(CHANCES)}
    began = time.monotonic()
    theatre.play(parts)
    print(f"{len(parts)} runs, {theatre.kills} kills, {time.monotonic() - began:.0f} s")
    return Performance(theatre, tuple(parts))


def by_chance(seed: int) -> dict[int, Moment]:
    """Every third write, on one side of it or the other."""
    chance = random.Random(seed)
    return {number: chance.choice(list(Moment)) for number in range(1000) if chance.random() < 1 / 3}


@pytest.mark.parametrize("name", LIVES)
def test_a_run_ends_the_same_wherever_the_operator_is_killed(name: str, performance: Performance) -> None:
    theatre, expected = performance.theatre, performance.theatre.end(f"killed-{name}-not")
    namespaces = [namespace for namespace in performance.namespaces if namespace.startswith(f"killed-{name}-")]
    assert len(namespaces) > 2 * len(theatre.writes(f"killed-{name}-not"))
    found = {namespace: differences(theatre.end(namespace), expected) for namespace in namespaces}
    wrong = {namespace: (found[namespace], theatre.writes(namespace)) for namespace in namespaces if found[namespace]}
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.parametrize("name", LIVES)
def test_a_life_without_a_kill_is_the_life_that_was_meant(name: str, performance: Performance) -> None:
    end, life = performance.theatre.end(f"killed-{name}-not"), LIVES[name]
    numbers = range(1, len(life.endings) + 1)
    assert end.made == {f"{NAME}-{number}": 2 for number in numbers}, "one RayCluster and one Job an attempt"
    assert set(end.attempts) == set(numbers)
    assert end.status["phase"] == ("Failed" if Ending.FAILS in life.endings else "Succeeded")
    assert len(end.status.get("history", ())) == len(life.endings)


def test_the_operator_never_meets_what_it_did_not_expect(performance: Performance) -> None:
    assert "unexpected" not in performance.theatre.operator.log


def differences(end: End, expected: End) -> list[str]:
    """What is not as it should be."""
    found = [
        f"{name}: {json.dumps(getattr(end, name))} instead of {json.dumps(getattr(expected, name))}"
        for name in ("status", "children", "made")
        if getattr(end, name) != getattr(expected, name)
    ]
    if list(end.attempts) != sorted(end.attempts):
        found.append(f"attempts went back: {end.attempts}")
    return found
