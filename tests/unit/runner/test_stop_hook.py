"""The hook that runs before a Ray container goes: it asks for a stop, waits for the last word, and never fails."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.unit.runner.documents import a_run_document
from tests.unit.runner.volumes import Volume


class Hook:
    """The hook's process on a volume."""

    def __init__(self, root: Path) -> None:
        self.volume = Volume(root)
        self.run = self.volume.run
        self.variables = self.volume.environment(a_run_document(), 2) | {"TUNING_STOP_GRACE_SECONDS": "20"}
        self.run.logs(2).mkdir(parents=True)

    def execute(self, **variables: str) -> str:
        """What it says; it must end well."""
        process = subprocess.run(
            [sys.executable, "-m", "tuning_runner.stop_hook"],
            env=self.variables | variables,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (process.returncode, process.stdout) == (0, "")
        return process.stderr


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


def test_an_attempt_that_has_not_begun_is_not_waited_for(hook: Hook) -> None:
    assert "attempt 2 has not begun" in hook.execute()
    assert not hook.run.stop_request(2).exists()


def test_an_attempt_that_has_ended_is_not_asked_to_stop(hook: Hook) -> None:
    hook.run.started(2).touch()
    hook.run.stopped(2).touch()
    assert "attempt 2 has ended" in hook.execute()
    assert not hook.run.stop_request(2).exists()


def test_a_running_attempt_is_asked_and_waited_for(hook: Hook) -> None:
    hook.run.started(2).touch()

    def stop_when_asked() -> None:
        while not hook.run.stop_request(2).exists():
            time.sleep(0.01)
        time.sleep(0.5)
        hook.run.stopped(2).touch()

    runner = threading.Thread(target=stop_when_asked)
    runner.start()
    said = hook.execute()
    runner.join()
    assert "attempt 2 has stopped after" in said


def test_the_hook_waits_no_longer_than_the_grace(hook: Hook) -> None:
    hook.run.started(2).touch()
    began = time.monotonic()
    assert "attempt 2 has not stopped in 1 s" in hook.execute(TUNING_STOP_GRACE_SECONDS="1")
    assert time.monotonic() - began < 10
    assert hook.run.stop_request(2).exists()


@pytest.mark.parametrize(
    "variables",
    [{"TUNING_RUN_DOCUMENT": "/nowhere/run.json"}, {"TUNING_ATTEMPT": "x"}, {"TUNING_RUN_DOCUMENT": "/dev/null"}],
)
def test_whatever_is_wrong_is_said_and_fails_nothing(hook: Hook, variables: dict[str, str]) -> None:
    assert "no stop was asked for: " in hook.execute(**variables)


def test_the_hook_loads_little(hook: Hook) -> None:
    """A busy container must not wait for it: a handful of the standard library's modules, and none of the runner's."""
    code = "import sys, tuning_runner.stop_hook; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], env=hook.variables, capture_output=True, text=True, timeout=30
    )
    loaded = process.stdout.split()
    ours = [name for name in loaded if name.startswith("tuning_")]
    assert sorted(ours) == [
        "tuning_contract", "tuning_contract.directory", "tuning_contract.environment",
        "tuning_runner", "tuning_runner.location", "tuning_runner.stop_hook",
    ]  # fmt: skip
    assert not {"asyncio", "torch", "subprocess", "tuning_contract.run_document"} & set(loaded)
