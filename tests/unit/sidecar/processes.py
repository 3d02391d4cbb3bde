"""What these tests start: the sidecar itself, a real Prometheus, and a volume that is soon full."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tuning_contract import environment
from tuning_contract.run_document import RunDocument

T = TypeVar("T")
SOURCES = Path(__file__).parents[3] / "operator"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str) -> tuple[int, bytes, dict[str, str]]:
    return request(port, "GET", path)


def request(
    port: int, method: str, path: str, *, token: str = "", body: bytes | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
    finally:
        connection.close()


def eventually(look: Callable[[], T], seconds: float = 10.0) -> T:
    """The first true value of `look`; a failed assertion when it takes longer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if value := look():
                return value
        except OSError:
            pass
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@dataclass(frozen=True)
class Sidecar:
    process: subprocess.Popen[bytes]
    port: int

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=10)

    def get(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        return get(self.port, path)

    def request(
        self, method: str, path: str, token: str = "", body: bytes | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        return request(self.port, method, path, token=token, body=body)


@contextmanager
def a_sidecar(
    run: RunDocument, volume: Path, attempt: int = 1, *, stop_digest: str = "", document: Path | None = None
) -> Iterator[Sidecar]:
    """The process; `document` is where run.json goes, on the volume by default."""
    document = document or volume / "run.json"
    document.write_text(run.to_text(), encoding="utf-8")
    port = free_port()
    variables = {environment.ATTEMPT: str(attempt), environment.RUN_DOCUMENT: str(document)}
    variables |= {environment.STOP_TOKEN_DIGEST: stop_digest} if stop_digest else {}
    process = subprocess.Popen(
        [sys.executable, "-m", "tuning_sidecar", "--volume", str(volume), "--port", str(port)],
        env=os.environ | variables | {"PYTHONPATH": str(SOURCES)},
    )
    try:
        sidecar = Sidecar(process, port)
        eventually(lambda: sidecar.get("/healthz")[0] == 200)
        yield sidecar
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Prometheus:
    port: int

    @property
    def write_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1/write"

    def query(self, expression: str) -> list[dict[str, Any]]:
        status, body, _ = get(self.port, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert status == 200, body
        found: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return found

    def points(self, series: str) -> list[tuple[float, float]]:
        """All stored samples of the one series, as (seconds, value)."""
        found = self.query(f"{series}[3h]")
        assert len(found) <= 1, found
        return [(float(moment), float(value)) for entry in found for moment, value in entry["values"]]


@contextmanager
def a_prometheus(folder: Path) -> Iterator[Prometheus]:
    port = free_port()
    (folder / "prometheus.yml").write_text("global: {}\n", encoding="utf-8")
    process = subprocess.Popen(
        [
            "/usr/bin/prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-remote-write-receiver",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: get(port, "/-/ready")[0] == 200, seconds=30)
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextmanager
def a_small_volume(folder: Path) -> Iterator[Path]:
    """A file system of 256 KiB of its own."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"this needs the right to mount: {mounted.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        path.write_bytes(b"x" * 1024 * 1024)
    with pytest.raises(OSError, match="No space left"):
        path.with_name("rest").write_bytes(b"x")
