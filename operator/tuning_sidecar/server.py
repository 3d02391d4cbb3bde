"""The HTTP server of the sidecar: /metrics, /progress, /result, /log, /healthz, and POST /stop.

Driver, operator and Prometheus read it without authentication, since the log is in the pod's log as well. Only the
operator can write: one empty file, which asks the runner to save and stop.
"""

import hmac
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tuning_contract.directory import RunDirectory
from tuning_contract.result import RunResult
from tuning_contract.stopping import token_digest
from tuning_sidecar.exposition import CONTENT_TYPE, RunCollector, render
from tuning_sidecar.state import RunState
from tuning_sidecar.watcher import Watcher

LOG_CHUNK = 256 * 1024
"""Bytes of one answer of /log."""
STALLED_SECONDS = 60.0
"""After so long without a pass over the volume /healthz fails."""
LONGEST_BODY = 64 * 1024
"""Bytes of a request's body that are read and dropped; after a longer one the connection is closed."""


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RunView:
    """What the endpoints answer from."""

    attempt: int
    run_digest: str
    directory: RunDirectory
    state: RunState
    watcher: Watcher
    collector: RunCollector
    stop_digest: str = ""
    """Digest of the token that `POST /stop` needs; empty: there is no such path."""
    result_read: threading.Event = field(default_factory=threading.Event)
    """Set when somebody got the result."""

    def answer(self, method: str, target: str, authorization: str = "") -> Reply:
        """The reply to a request. OSError when the volume cannot be read or written."""
        parts = urlsplit(target)
        if parts.path == "/stop" and self.stop_digest:
            return self._stop(authorization) if method == "POST" else _not_allowed(method, "POST")
        if parts.path in _READABLE and method != "GET":
            return _not_allowed(method, "GET")
        match parts.path:
            case "/metrics":
                return Reply(200, render(self.collector), CONTENT_TYPE)
            case "/progress":
                return Reply(200, self.state.progress().to_text().encode(), "application/json")
            case "/result":
                reply = self._result()
                if reply.status == 200:
                    self.result_read.set()
                return reply
            case "/log":
                return self._log(parse_qs(parts.query).get("offset", ["0"])[-1])
            case "/healthz":
                return self._health()
            case _:
                return Reply(404, b"try /metrics, /progress, /result, /log?offset=0 or /healthz\n")

    def _stop(self, authorization: str) -> Reply:
        """Ask the runner to stop, once or again; what else the request holds does not matter."""
        scheme, _, token = authorization.partition(" ")
        right = hmac.compare_digest(token_digest(token.strip()).encode(), self.stop_digest.encode())
        if scheme.lower() != "bearer" or not right:
            return Reply(401, b"stopping needs the operator's token\n", headers=(("WWW-Authenticate", "Bearer"),))
        request = self.directory.stop_request(self.attempt)
        request.parent.mkdir(parents=True, exist_ok=True)
        # Its name says everything: an empty file is there or not, and needs no room on a volume that is full.
        request.touch()
        return Reply(202, b"the runner is asked to save and stop\n")

    def has_unread_result(self) -> bool:
        """Whether this attempt has a result that nobody has got yet."""
        if self.result_read.is_set():
            return False
        try:
            return self._result().status == 200
        except OSError:
            return False

    def _result(self) -> Reply:
        """result.json as it is, but only one that speaks for this attempt: a success, or its own failure."""
        try:
            text = self.directory.result.read_bytes()
            result = RunResult.from_text(text.decode())
        except FileNotFoundError:
            return Reply(404, b"no result yet\n")
        except ValueError as error:
            return Reply(404, f"result.json cannot be read: {error}\n".encode())
        if result.run_digest != self.run_digest:
            return Reply(404, b"result.json belongs to other settings\n")
        if not result.complete and result.attempt != self.attempt:
            return Reply(404, f"result.json is how attempt {result.attempt} ended\n".encode())
        return Reply(200, text, "application/json")

    def _log(self, asked: str) -> Reply:
        """Bytes of this attempt's runner.log from an offset on: none when nothing is new, 404 before it exists."""
        if not (asked.isascii() and asked.isdigit()):
            return Reply(400, b"offset must be a number of bytes\n")
        offset = int(asked)
        path: Path = self.directory.runner_log(self.attempt)
        try:
            with path.open("rb") as file:
                # Beyond the end there is nothing, and a seek that far is harmless.
                file.seek(min(offset, file.seek(0, 2)))
                data = file.read(LOG_CHUNK) if file.tell() == offset else b""
        except FileNotFoundError:
            return Reply(404, b"the runner has not opened its log yet\n")
        return Reply(200, data, "application/octet-stream", headers=(("X-Next-Offset", str(offset + len(data))),))

    def _health(self) -> Reply:
        silent = time.monotonic() - self.watcher.last_pass
        if silent > STALLED_SECONDS:
            return Reply(503, f"the volume has not been read for {silent:.0f} s\n".encode())
        return Reply(200, b"ok\n")


_READABLE = frozenset({"/metrics", "/progress", "/result", "/log", "/healthz"})


def _not_allowed(method: str, allowed: str) -> Reply:
    return Reply(405, f"{method} is not possible here, {allowed} is\n".encode(), headers=(("Allow", allowed),))


class SidecarServer(ThreadingHTTPServer):
    """Listens on all addresses, of both families where the node has both."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, port: int, view: RunView) -> None:
        self.view = view
        self._dual = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if self._dual else socket.AF_INET
        super().__init__(("::" if self._dual else "0.0.0.0", port), Handler)  # noqa: S104 - it serves other pods

    def server_bind(self) -> None:
        """Accept IPv4 on the IPv6 socket, and do not look up a name for the address."""
        if self._dual:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "sidecar", int(self.server_address[1])


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "tuning-sidecar"
    timeout = 60
    server: SidecarServer

    def _answer(self) -> None:
        """Answer one request; a volume that fails is the server's error, never the end of the thread."""
        self._drop_body()
        try:
            reply = self.server.view.answer(self.command, self.path, self.headers.get("Authorization", ""))
        except OSError as error:
            reply = Reply(500, f"the volume cannot be used: {error}\n".encode())
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - the base class's names

    def _drop_body(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if length.isdigit() and int(length) <= LONGEST_BODY and "Transfer-Encoding" not in self.headers:
            self.rfile.read(int(length))
        else:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: a line a second would hide the ones that matter."""
