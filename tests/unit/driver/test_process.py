"""`python -m tuning_driver` as the Job runs it: environment, exit code, termination message, signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.driver.services import TOKEN, FakeRay, running
from tests.unit.sidecar.documents import a_record, a_result, a_run, append, directory_of
from tests.unit.sidecar.processes import SOURCES, a_sidecar, a_small_volume, eventually, fill
from tuning_contract import environment
from tuning_contract.checkpoint import write_atomically
from tuning_contract.result import FAILED, STOPPED
from tuning_contract.termination import (
    EXIT_DRIVER_ERROR,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_SUCCEEDED,
    TerminationMessage,
)

RUN = a_run()
JOB = "math-agent-0a1b2c-1"


class Driver:
    """The driver as a process, with proxies in its environment that lead nowhere."""

    def __init__(
        self,
        folder: Path,
        ray_url: str,
        sidecar_url: str,
        document: str | None = None,
        command: Sequence[str] = ("-m", "tuning_driver"),
        **more: str,
    ) -> None:
        self.folder = folder
        self._message = folder / "termination-log"
        path = folder / "driver-run.json"
        path.write_text(RUN.to_text() if document is None else document, encoding="utf-8")
        variables = {
            environment.ATTEMPT: "1",
            environment.RUN_DOCUMENT: str(path),
            environment.RAY_ADDRESS: ray_url,
            environment.RAY_JOB_ID: JOB,
            environment.RAY_TOKEN: TOKEN,
            environment.SIDECAR_ADDRESS: sidecar_url,
            "TUNING_TERMINATION_LOG": str(self._message),
            "PYTHONPATH": str(SOURCES),
            "HTTP_PROXY": "http://127.0.0.1:1",
            "http_proxy": "http://127.0.0.1:1",
        } | more
        self._output = (folder / "driver.log").open("wb")
        self.process = subprocess.Popen([sys.executable, *command], env=os.environ | variables, stdout=self._output)

    @property
    def printed(self) -> str:
        return (self.folder / "driver.log").read_text(encoding="utf-8")

    @property
    def message(self) -> TerminationMessage | None:
        return TerminationMessage.from_text(self._message.read_text(encoding="utf-8"))

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()


def hurried(**timing: float) -> list[str]:
    """The driver with other periods than a test wants to wait for."""
    code = (
        "import functools, sys, tuning_driver.__main__ as driver\n"
        f"driver.Timing = functools.partial(driver.Timing, **{timing!r})\n"
        "sys.exit(driver.main())"
    )
    return ["-c", code]


def test_a_run_from_submission_to_verdict_with_the_real_sidecar(tmp_path: Path) -> None:
    ray, directory = FakeRay(), directory_of(RUN, tmp_path)
    log = directory.runner_log(1)
    log.parent.mkdir(parents=True)
    with (
        running(ray),
        a_sidecar(RUN, tmp_path) as sidecar,
        Driver(tmp_path, ray.url, f"http://127.0.0.1:{sidecar.port}") as driver,
    ):
        eventually(lambda: ray.submissions)
        ray.ends(JOB, "RUNNING")
        log.write_text("step 1: reward 0.12 ✓\n", encoding="utf-8")
        append(directory.metrics, a_record(12, time.time()))
        eventually(lambda: "step 1: reward 0.12 ✓\n" in driver.printed)
        time.sleep(1.1)
        write_atomically(directory.result, a_result(RUN).to_text())
        ray.ends(JOB, "SUCCEEDED")
        started = time.monotonic()
        assert driver.process.wait(timeout=20) == EXIT_SUCCEEDED
        assert time.monotonic() - started < 2
        message = driver.message
    assert message is not None
    assert (message.outcome, message.step, message.target_steps) == ("Succeeded", 12, 12)
    assert message.metrics == {"reward_mean": 0.12, "policy_loss": -0.012, "kl": 0.01}
    assert message.checkpoint.endswith("/checkpoints/step-000012")


def test_the_runners_failure_becomes_the_exit_code_and_the_message(tmp_path: Path) -> None:
    ray, directory = FakeRay(), directory_of(RUN, tmp_path)
    result = a_result(RUN, outcome=FAILED, cause="WorkflowError", message="KeyError: 'question'", step=1)
    write_atomically(directory.result, result.to_text())
    ray.ends(JOB, "FAILED", "exit code 1", 1)
    with (
        running(ray),
        a_sidecar(RUN, tmp_path) as sidecar,
        Driver(tmp_path, ray.url, f"http://127.0.0.1:{sidecar.port}") as driver,
    ):
        assert driver.process.wait(timeout=20) == EXIT_FAILED
        message = driver.message
    assert message is not None
    assert (message.outcome, message.cause, message.message) == ("Failed", "WorkflowError", "KeyError: 'question'")


def test_a_run_that_was_asked_to_stop_ends_as_stopped_with_its_checkpoint(tmp_path: Path) -> None:
    ray, directory = FakeRay(), directory_of(RUN, tmp_path)
    log = directory.runner_log(1)
    log.parent.mkdir(parents=True)
    log.write_text("saved step 7\n", encoding="utf-8")
    result = a_result(RUN, outcome=STOPPED, step=7, final_model="", checkpoint_step=7)
    grace = {environment.STOP_GRACE_SECONDS: "90"}
    with (
        running(ray),
        a_sidecar(RUN, tmp_path) as sidecar,
        Driver(tmp_path, ray.url, f"http://127.0.0.1:{sidecar.port}", **grace) as driver,
    ):
        eventually(lambda: ray.submissions)
        assert ray.submissions[0]["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "90"
        # What a drained head does: save, say so, and go, all within a moment.
        write_atomically(directory.result, result.to_text())
        ray.stop()
        assert sidecar.stop() == 0
        assert driver.process.wait(timeout=20) == EXIT_STOPPED
        message = driver.message
        assert "saved step 7\n" in driver.printed
    assert message is not None
    assert (message.outcome, message.cause, message.step, message.target_steps) == ("Stopped", "", 7, 12)
    assert message.checkpoint == result.checkpoint


def test_a_run_on_a_full_volume_ends_with_the_words_of_ray(tmp_path: Path) -> None:
    ray = FakeRay()
    words = "Job entrypoint command failed with exit code 10, last available logs:\n"
    words += "the result cannot be written: [Errno 28] No space left on device"
    mounted = tmp_path / "mount"
    mounted.mkdir()
    with a_small_volume(mounted) as volume:
        append(directory_of(RUN, volume).metrics, a_record(3, time.time()))
        fill(volume / "full")
        ray.logs = "step 3: reward 0.03\n"
        ray.ends(JOB, "FAILED", words, 10)
        with (
            running(ray),
            a_sidecar(RUN, volume, document=tmp_path / "run.json") as sidecar,
            Driver(tmp_path, ray.url, f"http://127.0.0.1:{sidecar.port}") as driver,
        ):
            assert driver.process.wait(timeout=20) == EXIT_FAILED
            message = driver.message
            assert "step 3: reward 0.03\n" in driver.printed
    assert message is not None
    assert (message.outcome, message.cause, message.step) == ("Failed", "StorageFailed", 3)
    assert words in message.message


def test_a_standstill_is_a_verdict(tmp_path: Path) -> None:
    ray, directory = FakeRay(), directory_of(RUN, tmp_path)
    append(directory.metrics, a_record(3, time.time()))
    stall = {environment.STALL_SECONDS: "0.5"}
    with (
        running(ray),
        a_sidecar(RUN, tmp_path) as sidecar,
        Driver(tmp_path, ray.url, f"http://127.0.0.1:{sidecar.port}", command=hurried(progress=0.2), **stall) as driver,
    ):
        assert driver.process.wait(timeout=30) == EXIT_FAILED
        message = driver.message
    assert message is not None
    assert (message.outcome, message.cause, message.step) == ("Failed", "Stalled", 3)
    assert "deadlines.stallSeconds" in message.message


def test_a_cluster_that_is_silent_ends_without_a_verdict_and_the_log_says_why(tmp_path: Path) -> None:
    ray = FakeRay()
    with running(ray), Driver(tmp_path, ray.url, "http://127.0.0.1:1", command=hurried(head=0.5)) as driver:
        eventually(lambda: ray.submissions)
        ray.stop()
        assert driver.process.wait(timeout=20) == EXIT_DRIVER_ERROR
        assert "no verdict, another pod will try: neither Ray nor the sidecar has answered" in driver.printed
    assert not (tmp_path / "termination-log").exists()


def test_sigterm_leaves_the_ray_job_alone_and_gives_no_verdict(tmp_path: Path) -> None:
    ray = FakeRay()
    with running(ray), Driver(tmp_path, ray.url, "http://127.0.0.1:1") as driver:
        eventually(lambda: ray.submissions)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(timeout=5) == EXIT_DRIVER_ERROR
        assert ray.jobs[JOB]["status"] == "PENDING"
        assert "no verdict, this pod is asked to go" in driver.printed
    assert not (tmp_path / "termination-log").exists()


@pytest.mark.parametrize("document", ["{}", "no json"])
def test_a_run_document_of_another_contract_is_config_invalid(tmp_path: Path, document: str) -> None:
    with Driver(tmp_path, "http://127.0.0.1:1", "http://127.0.0.1:1", document) as driver:
        assert driver.process.wait(timeout=10) == EXIT_FAILED
        assert driver.message is not None
        assert driver.message.cause == "ConfigInvalid"


def test_an_error_of_the_driver_itself_is_no_verdict(tmp_path: Path) -> None:
    with Driver(tmp_path, "no address", "http://127.0.0.1:1") as driver:
        assert driver.process.wait(timeout=10) == EXIT_DRIVER_ERROR
        assert "is no http address" in driver.printed
    assert not (tmp_path / "termination-log").exists()
