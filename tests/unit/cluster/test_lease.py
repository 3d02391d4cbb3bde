"""The election: one holder at a time, judged by each one's own clock."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests.unit.cluster.server import Connection, Counted, FakeServer, a_status, served
from tuning_operator import errors
from tuning_operator.cluster.client import ApiClient, Selection
from tuning_operator.cluster.credentials import Credentials
from tuning_operator.cluster.lease import Election, Pace
from tuning_operator.cluster.resources import CONFIG_MAPS, JOBS

FAST = Pace(duration=1.0, patience=0.6, renew=0.1, retry=0.05)
PATH = "/apis/coordination.k8s.io/v1/namespaces/tuning/leases"


@dataclass
class LeaseServer:
    """Keeps one Lease as an API server would; `failing` answers with 500, `deaf` does what it is asked and hangs up."""

    lease: dict[str, Any] | None = None
    failing: bool = False
    deaf: int = 0
    writes: int = 0
    url: str = ""
    _versions: int = field(default=10)

    def touch(self, **spec: Any) -> None:
        """Change the Lease behind the back of all."""
        assert self.lease is not None
        self._store(self.lease, {"spec": spec})

    @property
    def holder(self) -> str | None:
        """Who holds it."""
        return None if self.lease is None else self.lease["spec"].get("holderIdentity")

    @asynccontextmanager
    async def election(self, identity: str, pace: Pace = FAST) -> AsyncIterator[Election]:
        """An election with a client of its own."""
        async with ApiClient(Credentials(Connection(self.url)), Counted(), 0.3) as client:
            yield Election(client, "tuning", "operator", identity, pace)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["LeaseServer"]:
        async with served(self._handle) as self.url:
            yield self

    def _store(self, lease: dict[str, Any], patch: dict[str, Any]) -> None:
        self._versions += 1
        spec = {key: value for key, value in (lease["spec"] | patch["spec"]).items() if value is not None}
        self.lease = {"metadata": {"name": "operator", "resourceVersion": str(self._versions)}, "spec": spec}

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert request.path == PATH + ("" if request.method == "POST" else "/operator")
        body = await request.json() if request.can_read_body else {}
        if self.failing:
            return _status(500)
        if request.method != "GET":
            self.writes += 1
            if request.method == "POST":
                if self.lease is not None:
                    return _status(409)
                self._store({"spec": {}}, body)
            elif self.lease is None:
                return _status(404)
            elif body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                return _status(409)
            else:
                self._store(self.lease, body)
            if self.deaf:
                self.deaf -= 1
                assert request.transport is not None
                request.transport.close()
        return web.json_response(self.lease) if self.lease is not None else _status(404)


def _status(code: int) -> web.Response:
    return web.json_response(a_status(code), status=code)


@pytest.fixture
async def server() -> AsyncIterator[LeaseServer]:
    async with LeaseServer().serve() as running:
        yield running


async def test_the_first_one_leads_and_the_second_does_not(server: LeaseServer) -> None:
    async with server.election("a") as first, server.election("b") as second:
        assert await first.attempt()
        assert not await second.attempt()
        assert (first.leads, second.leads) == (True, False)
        assert server.holder == "a"
        with pytest.raises(errors.Deposed, match="the Lease tuning/operator is not held"):
            second.confirm()
        first.confirm()


async def test_of_many_at_once_one_leads(server: LeaseServer) -> None:
    async with server.election("a") as a, server.election("b") as b, server.election("c") as c:
        assert sorted(await asyncio.gather(a.attempt(), b.attempt(), c.attempt())) == [False, False, True]


@pytest.mark.parametrize("renewed", ["2001-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
async def test_a_silent_leader_is_waited_for_by_ones_own_clock_whatever_time_it_wrote(
    server: LeaseServer, renewed: str
) -> None:
    async with server.election("a") as first, server.election("b") as second:
        await first.attempt()
        server.touch(renewTime=renewed)
        began = time.monotonic()
        await second.win()
        assert 1.0 <= time.monotonic() - began < 1.5
        assert server.lease is not None
        assert (server.holder, server.lease["spec"]["leaseTransitions"]) == ("b", 1)


async def test_a_leader_that_renews_is_never_replaced(server: LeaseServer) -> None:
    async with server.election("a") as first, server.election("b") as second:
        await first.attempt()
        tasks = [asyncio.create_task(first.keep()), asyncio.create_task(second.win())]
        done, _ = await asyncio.wait(tasks, timeout=2.5)
        assert not done
        for task in tasks:
            task.cancel()
        assert server.holder == "a"
        assert server.writes > 5


async def test_a_leader_that_steps_down_is_followed_at_once(server: LeaseServer) -> None:
    async with server.election("a") as first, server.election("b") as second:
        await first.attempt()
        waiting = asyncio.create_task(second.win())
        await asyncio.sleep(0.1)
        await first.step_down()
        began = time.monotonic()
        await waiting
        assert time.monotonic() - began < 0.3
        assert (first.leads, second.leads) == (False, True)


async def test_who_holds_nothing_gives_nothing_back(server: LeaseServer) -> None:
    async with server.election("a") as first, server.election("b") as second:
        await first.attempt()
        await second.step_down()
        assert server.holder == "a"


async def test_it_is_given_back_though_it_changed_meanwhile(server: LeaseServer) -> None:
    async with server.election("a") as first:
        await first.attempt()
        server.touch(renewTime="2099-01-01T00:00:00.000000Z")
        await first.step_down()
        assert server.holder is None


async def test_a_leader_that_cannot_renew_ends_before_another_may_lead(server: LeaseServer) -> None:
    async with server.election("a") as first, server.election("b") as second:
        await first.attempt()
        began = time.monotonic()
        waiting = asyncio.create_task(second.win())
        await asyncio.sleep(0.1)
        server.failing = True
        with pytest.raises(errors.Deposed):
            await first.keep()
        ended = time.monotonic() - began
        assert 0.5 < ended < 0.95
        assert not first.leads
        assert not second.leads
        server.failing = False
        await waiting
        assert server.holder == "b"


async def test_a_short_trouble_of_the_server_ends_nobody(server: LeaseServer) -> None:
    async with server.election("a") as first:
        await first.attempt()
        keeping = asyncio.create_task(first.keep())
        server.failing = True
        await asyncio.sleep(0.3)
        server.failing = False
        await asyncio.sleep(0.6)
        assert first.leads
        assert not keeping.done()
        keeping.cancel()


async def test_a_leader_that_slept_too_long_writes_nothing_more(server: LeaseServer) -> None:
    async with server.election("a") as first, server.election("b") as second:
        await first.attempt()
        await second.win()
        before = server.writes
        assert not first.leads
        with pytest.raises(errors.Deposed):
            await first.keep()
        assert server.writes == before


async def test_a_leader_that_finds_another_one_there_ends_at_once(server: LeaseServer) -> None:
    async with server.election("a", Pace(duration=9, patience=8, renew=0.1, retry=0.05)) as first:
        await first.attempt()
        server.touch(holderIdentity="b")
        async with asyncio.timeout(2):
            with pytest.raises(errors.Deposed):
                await first.keep()
        assert server.holder == "b"


async def test_a_lease_that_somebody_deleted_or_changed_is_renewed_all_the_same(server: LeaseServer) -> None:
    async with server.election("a") as first:
        await first.attempt()
        keeping = asyncio.create_task(first.keep())
        for harm in (lambda: server.touch(strategy="x"), lambda: setattr(server, "lease", None)):
            harm()
            await asyncio.sleep(0.5)
            assert server.holder == "a"
            assert first.leads
        keeping.cancel()


async def test_a_lease_that_was_taken_without_an_answer_is_ours(server: LeaseServer) -> None:
    server.deaf = 1
    async with server.election("a") as first:
        assert not await first.attempt()
        assert not first.leads
        assert server.holder == "a"
        assert await first.attempt()


async def test_without_a_namespace_nobody_is_asked(server: LeaseServer) -> None:
    async with ApiClient(Credentials(Connection(server.url)), Counted()) as client:
        async with Election(client, "", "operator", "a") as alone:
            await alone.win()
            await alone.keep()
            assert alone.leads
        assert server.lease is None


async def test_a_client_that_must_not_write_reads_and_writes_nothing() -> None:
    def refuse() -> None:
        raise errors.Deposed("no")

    server = FakeServer(answers=[web.json_response({}), web.json_response({"items": []})])
    async with server.serve(), ApiClient(Credentials(Connection(server.url)), Counted(), may_write=refuse) as client:
        await client.get(CONFIG_MAPS, "ml", "a")
        await client.list_page(Selection(JOBS), 1)
        for write in (
            client.create(JOBS, "ml", {}),
            client.patch(JOBS, "ml", "a", {}),
            client.patch_status(JOBS, "ml", "a", {}),
            client.delete(JOBS, "ml", "a", "uid"),
        ):
            with pytest.raises(errors.Deposed):
                await write
    assert [request.method for request in server.requests] == ["GET", "GET"]
