"""One attempt around a scripted engine: fencing, order, and a result for every end."""

import errno
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.runner.documents import DIRECTORY, a_run_document, an_algorithm
from tuning_contract.causes import Cause
from tuning_contract.checkpoint import Manifest, complete_checkpoints, write_atomically
from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import MetricRecord
from tuning_contract.result import RunResult
from tuning_contract.run_document import RunDocument
from tuning_runner.attempt import Attempt
from tuning_runner.engine import Context, Held, Inputs, Plan, Resume, Trained, Verdict
from tuning_runner.episodes.errors import RunError
from tuning_runner.evaluation import Evaluation
from tuning_runner.stopping import Stop

STEPS = 3


class ScriptedEngine:
    """Trains nothing; writes down what it is asked for. `at` maps a call's name to what happens in it."""

    def __init__(self, calls: list[str], at: Mapping[str, Callable[[], None]]) -> None:
        self._calls = calls
        self._at = at

    def _call(self, name: str) -> None:
        self._calls.append(name)
        self._at.get(name, lambda: None)()

    def plan(self, run: RunDocument, rows: int) -> Plan:
        return Plan(run.algorithm.steps or int((run.algorithm.epochs or 0) * rows // run.algorithm.batch_size))

    def check(self) -> None:
        self._call("check")

    def fingerprint(self) -> Mapping[str, object]:
        return {"seed": 0}

    def evaluate(self, checkpoint: Path | None, held: Held) -> Evaluation:
        self._call("evaluate base" if checkpoint is None else f"evaluate {checkpoint.name}")
        values = {"mean": 0.2 if checkpoint is None else 0.9, "episodes": 20.0, "unscored_ratio": 0.0}
        if "no figure" in self._at:
            del values["mean"]
        return Evaluation(held.settings.name, 0 if checkpoint is None else STEPS, values)

    def train(self, context: Context, resume: Resume | None) -> Trained:
        first = 1 if resume is None else resume.manifest.step + 1
        for step in range(first, context.target_steps + 1):
            self._call(f"step {step}")
            context.metrics.step(step, {"reward_mean": step / 10})
            manifest = Manifest("trl", step, step, 0.0, context.fingerprint)
            context.checkpoints.save(manifest, lambda folder: (folder / "weights").write_text("w"))
        checkpoint = context.inputs.directory.checkpoint(context.target_steps)
        return Trained(context.target_steps, checkpoint, {"kl": 0.1} if first <= context.target_steps else {})

    def export(self, checkpoint: Path, final: Path) -> None:
        self._call("export")
        (final / "model.safetensors").write_text("merged")

    def verdict(self, directory: RunDirectory) -> Verdict:
        return Verdict("the final model is half" if "bad verdict" in self._at else "")

    def close(self) -> None:
        self._call("close")


class Scene:
    """A volume and the attempts on it."""

    def __init__(self, root: Path, **changes) -> None:
        self.directory = RunDirectory(root / DIRECTORY)
        self.run = replace(a_run_document(algorithm=an_algorithm(steps=STEPS)), **changes)
        self.calls: list[str] = []
        self.stop = Stop()

    def attempt(self, number: int = 1, **at: Callable[[], None]) -> int:
        self.calls.clear()
        self.stop = Stop()
        named = {name.replace("_", " "): action for name, action in at.items()}

        def make(inputs: Inputs) -> ScriptedEngine:
            assert inputs.directory == self.directory
            return ScriptedEngine(self.calls, named)

        return Attempt(self.run, number, self.directory, make, self.stop).execute()

    @property
    def result(self) -> RunResult:
        return RunResult.from_text(self.directory.result.read_text())


def raises(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def nothing() -> None:
    pass


def test_the_base_model_is_judged_first_and_the_last_checkpoint_last(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt() == 0
    steps = ["step 1", "step 2", "step 3"]
    assert scene.calls == ["check", "evaluate base", *steps, "evaluate step-000003", "export", "close"]
    result = scene.result
    assert result.complete
    assert [figures.mean for figures in result.evaluation] == [0.2, 0.9]
    assert (result.checkpoint, result.checkpoint_step) == (f"{DIRECTORY}/checkpoints/step-000003", 3)
    assert result.metrics == {"kl": 0.1}
    lines = [MetricRecord.from_line(line) for line in scene.directory.metrics.read_text().splitlines()]
    assert [(line.role, line.step) for line in lines] == [
        ("evaluation", 0), ("trainer", 1), ("trainer", 2), ("trainer", 3), ("evaluation", 3),
    ]  # fmt: skip
    assert scene.directory.current_attempt.read_text() == "1\n"
    assert json.loads(scene.directory.provenance.read_text())["run"]["name"] == "tiny"


def test_a_complete_result_ends_the_next_attempt_at_once(tmp_path):
    scene = Scene(tmp_path)
    scene.attempt()
    text = scene.directory.result.read_text()
    assert scene.attempt(2) == 0
    assert scene.calls == []
    assert scene.directory.result.read_text() == text


def test_a_complete_result_of_other_settings_is_not_this_runs(tmp_path):
    scene = Scene(tmp_path)
    scene.attempt()
    scene.run = replace(scene.run, algorithm=an_algorithm(steps=STEPS, learning_rate=1.0))
    assert scene.attempt(2) == 0
    assert "check" in scene.calls


def test_a_head_that_was_replaced_inside_the_attempt_trains_nothing(tmp_path):
    scene = Scene(tmp_path)
    write_atomically(scene.directory.started(1), "")
    assert scene.attempt() == 10
    assert scene.calls == []
    assert scene.result.cause == Cause.HEAD_LOST


def test_the_verdict_of_the_same_attempt_survives_a_replaced_head(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt(check=raises(RunError(Cause.WORKFLOW_ERROR, "their bug"))) == 10
    assert scene.attempt() == 10
    assert scene.calls == []
    assert scene.result.cause == Cause.WORKFLOW_ERROR


def test_an_attempt_older_than_the_newest_writes_nothing(tmp_path):
    scene = Scene(tmp_path)
    write_atomically(scene.directory.current_attempt, "2\n")
    assert scene.attempt(1) == 10
    assert not scene.directory.result.exists()
    assert not scene.directory.started(1).exists()


def test_an_attempt_that_is_replaced_while_it_trains_stops_without_a_result(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt(step_2=lambda: write_atomically(scene.directory.current_attempt, "2\n")) == 10
    assert scene.calls[-2:] == ["step 2", "close"]
    assert [manifest.step for _, manifest in complete_checkpoints(scene.directory.checkpoints)] == [1]
    assert not scene.directory.result.exists()


def test_the_next_attempt_resumes_and_keeps_the_base_models_figures(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt(step_3=raises(RuntimeError("boom"))) == 10
    assert (scene.result.cause, scene.result.step, scene.result.checkpoint_step) == (Cause.ENGINE_ERROR, 2, 2)
    assert scene.attempt(2) == 0
    assert scene.calls == ["check", "step 3", "evaluate step-000003", "export", "close"]
    assert [figures.mean for figures in scene.result.evaluation] == [0.2, 0.9]
    assert scene.result.attempt == 2


def test_after_a_damaged_checkpoint_the_result_names_one_that_can_be_used(tmp_path):
    scene = Scene(tmp_path)
    scene.attempt(step_3=raises(RuntimeError("boom")))
    (scene.directory.checkpoint(2) / "weights").write_text("x")
    assert scene.attempt(2, step_2=raises(RuntimeError("boom again"))) == 10
    assert (scene.result.checkpoint, scene.result.checkpoint_step) == (f"{DIRECTORY}/checkpoints/step-000001", 1)


@pytest.mark.parametrize(
    ("error", "cause", "text"),
    [
        (RunError(Cause.WORKFLOW_ERROR, "ValueError: the tool is broken"), Cause.WORKFLOW_ERROR, "the tool is broken"),
        (RunError(Cause.WORKFLOW_ERROR, "ValueError: half \ud83d"), Cause.WORKFLOW_ERROR, "ValueError: half ?"),
        (MemoryError(), Cause.OUT_OF_MEMORY, "microBatchTokens"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 GB"), Cause.OUT_OF_MEMORY, "can't allocate"),
        (OSError(errno.ENOSPC, "No space left on device"), Cause.STORAGE_FAILED, "No space left"),
        (RuntimeError("Error while serializing: I/O error: … (os error 122)"), Cause.STORAGE_FAILED, "os error 122"),
        (RuntimeError("[enforce fail] unexpected pos 64 vs 0"), Cause.STORAGE_FAILED, "unexpected pos"),
        (RuntimeError("Error while reading: No such file (os error 2)"), Cause.ENGINE_ERROR, "os error 2"),
        (ZeroDivisionError("ours"), Cause.ENGINE_ERROR, "ZeroDivisionError: ours"),
    ],
)
def test_every_exception_becomes_a_result_with_its_cause(tmp_path, error, cause, text):
    scene = Scene(tmp_path)
    assert scene.attempt(step_2=raises(error)) == 10
    assert scene.calls[-1] == "close"
    result = scene.result
    assert (result.outcome, result.cause, result.step, result.target_steps) == ("Failed", cause, 1, STEPS)
    assert text in result.message
    assert result.final_model == ""


def test_a_final_model_that_is_not_whole_is_no_success(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt(bad_verdict=nothing) == 10
    assert (scene.result.cause, scene.result.message) == (Cause.INCOMPLETE_STEPS, "the final model is half")


def test_a_final_model_without_a_result_makes_room_for_the_next_attempts(tmp_path):
    scene = Scene(tmp_path)
    scene.attempt(bad_verdict=nothing)
    there = [scene.directory.final.exists()]
    assert scene.attempt(2, export=lambda: there.append(scene.directory.final.exists())) == 0
    assert [*there, scene.directory.final.exists()] == [True, False, True]


def test_half_a_model_of_a_killed_attempt_is_gone_before_the_free_space_is_looked_at(tmp_path):
    scene = Scene(tmp_path)
    half = scene.directory.final.with_name(".final.1")
    half.mkdir(parents=True)
    (half / "model.safetensors").write_text("half")
    there: list[bool] = []
    assert scene.attempt(2, check=lambda: there.append(half.exists())) == 0
    assert there == [False]


def test_an_attempt_that_was_replaced_leaves_the_model_that_the_newer_one_writes(tmp_path):
    scene = Scene(tmp_path)
    write_atomically(scene.directory.current_attempt, "2\n")
    half = scene.directory.final.with_name(".final.2")
    half.mkdir()
    assert scene.attempt(1) == 10
    assert half.exists()


def test_an_evaluation_without_a_figure_is_said_in_the_result(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt(no_figure=nothing) == 0
    assert scene.result.evaluation == ()
    assert scene.result.message == "no evaluation figure for heldout: too many episodes without a score"


def test_a_base_model_without_a_figure_is_judged_again_by_the_next_attempt(tmp_path):
    scene = Scene(tmp_path)
    scene.attempt(no_figure=nothing, step_2=raises(RuntimeError("boom")))
    assert scene.attempt(2) == 0
    assert scene.calls[:2] == ["check", "evaluate base"]
    assert [figures.mean for figures in scene.result.evaluation] == [0.2, 0.9]


def test_a_resume_after_the_last_step_tells_the_metrics_of_that_step(tmp_path):
    scene = Scene(tmp_path)
    scene.attempt(export=raises(RuntimeError("boom")))
    assert scene.attempt(2) == 0
    assert "step 3" not in scene.calls
    assert scene.result.metrics == {"reward_mean": 0.3}


def test_fewer_rows_than_a_batch_are_refused(tmp_path):
    scene = Scene(tmp_path, algorithm=an_algorithm(batch_size=21))
    assert scene.attempt() == 10
    assert scene.result.cause == Cause.DATASET_INVALID
    assert "has 20 rows, fewer than `algorithm.batchSize` 21" in scene.result.message


def test_epochs_that_do_not_fill_a_batch_are_refused(tmp_path):
    scene = Scene(tmp_path, algorithm=an_algorithm(steps=None, epochs=0.5))
    assert scene.attempt() == 10
    assert scene.result.cause == Cause.CONFIG_INVALID
    assert "0.5 epochs of 20 rows are less than one batch of 20" in scene.result.message
