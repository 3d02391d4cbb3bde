"""What the sender makes of the answers of receivers that are down, busy or broken."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.unit.sidecar.documents import a_record, a_run, append, directory_of
from tests.unit.sidecar.processes import eventually, free_port
from tuning_contract.directory import RunDirectory
from tuning_sidecar.remote_write import Patience, RemoteWriter
from tuning_sidecar.remote_write_client import RemoteWriteClient
from tuning_sidecar.remote_write_mark import Mark
from tuning_sidecar.series import SeriesMapper

FAST = Patience(period=0.02, broken=3, longest_wait=0.05, drain=1.0, batch=1)


@dataclass
class Receiver:
    """Answers with the scripted replies, then with 204."""

    port: int
    replies: list[tuple[int, str]] = field(default_factory=list)
    requests: int = 0


@contextmanager
def a_receiver(*replies: tuple[int, str]) -> Iterator[Receiver]:
    receiver = Receiver(0, list(replies))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests += 1
            status, text = receiver.replies.pop(0) if receiver.replies else (204, "")
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    receiver.port = server.server_port
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def pushing(port: int, directory: RunDirectory, patience: Patience = FAST) -> Iterator[RemoteWriter]:
    client = RemoteWriteClient(f"http://127.0.0.1:{port}/api/v1/write")
    writer = RemoteWriter(client, directory.metrics, directory.remote_write_mark, SeriesMapper(a_run(), 1), patience)
    stop = threading.Event()
    thread = threading.Thread(target=writer.run, args=(stop,))
    thread.start()
    try:
        yield writer
    finally:
        stop.set()
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = directory_of(a_run(), tmp_path)
    append(found.metrics, a_record(1, time.time() - 2), a_record(2, time.time() - 1))
    return found


def all_done(directory: RunDirectory) -> bool:
    return Mark.load(directory.remote_write_mark).offset == directory.metrics.stat().st_size


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_receiver_gets_the_same_step_again(directory: RunDirectory, status: int) -> None:
    with a_receiver((status, "later"), (status, "later")) as receiver, pushing(receiver.port, directory) as writer:
        eventually(lambda: all_done(directory))
        assert receiver.requests == 4
        assert writer.statistics.samples == {"ok": 14, "rejected": 0, "dropped": 0}


@pytest.mark.parametrize("reply", [(400, "out of order sample"), (500, "too old sample")])
def test_a_refused_step_is_counted_and_not_sent_again(directory: RunDirectory, reply: tuple[int, str]) -> None:
    with a_receiver(reply) as receiver, pushing(receiver.port, directory) as writer:
        eventually(lambda: all_done(directory))
        assert receiver.requests == 2
        assert writer.statistics.samples == {"ok": 7, "rejected": 7, "dropped": 0}


def test_a_receiver_that_is_broken_for_one_step_does_not_hold_the_next_one_back(directory: RunDirectory) -> None:
    with a_receiver(*[(500, "boom")] * 3) as receiver, pushing(receiver.port, directory) as writer:
        eventually(lambda: all_done(directory))
        assert receiver.requests == 4
        assert writer.statistics.samples == {"ok": 7, "rejected": 0, "dropped": 7}


def test_a_receiver_that_is_away_loses_nothing_and_the_drain_stays_short(directory: RunDirectory) -> None:
    with pushing(free_port(), directory):
        time.sleep(0.2)
        started = time.monotonic()
    assert time.monotonic() - started < 2
    assert Mark.load(directory.remote_write_mark) == Mark()
    with a_receiver() as receiver, pushing(receiver.port, directory) as writer:
        eventually(lambda: all_done(directory))
        assert writer.statistics.samples["ok"] == 14
