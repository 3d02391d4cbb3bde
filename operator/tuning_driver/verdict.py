"""The verdict on an attempt: evidence in, exit code and termination message out.

Pure, so that every rule is a row in a test. `__main__` calls it once at the end. The order is fixed:
a complete result, or one of a runner that has saved on request, which the loss of its head does not undo; then a lost
head, then the runner's own cause, then a job that has ended in Ray's eyes, then a standstill, else Unknown; an exit
code alone never decides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuning_contract.causes import Cause
from tuning_contract.progress import Progress
from tuning_contract.result import FAILED, STOPPED, SUCCEEDED, RunResult
from tuning_contract.termination import (
    EXIT_ATTEMPT_LOST,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_SUCCEEDED,
    TerminationMessage,
)
from tuning_driver.ray_jobs import JobState

LAST_METRICS = ("reward_mean", "policy_loss", "kl")
"""Values of the last step that the operator shows when the run has ended."""
MESSAGE_BYTES = 1200
"""Room for Ray's words; the rest of the termination message must fit beside them."""

_LOST = frozenset({Cause.HEAD_LOST, Cause.WORKER_LOST, Cause.NODE_LOST, Cause.EVICTED, Cause.PREEMPTED})
_SIGNS = {
    Cause.OUT_OF_MEMORY: ("outofmemory", "out of memory", "running low on memory", "oomkilled"),
    Cause.STORAGE_FAILED: ("no space left on device", "read-only file system", "disk quota exceeded"),
}
"""What Ray's words, which end with the last lines of the log, tell of a runner that could not write its result."""


@dataclass(frozen=True)
class Evidence:
    """All that is known at the end."""

    attempt: int
    run_digest: str
    result: RunResult | None = None
    head_loss: str = ""
    """Why the head counts as lost; empty while it lives."""
    job: JobState | None = None
    progress: Progress | None = None
    stall: str = ""
    """Why the training counts as stalled; empty while it goes on."""
    volume_problem: str = ""
    """Why nobody can say whether there is a result, after the job has ended; empty while the volume can be read."""


@dataclass(frozen=True)
class Verdict:
    """How the driver ends."""

    exit_code: int
    message: TerminationMessage


def belongs(result: RunResult, run_digest: str, attempt: int) -> bool:
    """Whether a result speaks for this attempt: a success of any attempt does, a failure of an older one does not."""
    return result.run_digest == run_digest and (result.complete or result.attempt == attempt)


def judge(evidence: Evidence) -> Verdict:
    """Apply the rules in their order."""
    result = evidence.result
    if result is not None and not belongs(result, evidence.run_digest, evidence.attempt):
        result = None
    if result is not None and result.complete:
        return _verdict(evidence, result, None, "; ".join(filter(None, (result.summary, _remark(evidence.job)))))
    if result is not None and result.outcome == STOPPED:
        return _stopped(evidence, result)
    if evidence.head_loss:
        return _verdict(evidence, result, Cause.HEAD_LOST, evidence.head_loss)
    if result is not None:
        return _verdict(evidence, result, *_runner_cause(result))
    if evidence.stall and not (evidence.job and evidence.job.terminal):
        return _verdict(evidence, None, Cause.STALLED, evidence.stall)
    cause, message = _job_cause(evidence.job, evidence.progress)
    if evidence.volume_problem:
        return _verdict(evidence, None, Cause.STORAGE_FAILED, f"{evidence.volume_problem}; {message}")
    return _verdict(evidence, None, cause, message)


def _stopped(evidence: Evidence, result: RunResult) -> Verdict:
    """Neither good nor bad: what was asked for has happened, and the operator knows who asked."""
    kept = f"the checkpoint of step {result.checkpoint_step} is kept" if result.checkpoint else "there is no checkpoint"
    message = result.message or f"stopped on request after step {result.step} of {result.target_steps}; {kept}"
    verdict = _verdict(evidence, result, None, message)
    return Verdict(EXIT_STOPPED, replace(verdict.message, outcome=STOPPED))


def _remark(job: JobState | None) -> str:
    if job is None or not job.terminal or job.status == "SUCCEEDED":
        return ""
    return f"the result is complete, but the Ray job ended {job.status}: {shorten(job.message, 400)}"


def _runner_cause(result: RunResult) -> tuple[Cause, str]:
    if result.outcome == SUCCEEDED:
        what = "without a final model" if result.step == result.target_steps else "before its last step"
        return Cause.INCOMPLETE_STEPS, f"the runner ended {what}: step {result.step} of {result.target_steps}"
    try:
        cause = Cause(result.cause)
    except ValueError:
        return Cause.UNKNOWN, f"{result.cause}: {result.message}" if result.cause else result.message
    return cause, result.message


def _job_cause(job: JobState | None, progress: Progress | None) -> tuple[Cause, str]:
    reached = f" at step {progress.step} of {progress.target_steps}" if progress and progress.target_steps else ""
    if job is None:
        return Cause.UNKNOWN, f"neither the runner nor Ray said how the job ended{reached}"
    if job.status == "SUCCEEDED":
        return Cause.INCOMPLETE_STEPS, f"the Ray job ended{reached} without a result.json"
    words = shorten(job.message, MESSAGE_BYTES)
    for cause, signs in _SIGNS.items():
        if any(sign in job.message.lower() for sign in signs):
            return cause, f"Ray job {job.status}{reached}: {words}"
    killed = job.exit_code in (-9, 137)
    hint = "; it was killed (SIGKILL), most often by the container's memory limit" if killed else ""
    code = f", exit code {job.exit_code}" if job.exit_code is not None else ""
    return Cause.UNKNOWN, f"Ray job {job.status}{code}{reached}{hint}: {words or 'Ray gives no message'}"


def _verdict(evidence: Evidence, result: RunResult | None, cause: Cause | None, message: str) -> Verdict:
    progress = evidence.progress or Progress(attempt=evidence.attempt)
    values = {**progress.values, **(result.metrics if result else {})}
    metrics = {name: round(values[name], 6) for name in LAST_METRICS if name in values}
    if result is not None and result.evaluation:
        figures: Iterable[Mapping[str, Any]] = [
            {"dataset": entry.dataset, "step": entry.step, "mean": entry.mean} for entry in result.evaluation
        ]
    else:
        figures = progress.evaluation
    return Verdict(
        exit_code=EXIT_SUCCEEDED if cause is None else EXIT_ATTEMPT_LOST if cause in _LOST else EXIT_FAILED,
        message=TerminationMessage(
            outcome=SUCCEEDED if cause is None else FAILED,
            cause=cause.value if cause else "",
            message=message,
            step=result.step if result else progress.step,
            target_steps=(result.target_steps if result else 0) or progress.target_steps,
            checkpoint=(result.checkpoint if result else "") or progress.checkpoint_path,
            metrics=metrics | _evaluation(figures),
        ),
    )


def _evaluation(figures: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """`eval/<set>/baseline` is the base model's mean (step 0), `eval/<set>/last` that of the highest later step."""
    found: dict[str, float] = {}
    for entry in sorted(figures, key=lambda entry: int(entry["step"])):
        place = "baseline" if int(entry["step"]) == 0 else "last"
        found[f"eval/{entry['dataset']}/{place}"] = round(float(entry["mean"]), 6)
    return found


def shorten(text: str, limit: int) -> str:
    """At most about `limit` characters: the first quarter and the end, where a traceback names its exception."""
    text = text.strip()
    if len(text) <= limit:
        return text
    head = limit // 4
    return f"{text[:head].rstrip()} … {text[-(limit - head) :].lstrip()}"
