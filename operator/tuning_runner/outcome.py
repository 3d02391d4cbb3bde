"""How an attempt ends: result.json, and the cause of an exception.

Called by `attempt`, and by `supervision` for a training process that was killed. An exception anywhere in the runner
becomes a result with a cause and a message; what the user can act on (their own exception's text) stands first.
"""

import errno
import hashlib
import json
import re
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuning_contract.causes import Cause
from tuning_contract.checkpoint import complete_checkpoints, write_atomically
from tuning_contract.directory import RunDirectory
from tuning_contract.result import FAILED, STOPPED, SUCCEEDED, EvaluationFigures, RunResult
from tuning_contract.run_document import RunDocument
from tuning_runner.episodes.errors import RunError
from tuning_runner.episodes.text import writable

_LONGEST_MESSAGE = 8000
_STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")
"""How safetensors tells the number."""
_TORCH_WRITE = re.compile(r"PytorchStreamWriter failed|unexpected pos \d+ vs \d+")
"""What torch.save says when a write fails; it keeps the number for itself."""


@dataclass(frozen=True)
class Failure:
    """The bad end of an attempt."""

    cause: Cause
    message: str


def failure_of(error: BaseException) -> Failure:
    """Cause and message of whatever was raised."""
    if isinstance(error, RunError):
        return Failure(error.cause, error.message)
    name = type(error).__name__
    if is_lack_of_memory(error):
        return out_of_memory(str(error) or name)
    if _is_of_the_storage(error):
        return Failure(Cause.STORAGE_FAILED, f"the volume refuses to be written or read: {error}{_advice(error)}")
    trace = "".join(traceback.format_exception(error))[-3000:]
    return Failure(Cause.ENGINE_ERROR, f"{name}: {error}\n{trace}")


def out_of_memory(said: str) -> Failure:
    """The failure of an attempt that lacked memory, with what to change."""
    advice = "lower `algorithm.microBatchTokens` or give the head more memory (`cluster.head.memory`)"
    return Failure(Cause.OUT_OF_MEMORY, f"{said}; {advice}")


def is_lack_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, the host's or an accelerator's."""
    if error is None:
        return False
    # torch's own class has another name on each device and is not imported here.
    named = "OutOfMemory" in type(error).__name__ or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or named


def _is_of_the_storage(error: BaseException) -> bool:
    return _number(error) in _STORAGE_ERRORS or _TORCH_WRITE.search(str(error)) is not None


def _number(error: BaseException) -> int | None:
    """The system's number of an error, whoever raised it."""
    if isinstance(error, OSError):
        return error.errno
    found = _RUST_ERROR.search(str(error))
    return int(found[1]) if found else None


def _advice(error: BaseException) -> str:
    """What to change, where the number tells it."""
    number = _number(error)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "; it is full: make the claim larger, or keep fewer checkpoints (`checkpoint.keepLast`)"
    if number == errno.EROFS:
        return "; it is mounted read-only: see why its storage did that, or mount it for writing"
    if number in (errno.EIO, errno.ESTALE):
        return "; its storage has a fault of its own: see the storage's and the node's logs"
    return ""


@dataclass(frozen=True)
class Ending:
    """What an attempt reached, good or bad."""

    step: int
    target_steps: int
    failure: Failure | None = None
    stopped: bool = False
    """It was asked to stop; then it has no failure."""
    message: str = ""
    evaluation: tuple[EvaluationFigures, ...] = ()
    metrics: Mapping[str, float] | None = None


def write_result(directory: RunDirectory, run: RunDocument, attempt: int, ending: Ending) -> RunResult:
    """Write result.json atomically.

    Paths in it are relative to the volume's root, under which `run.checkpoint.directory` is the run's folder.
    """
    complete = complete_checkpoints(directory.checkpoints)
    newest = complete[-1] if complete else None
    failure = ending.failure
    result = RunResult(
        run_uid=run.run.uid,
        run_digest=run.digest,
        attempt=attempt,
        outcome=FAILED if failure else STOPPED if ending.stopped else SUCCEEDED,
        step=ending.step,
        target_steps=ending.target_steps,
        finished_at=time.time(),
        cause=failure.cause.value if failure else "",
        message=writable((failure.message if failure else ending.message)[:_LONGEST_MESSAGE]),
        checkpoint=_relative(directory, run, newest[0]) if newest else "",
        checkpoint_step=newest[1].step if newest else 0,
        final_model="" if failure or ending.stopped else _relative(directory, run, directory.final),
        evaluation=ending.evaluation,
        metrics=ending.metrics or {},
    )
    write_atomically(directory.result, result.to_text())
    return result


def finished_result(directory: RunDirectory, run: RunDocument) -> RunResult | None:
    """A complete result of this very run that an earlier process left; None without one."""
    result = written_result(directory)
    return result if result is not None and result.run_digest == run.digest and result.complete else None


def written_result(directory: RunDirectory) -> RunResult | None:
    """Whatever result.json holds; None when it is not there or unreadable."""
    try:
        return RunResult.from_text(directory.result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _relative(directory: RunDirectory, run: RunDocument, path: Path) -> str:
    return f"{run.checkpoint.directory}/{path.relative_to(directory.root)}"


def write_refusal(directory: RunDirectory, text: str, attempt: int, problem: str) -> None:
    """The result of a run.json that this runner cannot read: ConfigInvalid, with what can be known of the run."""
    run = json.loads(text).get("run")
    try:
        digest = RunDocument.from_text(text).digest
    except ValueError:
        digest = hashlib.sha256(text.encode()).hexdigest()  # the operator writes the canonical text
    result = RunResult(
        run_uid=str(run.get("uid", "")) if isinstance(run, Mapping) else "",
        run_digest=digest,
        attempt=attempt,
        outcome=FAILED,
        step=0,
        target_steps=0,
        finished_at=time.time(),
        cause=Cause.CONFIG_INVALID.value,
        message=writable(problem),
    )
    write_atomically(directory.result, result.to_text())
