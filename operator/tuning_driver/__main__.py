"""`python -m tuning_driver`: the container of a run's Job.

Reads the environment that the operator sets, submits or attaches, follows, and leaves its verdict in the
termination message. An error of the driver itself leaves no message, so that the kubelet shows the last
lines of this log, and exits with a code after which the Job starts another pod.
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tuning_contract import environment
from tuning_contract.causes import Cause
from tuning_contract.result import FAILED
from tuning_contract.run_document import RunDocument
from tuning_contract.termination import EXIT_DRIVER_ERROR, EXIT_FAILED, TerminationMessage
from tuning_driver.console import Console
from tuning_driver.follow import Attempt, ClusterSilentError, Follower, Timing, submission_for
from tuning_driver.http_client import HttpClient
from tuning_driver.ray_jobs import RayJobs, SubmissionRefusedError
from tuning_driver.sidecar import Sidecar
from tuning_driver.verdict import Verdict, judge

TERMINATION_LOG = "TUNING_TERMINATION_LOG"
"""Where the termination message goes, for tests; the kubelet's path by default."""


def main() -> int:
    """Run the driver; returns its exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    console = Console(sys.stdout.buffer)
    try:
        verdict = _drive(console)
        # What is left takes milliseconds, and the verdict must not be lost.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _TerminatedError:
        console.say("no verdict, this pod is asked to go: the training goes on, and the next pod attaches to it")
        return EXIT_DRIVER_ERROR
    except ClusterSilentError as error:
        console.say(f"no verdict, another pod will try: {error}")
        return EXIT_DRIVER_ERROR
    except Exception:
        console.say(f"the driver failed, another pod will attach to the same job:\n{traceback.format_exc()}")
        return EXIT_DRIVER_ERROR
    finally:
        console.finish()
    text = verdict.message.to_text()
    console.say(text)
    try:
        Path(os.environ.get(TERMINATION_LOG, "/dev/termination-log")).write_text(text, encoding="utf-8")
    except OSError as error:
        # The exit code still tells the Job; the operator then asks the sidecar for the result.
        console.say(f"the termination message cannot be written: {error}")
    return verdict.exit_code


def _drive(console: Console) -> Verdict:
    number = int(os.environ[environment.ATTEMPT])
    path = os.environ.get(environment.RUN_DOCUMENT, environment.RUN_DOCUMENT_PATH)
    try:
        run = RunDocument.from_text(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        return _failed(Cause.CONFIG_INVALID, f"the driver cannot read run.json: {error}")
    submission = submission_for(
        os.environ[environment.RAY_JOB_ID],
        number,
        os.environ.get(environment.STOP_GRACE_SECONDS, ""),
        {"namespace": run.run.namespace, "run": run.run.name, "uid": run.run.uid, "attempt": str(number)},
    )
    ray = RayJobs(HttpClient(os.environ[environment.RAY_ADDRESS], os.environ.get(environment.RAY_TOKEN, "")))
    sidecar = Sidecar(HttpClient(os.environ[environment.SIDECAR_ADDRESS]))
    follower = Follower(Attempt(number, run.digest, submission), ray, sidecar, console, _timing())
    try:
        follower.attach()
    except SubmissionRefusedError as error:
        return _failed(Cause.ENGINE_ERROR, f"Ray refuses the job: {error}")
    return judge(follower.follow())


def _timing() -> Timing:
    stall = os.environ.get(environment.STALL_SECONDS)
    return Timing(stall=float(stall) if stall else None)


def _failed(cause: Cause, message: str) -> Verdict:
    return Verdict(EXIT_FAILED, TerminationMessage(outcome=FAILED, cause=cause.value, message=message))


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminatedError


class _TerminatedError(BaseException):
    """The pod is being evicted or deleted. Whatever is caught on the way out, this is not."""


if __name__ == "__main__":
    sys.exit(main())
