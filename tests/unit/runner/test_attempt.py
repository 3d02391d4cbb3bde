"""One attempt around a scripted engine: fencing, order, and a result for every end."""

import errno
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.runner.documents import DIRECTORY, a_run_document, an_algorithm
from tests.unit.runner.scripted_engine import ScriptedEngine
from tuning_contract.causes import Cause
from tuning_contract.checkpoint import MANIFEST, Manifest, complete_checkpoints, write_atomically
from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import MetricRecord
from tuning_contract.result import RunResult
from tuning_contract.run_document import CheckpointSettings, ResumeFrom
from tuning_runner.attempt import Attempt
from tuning_runner.checkpoints import CheckpointStore, Fence
from tuning_runner.engine import Inputs
from tuning_runner.episodes.errors import RunError
from tuning_runner.stopping import Stop, StopError

STEPS = 3


class Scene:
    """A volume and the attempts on it."""

    def __init__(self, root: Path, **changes) -> None:
        self.directory = RunDirectory(root / DIRECTORY)
        self.run = replace(a_run_document(algorithm=an_algorithm(steps=STEPS)), **changes)
        self.calls: list[str] = []
        self.stop = Stop()
        self.final_seconds: float | None = None

    def attempt(self, number: int = 1, **at: Callable[[], None]) -> int:
        self.calls.clear()
        self.stop = Stop()
        if "stopped_before" in at:
            self.stop.request()
        named = {name.replace("_", " "): action for name, action in at.items()}

        def make(inputs: Inputs) -> ScriptedEngine:
            assert inputs.directory == self.directory
            return ScriptedEngine(self.calls, named)

        return Attempt(self.run, number, self.directory, make, self.stop, self.final_seconds).execute()

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
    began = f"begin with {scene.directory.checkpoint(2)}"
    assert scene.calls == ["check", began, "step 3", "evaluate step-000003", "export", "close"]
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


def test_the_sets_of_the_final_evaluation_share_its_limit_and_what_was_cut_off_is_said(tmp_path):
    scene = Scene(tmp_path)
    sets = [replace(entry, name=name) for entry in scene.run.dataset.evaluation for name in ("first", "second")]
    scene.run = replace(scene.run, dataset=replace(scene.run.dataset, evaluation=tuple(sets)))
    scene.final_seconds = 2.0
    judged = "evaluate step-000003 in 2 s"
    assert scene.attempt(**{judged.replace(" ", "_"): lambda: time.sleep(2.2)}, no_figure=nothing) == 0
    assert scene.calls[1:3] == ["evaluate base"] * 2
    assert scene.calls[-4:] == [judged, "evaluate step-000003 in 0 s", "export", "close"]
    assert scene.result.message == (
        "no evaluation figure for first, second: too many episodes without a score; the final evaluation was ended "
        "after 2 s, by `deadlines.finalEvaluationSeconds`"
    )


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_final_evaluation_with_all_its_figures_leaves_no_words(tmp_path, cut_off):
    scene = Scene(tmp_path)
    scene.final_seconds = 1.0
    judged = "evaluate_step-000003_in_1_s"
    assert scene.attempt(**{judged: lambda: time.sleep(1.1 if cut_off else 0)}) == 0
    assert (scene.result.message, len(scene.result.evaluation)) == ("", 2)


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


def another_run(root: Path, *steps: int, **changes) -> RunDirectory:
    """Another run's folder with checkpoints."""
    directory = RunDirectory(root / "ml/old-123456")
    write_atomically(directory.current_attempt, "1\n")
    store = CheckpointStore(Fence(directory, 1), 5, print)
    for step in steps:
        manifest = replace(Manifest("trl", step, step, 0.0, {"seed": 0}), **changes)
        store.save(manifest, lambda folder: (folder / "weights").write_text("w"))
    return directory


def from_other(path: Path, mode: str = "Continue") -> CheckpointSettings:
    return CheckpointSettings(DIRECTORY, "claim", keep_last=2, resume_from=ResumeFrom(str(path), mode))


@pytest.mark.parametrize("name", ["", "checkpoints/step-000002"])
def test_a_run_goes_on_with_the_checkpoint_of_another_one(tmp_path, name):
    other = another_run(tmp_path, 1, 2)
    scene = Scene(tmp_path, checkpoint=from_other(other.root / name))
    assert scene.attempt() == 0
    began = f"begin with {other.checkpoint(2)}"
    assert scene.calls == [
        *("check", "evaluate base", began, "step 3", "evaluate step-000003", "export", "close"),
    ]  # fmt: skip
    assert (scene.result.step, scene.result.checkpoint) == (STEPS, f"{DIRECTORY}/checkpoints/step-000003")
    assert [manifest.step for _, manifest in complete_checkpoints(other.checkpoints)] == [1, 2]


def test_the_path_of_an_earlier_checkpoint_means_that_one(tmp_path):
    other = another_run(tmp_path, 1, 2)
    scene = Scene(tmp_path, checkpoint=from_other(other.checkpoint(1)))
    assert scene.attempt() == 0
    assert scene.calls[2:5] == [f"begin with {other.checkpoint(1)}", "step 2", "step 3"]


def test_a_damaged_checkpoint_of_another_run_is_passed_over_and_not_deleted(tmp_path, capsys):
    other = another_run(tmp_path, 1, 2)
    (other.checkpoint(2) / "weights").write_text("x")
    scene = Scene(tmp_path, checkpoint=from_other(other.root))
    assert scene.attempt() == 0
    assert f"begin with {other.checkpoint(1)}" in scene.calls
    assert "step-000002 is damaged: weights has another digest" in capsys.readouterr().out
    assert other.checkpoint(2).exists()


def test_the_weights_of_another_run_begin_a_new_training_whatever_its_settings_were(tmp_path):
    other = another_run(tmp_path, 7, fingerprint={"seed": 5})
    scene = Scene(tmp_path, checkpoint=from_other(other.root, "Weights"))
    assert scene.attempt() == 0
    steps = ["step 1", "step 2", "step 3"]
    assert scene.calls[2:6] == [f"begin with {other.checkpoint(7)} (weights)", *steps]


def test_a_runs_own_checkpoints_win_over_another_runs_on_a_retry(tmp_path):
    other = another_run(tmp_path, 1)
    scene = Scene(tmp_path, checkpoint=from_other(other.root))
    scene.attempt(step_3=raises(RuntimeError("boom")))
    shutil.rmtree(other.root)
    assert scene.attempt(2) == 0
    assert scene.calls[1:3] == [f"begin with {scene.directory.checkpoint(2)}", "step 3"]


def test_a_run_whose_own_checkpoints_are_all_damaged_begins_with_another_runs_again(tmp_path):
    other = another_run(tmp_path, 1)
    scene = Scene(tmp_path, checkpoint=from_other(other.root))
    scene.attempt(step_3=raises(RuntimeError("boom")))
    (scene.directory.checkpoint(2) / "weights").write_text("x")
    assert scene.attempt(2) == 0
    assert scene.calls[1:4] == [f"begin with {other.checkpoint(1)}", "step 2", "step 3"]


def test_another_runs_checkpoint_of_other_settings_is_refused_with_the_fields_and_the_way_out(tmp_path):
    other = another_run(tmp_path, 1, fingerprint={"seed": 5})
    scene = Scene(tmp_path, checkpoint=from_other(other.root))
    assert scene.attempt() == 10
    assert scene.result.cause == Cause.CONFIG_INVALID
    assert "seed (5 there, 0 here)" in scene.result.message
    assert "mode: Weights" in scene.result.message


def test_another_runs_checkpoint_that_has_all_steps_already_is_refused(tmp_path):
    scene = Scene(tmp_path, checkpoint=from_other(another_run(tmp_path, STEPS).root))
    assert scene.attempt() == 10
    assert scene.result.cause == Cause.CONFIG_INVALID
    assert f"has {STEPS} steps, and this run ends after {STEPS}" in scene.result.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gone", "there is no folder"),
        ("ml/old-123456/checkpoints/step-000009", "there is no folder"),
        ("ml", "has no complete checkpoint: name a run's folder or one checkpoint's; it has old-123456"),
        ("ml/old-123456/checkpoints/step-000002", "is no complete checkpoint: take another one beside it (step-000001"),
    ],
)
@pytest.mark.parametrize("mode", ["Continue", "Weights"])
def test_a_path_without_a_complete_checkpoint_is_named_before_anything_is_loaded(tmp_path, name, text, mode):
    other = another_run(tmp_path, 1, 2)
    (other.checkpoint(2) / MANIFEST).unlink()
    scene = Scene(tmp_path, checkpoint=from_other(tmp_path / name, mode))
    assert scene.attempt() == 10
    assert scene.calls == []
    assert scene.result.cause == Cause.CONFIG_INVALID
    assert text in scene.result.message
    assert str(tmp_path / name) in scene.result.message


def test_a_stop_between_two_steps_leaves_a_result_that_says_so(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt(step_3=raises(StopError())) == 12
    result = scene.result
    assert (result.outcome, result.step, result.checkpoint_step, result.cause) == ("Stopped", 2, 2, "")
    assert [figures.mean for figures in result.evaluation] == [0.2]
    assert result.final_model == ""


def test_a_stop_that_is_asked_for_while_the_tasks_are_loaded_makes_no_engine(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt(stopped_before=nothing) == 12
    assert scene.calls == []
    assert (scene.result.outcome, scene.result.step) == ("Stopped", 0)


def test_a_result_that_proves_success_is_not_taken_back_by_a_stop_in_the_last_moment(tmp_path):
    scene = Scene(tmp_path)
    assert scene.attempt(close=lambda: scene.stop.request()) == 0
    assert scene.result.complete
