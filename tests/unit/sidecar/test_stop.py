"""`POST /stop` of a real sidecar, and how it behaves on a volume that takes no writes."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sidecar.documents import a_record, a_result, a_run, append, directory_of
from tests.unit.sidecar.processes import Sidecar, a_sidecar, a_small_volume, eventually, fill
from tuning_contract.checkpoint import write_atomically
from tuning_contract.progress import Progress
from tuning_contract.result import STOPPED
from tuning_contract.stopping import stop_token, token_digest

RUN = a_run()
TOKEN = stop_token("the operator's key", RUN.run.uid, 2)
DIGEST = token_digest(TOKEN)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("volume")


@pytest.fixture(scope="module")
def sidecar(volume: Path) -> Iterator[Sidecar]:
    with a_sidecar(RUN, volume, attempt=2, stop_digest=DIGEST) as process:
        yield process


def test_the_operators_token_writes_the_request_of_this_attempt_as_often_as_it_is_sent(tmp_path: Path) -> None:
    directory = directory_of(RUN, tmp_path)
    with a_sidecar(RUN, tmp_path, attempt=2, stop_digest=DIGEST) as sidecar:
        assert not directory.stop_request(2).exists()
        for _ in range(2):
            assert sidecar.request("POST", "/stop", TOKEN)[0] == 202
            assert directory.stop_request(2).is_file()
    assert not directory.stop_request(1).exists()
    assert [path.name for path in directory.logs(2).iterdir()] == ["stop"]


@pytest.mark.parametrize(
    "token",
    [
        "",
        "wrong",
        DIGEST,
        stop_token("the operator's key", RUN.run.uid, 1),
        stop_token("another key", RUN.run.uid, 2),
        "n\xf6",
    ],
)
def test_without_the_right_token_nothing_is_written(sidecar: Sidecar, volume: Path, token: str) -> None:
    status, _, headers = sidecar.request("POST", "/stop", token)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert not directory_of(RUN, volume).stop_request(2).exists()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE"])
def test_only_a_post_asks_for_a_stop(sidecar: Sidecar, volume: Path, method: str) -> None:
    status, _, headers = sidecar.request(method, "/stop", TOKEN)
    assert (status, headers["allow"]) == (405, "POST")
    assert not directory_of(RUN, volume).stop_request(2).exists()


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["/metrics", "/progress", "/result", "/log?offset=0", "/healthz"])
def test_everything_else_can_only_be_read(sidecar: Sidecar, method: str, path: str) -> None:
    status, _, headers = sidecar.request(method, path, TOKEN)
    assert (status, headers["allow"]) == (405, "GET")


def test_a_pod_without_a_digest_knows_no_stop(tmp_path: Path) -> None:
    with a_sidecar(RUN, tmp_path, attempt=2) as sidecar:
        for token in ("", TOKEN):
            assert sidecar.request("POST", "/stop", token)[0] == 404
    assert not directory_of(RUN, tmp_path).stop_request(2).exists()


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_the_body_of_a_request_does_not_matter(tmp_path: Path, size: int) -> None:
    with a_sidecar(RUN, tmp_path, attempt=2, stop_digest=DIGEST) as sidecar:
        assert sidecar.request("POST", "/stop", TOKEN, b"{" * size)[0] == 202
    assert directory_of(RUN, tmp_path).stop_request(2).read_bytes() == b""


def test_a_result_that_was_written_a_moment_before_sigterm_can_still_be_read(tmp_path: Path) -> None:
    directory = directory_of(RUN, tmp_path)
    with a_sidecar(RUN, tmp_path, attempt=2) as sidecar:
        write_atomically(directory.result, a_result(RUN, outcome=STOPPED, attempt=2, step=4).to_text())
        ended: list[int] = []
        stopping = threading.Thread(target=lambda: ended.append(sidecar.stop()))
        stopping.start()
        time.sleep(1.2)
        assert sidecar.get("/result")[0] == 200
        stopping.join()
        assert ended == [0]


@pytest.mark.parametrize("read", [True, False])
def test_without_a_result_that_somebody_waits_for_it_goes_at_once(tmp_path: Path, read: bool) -> None:
    directory = directory_of(RUN, tmp_path)
    result = a_result(RUN, outcome=STOPPED, attempt=2 if read else 1, step=4)
    write_atomically(directory.result, result.to_text())
    with a_sidecar(RUN, tmp_path, attempt=2) as sidecar:
        assert sidecar.get("/result")[0] == (200 if read else 404)
        started = time.monotonic()
        assert sidecar.stop() == 0
        assert time.monotonic() - started < 1.5


def test_on_a_full_volume_it_serves_on_and_still_takes_a_request_to_stop(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    with a_small_volume(folder) as volume:
        run = a_run(remote_write_url="http://127.0.0.1:1/api/v1/write")
        directory = directory_of(run, volume)
        append(directory.metrics, a_record(3, time.time(), attempt=2))
        directory.logs(2).mkdir(parents=True)
        fill(volume / "full")
        with a_sidecar(run, volume, attempt=2, stop_digest=DIGEST, document=tmp_path / "run.json") as sidecar:
            eventually(lambda: Progress.from_text(sidecar.get("/progress")[1]).step == 3)
            assert b"tuningrun_step" in sidecar.get("/metrics")[1]
            assert sidecar.request("POST", "/stop", TOKEN)[0] == 202
            assert directory.stop_request(2).is_file()
            assert sidecar.get("/healthz")[0] == 200
            assert sidecar.stop(signal.SIGTERM) == 0


def test_on_a_read_only_volume_it_serves_on_and_says_why_it_cannot_ask_for_a_stop(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    with a_small_volume(folder) as volume:
        directory = directory_of(RUN, volume)
        append(directory.metrics, a_record(3, time.time(), attempt=2))
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with a_sidecar(RUN, volume, attempt=2, stop_digest=DIGEST, document=tmp_path / "run.json") as sidecar:
            eventually(lambda: Progress.from_text(sidecar.get("/progress")[1]).step == 3)
            status, body, _ = sidecar.request("POST", "/stop", TOKEN)
            assert status == 500
            assert b"Read-only file system" in body
            assert sidecar.get("/healthz")[0] == 200
    assert os.listdir(folder) == []
