"""The two services that the driver talks to: Ray's Jobs API as observed on Ray 2.60, and a scripted sidecar."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tuning_contract.progress import Progress
from tuning_contract.result import RunResult

TOKEN = "the-token"
Reply = tuple[int, bytes, dict[str, str]]


class Service:
    """A server that a test can start, stop and start again on its port."""

    def __init__(self) -> None:
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        raise NotImplementedError

    def start(self) -> None:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, content, extra = service.answer(self.command, self.path, headers, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                for name, value in extra.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _serve  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None


class FakeRay(Service):
    """Jobs of one head; a test moves them from state to state."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submissions: list[dict[str, Any]] = []
        self.failures: list[tuple[int, str]] = []
        """Answers to give first, whatever is asked."""
        self.logs = ""
        self.requests: list[tuple[str, str]] = []
        """Method and path of everything that was asked."""

    def ends(self, job_id: str, status: str, message: str = "", exit_code: int | None = 0) -> None:
        self.jobs[job_id] = {"status": status, "message": message, "driver_exit_code": exit_code}

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        self.requests.append((method, path))
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, b"Unauthorized: Missing authentication token", {}
        if self.failures:
            status, text = self.failures.pop(0)
            return status, text.encode(), {}
        if method == "POST":
            return self._submit(json.loads(body))
        job_id = path.removeprefix("/api/jobs/").removesuffix("/logs")
        if job_id not in self.jobs:
            return 404, f"Job {job_id} does not exist".encode(), {}
        document = {"logs": self.logs} if path.endswith("/logs") else self.jobs[job_id] | {"submission_id": job_id}
        return 200, json.dumps(document).encode(), {}

    def _submit(self, document: dict[str, Any]) -> Reply:
        job_id = document["submission_id"]
        if job_id in self.jobs:
            text = (
                "Traceback (most recent call last):\n  ...\nRuntimeError: Request failed with status code 400: "
                f"ValueError: Job with submission_id {job_id} already exists. Please use a different submission_id."
            )
            return 500, text.encode(), {}
        self.submissions.append(document)
        self.jobs[job_id] = {"status": "PENDING", "message": "Job has not started yet.", "driver_exit_code": None}
        return 200, json.dumps({"job_id": job_id, "submission_id": job_id}).encode(), {}


@dataclass
class Written:
    """What the runner has written so far."""

    log: bytes | None = None
    result: RunResult | None = None
    progress: Progress = field(default_factory=lambda: Progress(attempt=1))
    volume_error: str = ""
    """What reading the volume ends with; empty while it can be read."""


class FakeSidecar(Service):
    """Serves what a test says the runner wrote, the log in chunks of a few bytes."""

    def __init__(self, chunk: int = 7) -> None:
        super().__init__()
        self.written = Written()
        self._chunk = chunk

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        parts = urlsplit(path)
        written = self.written
        match parts.path:
            case "/log" | "/result" if written.volume_error:
                return 500, f"the volume cannot be used: {written.volume_error}\n".encode(), {}
            case "/log" if written.log is not None:
                offset = int(parse_qs(parts.query)["offset"][0])
                data = written.log[offset : offset + self._chunk]
                return 200, data, {"X-Next-Offset": str(offset + len(data))}
            case "/result" if written.result is not None:
                return 200, written.result.to_text().encode(), {}
            case "/progress":
                return 200, written.progress.to_text().encode(), {}
        return 404, b"nothing", {}


@contextmanager
def running(*services: Service) -> Iterator[None]:
    for service in services:
        service.start()
    try:
        yield
    finally:
        for service in services:
            service.stop()
