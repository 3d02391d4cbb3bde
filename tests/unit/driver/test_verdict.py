"""Rule 13, row by row."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from tests.unit.sidecar.documents import a_result, a_run
from tuning_contract.causes import Cause
from tuning_contract.progress import Progress
from tuning_contract.result import FAILED, STOPPED, SUCCEEDED, EvaluationFigures, RunResult
from tuning_contract.termination import (
    EXIT_ATTEMPT_LOST,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_SUCCEEDED,
    LIMIT,
    VERDICT_CODES,
    TerminationMessage,
)
from tuning_driver.http_client import Answer
from tuning_driver.ray_jobs import JobState
from tuning_driver.sidecar import Sidecar
from tuning_driver.verdict import Evidence, judge, shorten

RUN = a_run()
PROGRESS = Progress(attempt=1, step=5, target_steps=12, checkpoint_path="ml/x/checkpoints/step-000003")
COMPLETE = a_result(RUN)
STOPPED_RESULT = a_result(
    RUN, outcome=STOPPED, step=7, final_model="", checkpoint="ml/x/checkpoints/step-000007", checkpoint_step=7
)
ENTRYPOINT = "Job entrypoint command failed with exit code 10, last available logs:"
WORKFLOW_ERROR = a_result(RUN, outcome=FAILED, cause="WorkflowError", message="KeyError: 'question'", step=1)


def evidence(
    result: RunResult | None = None,
    head_loss: str = "",
    job: JobState | None = None,
    attempt: int = 1,
    stall: str = "",
    volume_problem: str = "",
) -> Evidence:
    return Evidence(attempt, RUN.digest, result, head_loss, job, PROGRESS, stall, volume_problem)


@pytest.mark.parametrize(
    ("given", "exit_code", "cause"),
    [
        # (a) a complete result, whatever else is known
        (evidence(COMPLETE), EXIT_SUCCEEDED, ""),
        (evidence(COMPLETE, job=JobState("FAILED", "exit code 1", 1)), EXIT_SUCCEEDED, ""),
        (evidence(COMPLETE, head_loss="gone"), EXIT_SUCCEEDED, ""),
        (evidence(COMPLETE, attempt=2), EXIT_SUCCEEDED, ""),
        # ... but not one that lacks steps or a model, or belongs to other settings
        (evidence(replace(COMPLETE, step=11)), EXIT_FAILED, Cause.INCOMPLETE_STEPS),
        (evidence(replace(COMPLETE, final_model="")), EXIT_FAILED, Cause.INCOMPLETE_STEPS),
        (evidence(replace(COMPLETE, run_digest="other"), job=JobState("FAILED")), EXIT_FAILED, Cause.UNKNOWN),
        # (b) a lost head before the runner's cause
        (evidence(WORKFLOW_ERROR, head_loss="gone"), EXIT_ATTEMPT_LOST, Cause.HEAD_LOST),
        (evidence(head_loss="gone", job=JobState("RUNNING")), EXIT_ATTEMPT_LOST, Cause.HEAD_LOST),
        # (c) the runner's cause before Ray's status
        (evidence(WORKFLOW_ERROR, job=JobState("SUCCEEDED")), EXIT_FAILED, Cause.WORKFLOW_ERROR),
        (evidence(replace(WORKFLOW_ERROR, cause="HeadLost")), EXIT_ATTEMPT_LOST, Cause.HEAD_LOST),
        (evidence(replace(WORKFLOW_ERROR, cause="Newer")), EXIT_FAILED, Cause.UNKNOWN),
        # ... but an older attempt's failure says nothing of this one
        (evidence(WORKFLOW_ERROR, job=JobState("SUCCEEDED"), attempt=2), EXIT_FAILED, Cause.INCOMPLETE_STEPS),
        (evidence(WORKFLOW_ERROR, stall="quiet"), EXIT_FAILED, Cause.WORKFLOW_ERROR),
        # a runner that has saved on request, though its head has gone
        (evidence(STOPPED_RESULT), EXIT_STOPPED, ""),
        (evidence(STOPPED_RESULT, job=JobState("FAILED", "exit code 12", 12)), EXIT_STOPPED, ""),
        (evidence(STOPPED_RESULT, stall="quiet"), EXIT_STOPPED, ""),
        (evidence(STOPPED_RESULT, head_loss="gone"), EXIT_STOPPED, ""),
        (evidence(STOPPED_RESULT, job=JobState("FAILED"), attempt=2), EXIT_FAILED, Cause.UNKNOWN),
        # (d) Ray's status
        (evidence(job=JobState("FAILED", "exit code 1", 1)), EXIT_FAILED, Cause.UNKNOWN),
        (evidence(job=JobState("FAILED", "killed: node running low on memory")), EXIT_FAILED, Cause.OUT_OF_MEMORY),
        (evidence(job=JobState("SUCCEEDED", "", 0)), EXIT_FAILED, Cause.INCOMPLETE_STEPS),
        (evidence(job=JobState("STOPPED")), EXIT_FAILED, Cause.UNKNOWN),
        (evidence(), EXIT_FAILED, Cause.UNKNOWN),
        (evidence(job=JobState("FAILED", f"{ENTRYPOINT} [Errno 28] No space left on device", 10)), 10, "StorageFailed"),
        (evidence(job=JobState("FAILED", ENTRYPOINT, 10), volume_problem="EIO"), EXIT_FAILED, Cause.STORAGE_FAILED),
        (evidence(job=JobState("SUCCEEDED"), volume_problem="EIO"), EXIT_FAILED, Cause.STORAGE_FAILED),
        # ... but a standstill when the job goes on
        (evidence(job=JobState("RUNNING"), stall="quiet"), EXIT_FAILED, Cause.STALLED),
        (evidence(stall="quiet"), EXIT_FAILED, Cause.STALLED),
        (evidence(COMPLETE, stall="quiet"), EXIT_SUCCEEDED, ""),
        (evidence(head_loss="gone", stall="quiet"), EXIT_ATTEMPT_LOST, Cause.HEAD_LOST),
        (evidence(job=JobState("FAILED", "exit code 1", 1), stall="quiet"), EXIT_FAILED, Cause.UNKNOWN),
    ],
)
def test_the_order_of_evidence_decides(given: Evidence, exit_code: int, cause: str) -> None:
    verdict = judge(given)
    assert (verdict.exit_code, verdict.message.cause) == (exit_code, cause)
    outcomes = {EXIT_SUCCEEDED: "Succeeded", EXIT_STOPPED: "Stopped"}
    assert verdict.message.outcome == outcomes.get(exit_code, "Failed")
    assert (exit_code in VERDICT_CODES) == (exit_code != EXIT_SUCCEEDED)
    assert verdict.message.message or exit_code == EXIT_SUCCEEDED


def test_a_stop_tells_what_is_kept_in_the_runners_words_or_in_ours() -> None:
    message = judge(evidence(STOPPED_RESULT)).message
    assert (message.step, message.target_steps, message.checkpoint) == (7, 12, STOPPED_RESULT.checkpoint)
    assert message.message == "stopped on request after step 7 of 12; the checkpoint of step 7 is kept"
    assert judge(evidence(replace(STOPPED_RESULT, message="saved"))).message.message == "saved"
    nothing = replace(STOPPED_RESULT, step=0, checkpoint="", checkpoint_step=0)
    assert judge(evidence(nothing)).message.message == "stopped on request after step 0 of 12; there is no checkpoint"


def test_a_volume_that_cannot_be_read_is_told_beside_rays_words() -> None:
    message = judge(evidence(job=JobState("FAILED", ENTRYPOINT, 10), volume_problem="EIO")).message.message
    assert "EIO" in message
    assert ENTRYPOINT in message


def test_the_runners_own_words_reach_the_message() -> None:
    assert judge(evidence(WORKFLOW_ERROR)).message.message == "KeyError: 'question'"


def test_a_success_tells_what_it_lacks_in_the_runners_words() -> None:
    assert judge(evidence(COMPLETE)).message.message == "all 12 steps are done"
    lacking = judge(evidence(replace(COMPLETE, message="no evaluation figure for heldout"))).message
    assert lacking.outcome == SUCCEEDED
    assert lacking.message == "all 12 steps are done; no evaluation figure for heldout"


def test_a_success_with_a_failing_exit_says_so() -> None:
    found = judge(evidence(COMPLETE, job=JobState("FAILED", "segfault", -11))).message.message
    assert found == "all 12 steps are done; the result is complete, but the Ray job ended FAILED: segfault"


def test_a_killed_process_is_named_but_not_called_out_of_memory_by_its_exit_code_alone() -> None:
    message = judge(evidence(job=JobState("FAILED", "exit code -9", -9))).message
    assert message.cause == Cause.UNKNOWN
    assert "SIGKILL" in message.message
    assert "step 5 of 12" in message.message


def test_the_message_shows_figures_of_the_result_first_and_of_the_progress_else() -> None:
    figures = (
        EvaluationFigures("heldout", 12, 0.95, 120, 0),
        EvaluationFigures("heldout", 0, 0.15, 120, 0),
        EvaluationFigures("heldout", 6, 0.5, 120, 0),
        EvaluationFigures("other", 0, 0.1, 60, 0),
    )
    result = replace(COMPLETE, evaluation=figures, metrics={"reward_mean": 0.9, "entropy": 1.0})
    progress = Progress(1, 11, 12, values={"reward_mean": 0.8, "kl": 0.01, "policy_loss": -0.02})
    message = judge(replace(evidence(result), progress=progress)).message
    assert message.metrics == {
        "reward_mean": 0.9,
        "policy_loss": -0.02,
        "kl": 0.01,
        "eval/heldout/baseline": 0.15,
        "eval/heldout/last": 0.95,
        "eval/other/baseline": 0.1,
    }
    assert (message.step, message.target_steps) == (12, 12)
    assert message.checkpoint == f"{RUN.checkpoint.directory}/checkpoints/step-000012"


def test_a_lost_head_still_reports_what_was_last_seen() -> None:
    progress = replace(
        PROGRESS, values={"reward_mean": 0.3}, evaluation=({"dataset": "heldout", "step": 0, "mean": 0.15},)
    )
    message = judge(replace(evidence(head_loss="gone"), progress=progress)).message
    assert (message.step, message.target_steps, message.checkpoint) == (5, 12, "ml/x/checkpoints/step-000003")
    assert message.metrics == {"reward_mean": 0.3, "eval/heldout/baseline": 0.15}


@pytest.mark.parametrize(
    "body",
    [
        b'{"attempt": 1, "step": "5"}',
        b'{"attempt": 1, "values": {"reward_mean": "high"}}',
        b'{"attempt": 1, "evaluation": [7]}',
        b"[" * 100_000,
    ],
)
def test_figures_that_are_no_figures_are_not_known_and_the_verdict_stands(body: bytes) -> None:
    client = Mock(get=lambda path: Answer(200, body))
    progress = Sidecar(client).progress()
    assert progress is None
    verdict = judge(replace(evidence(COMPLETE), progress=progress))
    assert (verdict.exit_code, verdict.message.step) == (EXIT_SUCCEEDED, 12)


@pytest.mark.parametrize("length", [1, 4000])
def test_half_a_letter_in_a_message_of_ray_is_a_question_mark(length: int) -> None:
    message = TerminationMessage("Failed", "Unknown", "\ud83d" * length, checkpoint="step-\udc80")
    text = message.to_text()
    assert len(text.encode()) <= LIMIT
    parsed = TerminationMessage.from_text(text)
    assert parsed is not None
    assert (parsed.cause, parsed.checkpoint) == ("Unknown", "step-?")
    assert set(parsed.message) == ({"?"} if length == 1 else {"?", "…"})


def test_a_long_message_of_ray_keeps_its_end_and_fits() -> None:
    words = "Job entrypoint command failed, last logs: " + "✓ noise " * 2000 + "ValueError: the one that matters"
    text = judge(evidence(job=JobState("FAILED", words, 1))).message.to_text()
    assert len(text.encode()) <= LIMIT
    parsed = TerminationMessage.from_text(text)
    assert parsed is not None
    assert "Job entrypoint command failed" in parsed.message
    assert shorten(words, 200).endswith("ValueError: the one that matters")
