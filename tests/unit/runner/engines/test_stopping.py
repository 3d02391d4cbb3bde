"""A run that is asked to stop while it really runs: what it had finished is saved, the step in hand is not trained."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.unit.runner.documents import DIRECTORY, a_run_document, an_algorithm
from tests.unit.runner.processes import descendants, end, is_alive, wait_for
from tests.unit.runner.volumes import Volume
from tuning_contract.checkpoint import complete_checkpoints, damage
from tuning_contract.metrics import EVALUATION, TRAINER
from tuning_contract.run_document import WorkflowSettings
from tuning_contract.termination import EXIT_STOPPED

pytestmark = pytest.mark.model

HANGING = """
import os, time
from tiny_agent import Output, judge as _judge, run

async def judge(task, response):
    # One byte for each episode.
    with open(os.environ["EPISODES_LOG"], "a") as log:
        log.write(".")
    if os.path.getsize(os.environ["EPISODES_LOG"]) > int(os.environ["HANGS_AFTER"]):
        time.sleep(600)
    return await _judge(task, response)
"""
IN_THE_PREFLIGHT, IN_THE_BASELINE, IN_STEP_2, IN_STEP_3, IN_THE_END = 0, 3, 23 + 24, 23 + 48, 23 + 96 + 10
"""The preflight has three episodes, an evaluation 20, a step 24."""


class Hanging:
    """A run whose judge hangs at a chosen place."""

    def __init__(self, root: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.volume = Volume(root / "volume")
        self.volume.root.mkdir()
        self._log = root / "episodes.log"
        self._source = root / "source"
        self._source.mkdir()
        (self._source / "hanging.py").write_text(HANGING)
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("EPISODES_LOG", str(self._log))
        algorithm = an_algorithm(steps=4, save_every_steps=10, batch_size=6, group_size=4)
        self.run = a_run_document(model, algorithm=algorithm, workflow=WorkflowSettings("hanging:run", "hanging:judge"))
        self._processes: list[subprocess.Popen] = []

    def start(self, hangs_after: int, attempt: int = 1) -> subprocess.Popen:
        """A process that hangs now, or (a large number) soon will have finished."""
        self._monkeypatch.setenv("HANGS_AFTER", str(hangs_after))
        self._log.unlink(missing_ok=True)
        paths = f"{self._source}:{Path(self.run.dataset.path).parent}"
        process = self.volume.start(self.run, attempt, source=Path(paths))
        self._processes.append(process)
        if hangs_after < 10_000:
            wait_for(lambda: self._log.is_file() and self._log.stat().st_size > hangs_after, process)
            time.sleep(0.3)
        return process

    def close(self) -> None:
        for process in self._processes:
            end(process)


@pytest.fixture
def hanging(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hanging = Hanging(tmp_path, tiny_model, monkeypatch)
    yield hanging
    hanging.close()


def by_request(process: subprocess.Popen, hanging: Hanging) -> None:
    hanging.volume.run.stop_request(1).touch()


def by_sigterm(process: subprocess.Popen, hanging: Hanging) -> None:
    process.terminate()


def as_ray_does(process: subprocess.Popen, hanging: Hanging) -> None:
    """SIGTERM to all processes of the job."""
    for pid in (process.pid, *descendants(process.pid)):
        with contextlib.suppress(ProcessLookupError):  # the first ones end the others
            os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("ask", [by_request, by_sigterm, as_ray_does])
def test_a_stop_amid_hanging_episodes_saves_the_last_finished_step_within_seconds(hanging: Hanging, ask) -> None:
    process = hanging.start(IN_STEP_3)
    workers = descendants(process.pid)
    assert len(workers) > 10
    asked = time.monotonic()
    ask(process, hanging)
    output = process.communicate(timeout=30)[0].decode()
    seconds = time.monotonic() - asked
    print(f"stopped after {seconds:.2f} s")
    assert process.returncode == EXIT_STOPPED, output
    assert seconds < 2.5, output
    result = hanging.volume.result
    assert (result.outcome, result.step, result.target_steps, result.cause) == ("Stopped", 2, 4, "")
    assert (result.checkpoint, result.checkpoint_step) == (f"{DIRECTORY}/checkpoints/step-000002", 2)
    ((folder, manifest),) = complete_checkpoints(hanging.volume.run.checkpoints)
    assert damage(folder, manifest) == ""
    assert hanging.volume.run.stopped(1).exists()
    assert hanging.volume.run.stopped(1).stat().st_mtime >= hanging.volume.run.result.stat().st_mtime
    assert not [pid for pid in workers if is_alive(pid)]
    assert [record.step for record in hanging.volume.records(TRAINER)] == [1, 2]
    lost = [json.loads(line) for line in hanging.volume.run.episodes(3).read_text().splitlines()]
    assert {line["outcome"] for line in lost} <= {"Lost", "Completed", "Late"}
    assert "Lost" in {line["outcome"] for line in lost}
    assert all(line["advantage"] is None for line in lost)


def test_a_stopped_run_goes_on_where_it_stood_and_reaches_its_target(hanging: Hanging) -> None:
    process = hanging.start(IN_STEP_3)
    process.terminate()
    process.communicate(timeout=30)
    process = hanging.start(1_000_000, attempt=2)
    output = process.communicate(timeout=240)[0].decode()
    assert process.returncode == 0, output
    result = hanging.volume.result
    assert (result.outcome, result.step, result.attempt) == ("Succeeded", 4, 2)
    assert [(record.attempt, record.step) for record in hanging.volume.records(TRAINER)] == [
        (1, 1), (1, 2), (2, 3), (2, 4),
    ]  # fmt: skip
    assert hanging.volume.records(TRAINER)[-1].values["optimizer_steps"] == 4
    assert hanging.volume.run.stopped(2).exists()


@pytest.mark.parametrize("place", [IN_THE_PREFLIGHT, IN_THE_BASELINE])
def test_a_stop_before_the_first_step_ends_at_once_without_a_checkpoint(hanging: Hanging, place: int) -> None:
    process = hanging.start(place)
    asked = time.monotonic()
    hanging.volume.run.stop_request(1).touch()
    output = process.communicate(timeout=30)[0].decode()
    assert process.returncode == EXIT_STOPPED, output
    assert time.monotonic() - asked < 2.5, output
    assert (hanging.volume.result.outcome, hanging.volume.result.step) == ("Stopped", 0)
    assert not list(hanging.volume.run.checkpoints.glob("*"))
    assert hanging.volume.run.stopped(1).exists()


def test_a_stop_that_was_asked_for_before_the_runner_began_ends_it_before_it_loads_anything(hanging: Hanging) -> None:
    hanging.volume.run.logs(1).mkdir(parents=True)
    hanging.volume.run.stop_request(1).touch()
    process = hanging.start(1_000_000)
    output = process.communicate(timeout=30)[0].decode()
    assert process.returncode == EXIT_STOPPED, output
    assert "loaded with" not in output
    assert hanging.volume.result.outcome == "Stopped"
    assert hanging.volume.run.stopped(1).exists()


def test_a_stop_in_the_middle_of_an_update_comes_when_the_step_is_counted_and_saved(hanging: Hanging) -> None:
    """The signal comes at any moment of a fast run, many times over."""
    attempt, steps = 0, -1
    hanging.run = replace(hanging.run, algorithm=replace(hanging.run.algorithm, steps=6))
    while attempt < 3:
        attempt += 1
        process = hanging.start(1_000_000, attempt)
        journal = hanging.volume.run.episodes(max(steps, 0) + 1)
        wait_for(lambda journal=journal, n=attempt: f'"runAttempt":{n},' in _text(journal), process)
        process.terminate()
        output = process.communicate(timeout=30)[0].decode()
        assert process.returncode == EXIT_STOPPED, output
        result = hanging.volume.result
        assert result.outcome == "Stopped"
        assert result.step == result.checkpoint_step > steps
        trained = [record for record in hanging.volume.records(TRAINER)]
        assert [record.step for record in trained] == list(range(1, result.step + 1))
        assert trained[-1].values["optimizer_steps"] == result.step
        steps = result.step


def _text(path: Path) -> str:
    lines = path.read_text().splitlines() if path.is_file() else []
    return "\n".join(line for line in lines if '"mode":"train"' in line)


def test_a_finished_evaluation_of_the_base_model_is_not_made_again_after_a_stop(hanging: Hanging) -> None:
    process = hanging.start(IN_STEP_2)
    process.terminate()
    process.communicate(timeout=30)
    assert [record.step for record in hanging.volume.records(EVALUATION)] == [0]
    assert [figures.step for figures in hanging.volume.result.evaluation] == [0]


def tasks_of_steps(volume: Volume) -> dict[int, list[str]]:
    """The tasks of each step as its newest attempt trained them."""
    found = {}
    for file in sorted((volume.run.root / "episodes").glob("step-*.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        trained = [line for line in lines if line["mode"] == "train"]
        newest = max((line["runAttempt"] for line in trained), default=0)
        if trained:
            found[int(file.stem[5:])] = [line["taskId"] for line in trained if line["runAttempt"] == newest]
    return found


def test_a_run_that_is_killed_amid_a_step_trains_the_same_tasks_as_one_that_is_not(
    hanging: Hanging, tmp_path: Path
) -> None:
    """Step 3 hangs when the checkpoint is that of step 1: steps 2 and 3 are trained by the second attempt."""
    hanging.run = replace(hanging.run, algorithm=replace(hanging.run.algorithm, save_every_steps=1))
    process = hanging.start(IN_STEP_3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    torn = hanging.volume.run.checkpoint(2)
    (torn / "COMPLETE").unlink()
    assert not hanging.volume.run.stopped(1).exists()
    killed = hanging.start(1_000_000, attempt=2)
    output = killed.communicate(timeout=300)[0].decode()
    assert killed.returncode == 0, output
    assert "resuming after step 1" in output
    result, records = hanging.volume.result, hanging.volume.records(TRAINER)
    assert (result.step, result.target_steps) == (4, 4)
    assert [(record.attempt, record.step) for record in records] == [(1, 1), (1, 2), (2, 2), (2, 3), (2, 4)]
    assert [record.values["optimizer_steps"] for record in records] == [1, 2, 2, 3, 4]
    assert [record.values["episodes"] for record in records] == [24, 48, 48, 72, 96]
    tasks = tasks_of_steps(hanging.volume)
    (tmp_path / "whole").mkdir()
    hanging.volume = Volume(tmp_path / "whole")
    whole = hanging.start(1_000_000)
    output = whole.communicate(timeout=300)[0].decode()
    assert whole.returncode == 0, output
    assert tasks_of_steps(hanging.volume) == tasks
    assert sorted(tasks) == [1, 2, 3, 4]
    assert hanging.volume.result.step == result.step


def test_a_final_evaluation_that_hangs_is_ended_by_its_limit_and_the_tuned_model_is_there(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNING_FINAL_EVALUATION_SECONDS", "6")
    process = hanging.start(IN_THE_END)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 0, output
    volume = hanging.volume
    assert (volume.result.complete, volume.result.step) == (True, 4)
    assert volume.result.message == (
        "no evaluation figure for heldout: too many episodes without a score; the final evaluation was ended after "
        "6 s, by `deadlines.finalEvaluationSeconds`"
    )
    assert [(figures.dataset, figures.step) for figures in volume.result.evaluation] == [("heldout", 0)]
    assert (volume.run.final / "model.safetensors").is_file()
    judged = volume.records(EVALUATION)[-1]
    assert (judged.step, "mean" in judged.values) == (4, False)
    assert 6 <= judged.values["seconds"] < 12
