"""A reverse proxy between the operator and a real API server: it counts, and lets go wrong what its rule says.

Plain HTTP on the loopback towards the operator, TLS with the operator's certificate towards the API server. It runs in
a thread of its own. A client that goes away ends its watches, and what is held of it never goes on.
"""

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import AddrInfoType, web
from yarl import URL

from tests.cluster.certificates import Certificate
from tests.faults.gate import Gate, Moment
from tests.faults.requests import Exchange, Fault, Request, parse
from tests.faults.rules import Nothing, Rule

RETRY_AFTER_SECONDS = 1
# Of one connection only; the body's length is told anew.
_OF_THE_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date"})
_ANSWERS = {
    Fault.SERVER_ERROR: (500, "InternalError"),
    Fault.TOO_MANY: (429, "TooManyRequests"),
    Fault.LIST_GONE: (410, "Expired"),
}
_START_SECONDS = 10
_END_SECONDS = 5
"""For connections to be closed."""


@dataclass(frozen=True)
class Upstream:
    """The API server and the identity with which the proxy speaks to it."""

    server: str
    authority: Path
    identity: Certificate

    def tls(self) -> ssl.SSLContext:
        """Trust in the server and our certificate."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.identity.certificate, self.identity.key)
        return context


class FaultProxy:
    """A context manager; `exchanges` grows with every request, watches included."""

    def __init__(self, upstream: Upstream) -> None:
        """Listen to nothing yet. Everything goes well until another `rule` is set."""
        self.rule: Rule = Nothing()
        self.gate = Gate()
        self.exchanges: list[Exchange] = []
        """In the order in which they ended; a watch and a fault in it are two."""
        self.url = ""
        self._upstream = upstream
        self._session: aiohttp.ClientSession
        self._sockets: list[socket.socket] = []
        """Towards the API server."""
        self._under_way: set[asyncio.Task[tuple[int, dict[str, str], bytes]]] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        """Start to listen."""
        self._thread.start()
        if not self._ready.wait(_START_SECONDS):
            raise TimeoutError("the proxy did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Break all connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_SECONDS)
        self._loop.close()

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig that leads to the proxy; returns its path."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
            "current-context": "proxy",
        }
        path.write_text(json.dumps(document))
        return path

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._upstream.tls(), socket_factory=self._open)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            self._session = session
            runner = web.ServerRunner(
                web.Server(self._handle, handler_cancellation=True, access_log=None), shutdown_timeout=0
            )
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()
            await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._all_closed()

    def _open(self, address: AddrInfoType) -> socket.socket:
        """Open a socket as asyncio does, and remember it."""
        family, kind, protocol, _name, _address = address
        self._sockets = [
            *(known for known in self._sockets if known.fileno() != -1),
            socket.socket(family, kind, protocol),
        ]
        return self._sockets[-1]

    async def _all_closed(self) -> None:
        """Let connections be closed before the loop is: aiohttp does not wait for one that was left amid an answer."""
        until = self._loop.time() + _END_SECONDS
        while any(known.fileno() != -1 for known in self._sockets) and self._loop.time() < until:
            await asyncio.sleep(0.01)

    async def _handle(self, incoming: web.BaseRequest) -> web.StreamResponse:
        body = await incoming.read()
        request = parse(incoming.method, incoming.raw_path, body)
        number = self.gate.arrives(request) if request.is_write else 0
        fault = self.rule.of_request(request)
        if fault in _ANSWERS:
            self._note(request, 0, fault)
            return _refusal(fault)
        if fault is Fault.RESET_BEFORE:
            self._note(request, 0, fault)
            return _reset(incoming)
        if request.is_write:
            await self.gate.passes(request, number, Moment.BEFORE)
        if request.verb == "watch" and fault is None:
            return await self._watch(incoming, request)
        # What has been sent goes on, and is recorded, though its sender dies meanwhile.
        asked = self._loop.create_task(self._ask(incoming, body, request, fault))
        self._under_way.add(asked)
        asked.add_done_callback(self._under_way.discard)
        status, headers, content = await asyncio.shield(asked)
        if fault is Fault.RESET_AFTER:
            return _reset(incoming)
        if request.is_write and status < 400:
            await self.gate.passes(request, number, Moment.AFTER)
        return web.Response(status=status, headers=headers, body=content)

    async def _ask(
        self, incoming: web.BaseRequest, body: bytes, request: Request, fault: Fault | None
    ) -> tuple[int, dict[str, str], bytes]:
        """Let the server answer; of a watch that is to be broken, only the beginning."""
        async with self._forward(incoming, body) as answer:
            content = b"" if request.verb == "watch" else await answer.read()
            self._note(request, answer.status, fault, content)
            return answer.status, _kept(answer.headers), content

    async def _watch(self, incoming: web.BaseRequest, request: Request) -> web.StreamResponse:
        """Pass events on, one line each, until one goes wrong."""
        async with self._forward(incoming, b"") as answer:
            self._note(request, answer.status, None)
            outgoing = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            outgoing.enable_chunked_encoding()
            await outgoing.prepare(incoming)
            try:
                return await self._pass_events(incoming, request, answer, outgoing)
            finally:
                # A watch that is left amid its answer: TLS would wait half a minute for the server's goodbye.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()

    async def _pass_events(
        self,
        incoming: web.BaseRequest,
        request: Request,
        answer: aiohttp.ClientResponse,
        outgoing: web.StreamResponse,
    ) -> web.StreamResponse:
        rest = b""
        async for chunk in answer.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                fault = self.rule.of_event(request)
                if fault is not None:
                    self._note(request, answer.status, fault)
                if fault is Fault.WATCH_DROPPED:
                    return _reset(incoming)
                if fault is Fault.WATCH_GONE:
                    gone = {"type": "ERROR", "object": _status(410, "Expired")}
                    await outgoing.write_eof(json.dumps(gone).encode())
                    return outgoing
                await outgoing.write(line + b"\n")
        await outgoing.write_eof(rest if answer.status != 200 else b"")
        return outgoing

    def _forward(self, incoming: web.BaseRequest, body: bytes) -> Any:
        target = URL(self._upstream.server + incoming.raw_path, encoded=True)
        return self._session.request(incoming.method, target, headers=_kept(incoming.headers), data=body or None)

    def _note(self, request: Request, status: int, fault: Fault | None, reply: bytes = b"") -> None:
        self.exchanges.append(Exchange(request, status, fault, reply if request.is_write else b""))


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OF_THE_CONNECTION}


def _status(code: int, reason: str) -> dict[str, Any]:
    """The object in which an API server says what is wrong."""
    text = "let go wrong by the test"
    kind = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
    return kind | {"status": "Failure", "code": code, "reason": reason, "message": text}


def _refusal(fault: Fault) -> web.Response:
    code, reason = _ANSWERS[fault]
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if fault is Fault.TOO_MANY else {}
    return web.json_response(_status(code, reason), status=code, headers=headers)


def _reset(incoming: web.BaseRequest) -> web.StreamResponse:
    """Break the connection as a peer does that has lost its state: with RST."""
    transport = incoming.transport
    if transport is not None:
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    # aiohttp wants an answer to send and finds that nobody is left to send it to.
    return web.Response()
