"""A small API server for tests of client and informer: it answers as it is told, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tuning_operator.cluster.client import ApiClient
from tuning_operator.cluster.credentials import Credentials


class SlowAnswer:
    """An answer that takes longer than anybody waits in a test."""


class Counted:
    """Remembers what the client told its observer."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.seen.append((verb, resource, code))


@dataclass
class Connection:
    """As kopf's login would find it, without TLS."""

    server: str
    token: str | None = "secret"
    ca_path: None = None
    ca_data: None = None
    insecure: bool | None = None
    certificate_path: None = None
    certificate_data: None = None
    private_key_path: None = None
    private_key_data: None = None

    def as_http_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


def an_object(name: str, version: int, uid: str = "", **more: Any) -> dict[str, Any]:
    metadata = {"namespace": "ml", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, **more}


def a_status(code: int, message: str = "no", reason: str = "") -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}


@asynccontextmanager
async def served(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Let one function answer every request; yields the address."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass
class FakeServer:
    """Lists from `pages`, watches from `events`; `answers` come before both, one for each request."""

    pages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[web.StreamResponse | Exception | SlowAnswer] = field(default_factory=list)
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    url: str = ""
    _streams: asyncio.Queue[list[dict[str, Any]] | None] = field(default_factory=asyncio.Queue)
    watches: int = 0

    def set_list(self, version: int, *items: dict[str, Any]) -> None:
        """What a list in one page gives."""
        self.pages = [{"metadata": {"resourceVersion": str(version)}, "items": list(items)}]

    def send(self, *events: tuple[str, dict[str, Any]]) -> None:
        """Send events to the watch that is open, or to the next one."""
        self._streams.put_nowait([{"type": kind, "object": item} for kind, item in events])

    def end_watch(self) -> None:
        """Let the server end the watch in good order."""
        self._streams.put_nowait(None)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["FakeServer"]:
        async with served(self._handle) as self.url:
            yield self

    @asynccontextmanager
    async def client(self, observer: Counted | None = None, timeout: float = 5.0) -> AsyncIterator[ApiClient]:
        async with self.serve(), ApiClient(Credentials(Connection(self.url)), observer or Counted(), timeout) as client:
            yield client

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        body = await request.read()
        self.bodies.append(json.loads(body) if body else None)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, SlowAnswer):
                await asyncio.sleep(1)
                return web.Response()
            if isinstance(answer, Exception):
                assert request.transport is not None
                request.transport.close()
                raise web.HTTPInternalServerError
            return answer
        if request.query.get("watch") == "true":
            return await self._watch(request)
        token = request.query.get("continue", "")
        return web.json_response(self.pages[int(token or 0)])

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            events = await self._streams.get()
            if events is None:
                return response
            for event in events:
                await response.write(json.dumps(event).encode() + b"\n")
