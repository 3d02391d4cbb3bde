"""The HTTP server of the sidecar: /metrics, /progress, /result, /log, /healthz.

Driver, operator and Prometheus read it. There is no authentication, since everything here is reading and the
log is in the pod's log as well; nothing can be written or stopped through it.
"""

import socket
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tuning_contract.directory import RunDirectory
from tuning_contract.result import RunResult
from tuning_sidecar.exposition import CONTENT_TYPE, RunCollector, render
from tuning_sidecar.state import RunState
from tuning_sidecar.watcher import Watcher

LOG_CHUNK = 256 * 1024
"""Bytes of one answer of /log."""
STALLED_SECONDS = 60.0
"""After so long without a pass over the volume /healthz fails."""


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

    def answer(self, target: str) -> Reply:
        """The reply to `GET target`. OSError when the volume cannot be read."""
        parts = urlsplit(target)
        match parts.path:
            case "/metrics":
                return Reply(200, render(self.collector), CONTENT_TYPE)
            case "/progress":
                return Reply(200, self.state.progress().to_text().encode(), "application/json")
            case "/result":
                return self._result()
            case "/log":
                return self._log(parse_qs(parts.query).get("offset", ["0"])[-1])
            case "/healthz":
                return self._health()
            case _:
                return Reply(404, b"try /metrics, /progress, /result, /log?offset=0 or /healthz\n")

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
            return Reply(404, f"result.json is how attempt {result.attempt} failed\n".encode())
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
    """Answers GET."""

    protocol_version = "HTTP/1.1"
    server_version = "tuning-sidecar"
    timeout = 60
    server: SidecarServer

    def do_GET(self) -> None:
        """Answer one request; a volume that fails is the server's error, never the end of the thread."""
        try:
            reply = self.server.view.answer(self.path)
        except OSError as error:
            reply = Reply(500, f"the volume cannot be read: {error}\n".encode())
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: a line a second would hide the ones that matter."""
