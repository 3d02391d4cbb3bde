"""How a process comes to lead: its Lease first, then copies that are younger than that."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.cluster.server import FakeServer, an_object
from tuning_operator.__main__ import _lead
from tuning_operator.cluster.client import ApiClient, Selection
from tuning_operator.cluster.informer import Informer, Subject
from tuning_operator.cluster.observe import Caches
from tuning_operator.cluster.queue import WorkQueue
from tuning_operator.cluster.resources import CLAIMS, JOBS, PODS, RAY_CLUSTERS, TUNING_RUNS, Resource


@dataclass
class Candidate:
    """An election that is won when the test says so."""

    at_once: bool
    won: asyncio.Event = field(default_factory=asyncio.Event)
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    keeps: int = 0

    async def attempt(self) -> bool:
        return self.at_once

    async def win(self) -> None:
        self.waits.set()
        await self.won.wait()

    async def keep(self) -> None:
        self.keeps += 1


class LookedAt:
    """A KubeRay that was looked at."""

    def __init__(self) -> None:
        self.looked = asyncio.Event()

    async def run(self) -> None:
        self.looked.set()


@dataclass(frozen=True)
class View:
    uid: str


def some_caches(client: ApiClient, queue: WorkQueue) -> Caches:
    """Copies of all kinds, each of which wakes the queue."""

    def uid(raw: Any) -> str:
        return str(raw["metadata"]["uid"])

    def informer(resource: Resource) -> Informer[Any]:
        return Informer(client, Subject(Selection(resource), lambda raw: View(uid(raw)), uid, queue.add))

    return Caches(*(informer(kind) for kind in (TUNING_RUNS, RAY_CLUSTERS, JOBS, PODS, CLAIMS)))


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_leader_acts_on_what_was_listed_after_it_had_its_lease(at_once: bool) -> None:
    server, queue, candidate = FakeServer(), WorkQueue(), Candidate(at_once)
    server.set_list(5, an_object("a", 3))
    async with server.client() as client, asyncio.TaskGroup() as tasks:
        caches = some_caches(client, queue)
        leading = tasks.create_task(_lead(caches, LookedAt(), queue, candidate, tasks))  # type: ignore[arg-type]
        if not at_once:
            await candidate.waits.wait()
            await asyncio.sleep(0.05)
            assert len(queue) == 0, "who stands by lets all pass"
            assert [view.uid for view in caches.runs.views()] == ["uid-a"]
            # The leader before us made b and deleted a; our watches are late and tell of neither.
            server.set_list(9, an_object("b", 8))
            candidate.won.set()
        await leading
        assert candidate.keeps == 1
        uid = "uid-a" if at_once else "uid-b"
        for informer in caches.all():
            assert [view.uid for view in informer.views()] == [uid]
            assert informer.lists == (1 if at_once else 2)
        assert (await queue.get())[0] == uid
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task() and "Informer" in repr(task.get_coro()):
                task.cancel()
