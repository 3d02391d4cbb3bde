"""Follow one Ray job from its submission to its end, and gather the evidence for the verdict.

`__main__` calls `attach` and then `follow`. One thread and one loop: print the log, look for the result, ask
Ray. It never stops the job, whatever it finds: when the driver's pod is lost, the next one attaches to the same
job, and what a lost or stalled attempt still runs goes with its cluster, which the operator deletes.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuning_contract import environment
from tuning_contract.progress import Progress
from tuning_contract.result import STOPPED, RunResult
from tuning_driver.console import Console
from tuning_driver.http_client import UnreachableError
from tuning_driver.ray_jobs import JobState, RayJobs, Submission, SubmissionRefusedError
from tuning_driver.sidecar import Sidecar, VolumeUnreadableError
from tuning_driver.stall import StallWatch
from tuning_driver.verdict import Evidence, belongs

CHUNKS_PER_PASS = 64
"""Log chunks between two looks at the job, so that a chatty runner cannot hide its own end."""
RAY_LOG_CHARACTERS = 64 * 1024
RAY_STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Seconds that Ray gives a job between SIGTERM and SIGKILL, 3 by default. The name is Ray's."""


class ClusterSilentError(Exception):
    """The head pod does not answer. That is no verdict: the next driver pod may have more luck.

    Whether the head is lost is for the operator to say, which sees its pod.
    """


@dataclass(frozen=True)
class Timing:
    """Periods and patience in seconds."""

    poll: float = 1.0
    """Between two looks at log and result."""
    job: float = 2.0
    """Between two looks at Ray's job status."""
    progress: float = 10.0
    """Between two looks at the progress: whether the training stands still, and the figures without a result."""
    end_poll: float = 0.25
    """Between two looks when the end is near."""
    retry: float = 0.5
    """Before the first repetition at the start; the pause doubles up to ten times that."""
    start: float = 120.0
    """For Ray to answer and to take the job."""
    head: float = 60.0
    """For Ray to answer again, while the sidecar beside it is silent, too."""
    job_end: float = 2.0
    """For the job to end after its result was seen."""
    result: float = 60.0
    """For the sidecar to say whether there is a result, after the job has ended: it may be restarting."""
    stall: float | None = None
    """For the next step; None: learned from the run (`stall`)."""


@dataclass(frozen=True)
class Attempt:
    """Whose job it is."""

    number: int
    run_digest: str
    submission: Submission


def submission_for(job_id: str, attempt: int, stop_grace: str, metadata: Mapping[str, str]) -> Submission:
    """The Ray job of an attempt; `stop_grace` is how many seconds it may take to save when it is stopped, or empty."""
    variables = {environment.ATTEMPT: str(attempt)}
    if stop_grace:
        variables |= {environment.STOP_GRACE_SECONDS: stop_grace, RAY_STOP_WAIT: stop_grace}
    return Submission(job_id, "python -m tuning_runner", variables, metadata)


class Follower:
    """One attempt, seen from its Job."""

    def __init__(self, attempt: Attempt, ray: RayJobs, sidecar: Sidecar, console: Console, timing: Timing) -> None:
        self._attempt, self._ray, self._sidecar, self._console, self._timing = attempt, ray, sidecar, console, timing
        self._offset = 0
        self._progress: Progress | None = None
        self._progress_due = 0.0
        self._stall = StallWatch(timing.stall)

    def attach(self) -> None:
        """Find the job or submit it.

        Raises:
            ClusterSilentError: Ray did not answer within `Timing.start`.
            SubmissionRefusedError: Ray answered all that time and took nothing.
        """
        job_id = self._attempt.submission.id
        deadline = time.monotonic() + self._timing.start
        pause, said = self._timing.retry, ""
        while True:
            try:
                if self._ray.state(job_id) is not None:
                    self._console.say(f"attached to Ray job {job_id}")
                    return
                created = self._ray.submit(self._attempt.submission)
                self._console.say(f"{'submitted' if created else 'attached to'} Ray job {job_id}")
                return
            except (UnreachableError, SubmissionRefusedError) as error:
                if time.monotonic() + pause > deadline:
                    if isinstance(error, SubmissionRefusedError):
                        raise
                    raise ClusterSilentError(str(error)) from error
                if str(error) != said:
                    said = str(error)
                    self._console.say(f"waiting for Ray: {said}")
            time.sleep(pause)
            pause = min(pause * 2, self._timing.retry * 10)

    def follow(self) -> Evidence:
        """Print the log until the attempt has ended one way or another.

        Raises:
            ClusterSilentError: neither Ray nor the sidecar answers any more.
        """
        watch = _JobWatch(self._ray, self._attempt.submission.id, self._console, self._timing)
        while True:
            self._print_log()
            if (result := self._result()) is not None:
                return self._after_result(result, watch)
            watch.look()
            if watch.loss:
                return self._after_loss(watch)
            if watch.state is not None and watch.state.terminal:
                return self._after_job(watch)
            self._raise_if_silent(watch)
            self._copy_progress()
            if self._stall.words:
                return self._after_stall(watch)
            time.sleep(self._timing.poll)

    def _after_result(self, result: RunResult, watch: "_JobWatch") -> Evidence:
        """The runner has spoken: its process gets a moment to end, for the last lines and Ray's word."""
        deadline = time.monotonic() + self._timing.job_end
        while True:
            watch.look(now=True)
            if watch.loss or (watch.state is not None and watch.state.terminal):
                break
            # A failure that a dying head left behind is not the runner's own, so Ray's silence is waited out; if
            # the sidecar still answers after it, the head lives. A complete result needs no more proof, and a
            # runner that has saved on request was asked because the head goes.
            proven = result.complete or result.outcome == STOPPED
            if time.monotonic() > deadline and (proven or not watch.silent_seconds):
                break
            if watch.silent_seconds >= self._timing.head:
                self._raise_if_silent(watch)
                break
            self._print_log()
            time.sleep(self._timing.end_poll)
        return replace(self._evidence(watch), result=result)

    def _after_job(self, watch: "_JobWatch") -> Evidence:
        """Ray has spoken: the result was written before the process ended, if at all."""
        deadline = time.monotonic() + self._timing.result
        while True:
            try:
                result, problem = self._read_result(), ""
                break
            except VolumeUnreadableError as error:
                # The sidecar answers, so the next driver pod would learn no more: Ray's word has to do.
                if time.monotonic() > deadline:
                    result, problem = None, str(error)
                    break
            except UnreachableError as error:
                if time.monotonic() > deadline:
                    message = f"the job has ended, and the sidecar does not say whether there is a result: {error}"
                    raise ClusterSilentError(message) from error
            time.sleep(self._timing.end_poll)
        return replace(self._evidence(watch), result=result, volume_problem=problem)

    def _after_stall(self, watch: "_JobWatch") -> Evidence:
        """A result that came in this very moment, or a lost head, still says more."""
        watch.look(now=True)
        if watch.loss:
            return self._after_loss(watch)
        words = self._stall.words
        self._console.say(words)
        return replace(self._evidence(watch), stall=words, result=self._result())

    def _after_loss(self, watch: "_JobWatch") -> Evidence:
        self._console.say(watch.loss)
        return replace(self._evidence(watch), result=self._result())

    def _raise_if_silent(self, watch: "_JobWatch") -> None:
        """Ray's dashboard may die while the training goes on: only a head that is silent as a whole counts."""
        if watch.silent_seconds >= self._timing.head and self._sidecar.progress() is None:
            message = f"neither Ray nor the sidecar has answered for {watch.silent_seconds:.0f} s: {watch.silence}"
            raise ClusterSilentError(message)

    def _evidence(self, watch: "_JobWatch") -> Evidence:
        self._progress_due = 0.0
        self._copy_progress()
        self._print_log()
        self._console.finish()
        if not self._console.raw_bytes and not watch.loss:
            self._print_ray_log()
        return Evidence(
            attempt=self._attempt.number,
            run_digest=self._attempt.run_digest,
            head_loss=watch.loss,
            job=watch.state,
            progress=self._progress,
        )

    def _result(self) -> RunResult | None:
        try:
            return self._read_result()
        except UnreachableError:
            return None

    def _read_result(self) -> RunResult | None:
        result = self._sidecar.result()
        if result is not None and belongs(result, self._attempt.run_digest, self._attempt.number):
            return result
        return None

    def _copy_progress(self) -> None:
        if time.monotonic() < self._progress_due:
            return
        self._progress_due = time.monotonic() + self._timing.progress
        if (progress := self._sidecar.progress()) is not None:
            self._progress = progress
            self._stall.look(progress)

    def _print_log(self) -> None:
        for _ in range(CHUNKS_PER_PASS):
            try:
                data, self._offset = self._sidecar.log(self._offset)
            except UnreachableError:
                return
            if not data:
                return
            self._console.raw(data)

    def _print_ray_log(self) -> None:
        """The runner never opened its log, so what Ray caught is all there is."""
        try:
            text = self._ray.logs(self._attempt.submission.id)
        except UnreachableError as error:
            self._console.say(f"no log of the runner, and Ray's cannot be read: {error}")
            return
        if text:
            self._console.say("the runner wrote no log of its own; this is Ray's:")
            self._console.raw(text[-RAY_LOG_CHARACTERS:].encode(errors="replace"))
            self._console.finish()


class _JobWatch:
    """Ray's word on the job, and how long Ray has been silent."""

    def __init__(self, ray: RayJobs, job_id: str, console: Console, timing: Timing) -> None:
        self._ray, self._job_id, self._console, self._timing = ray, job_id, console, timing
        self._due = 0.0
        self._silent_since: float | None = None
        self._unknown = 0
        self.state: JobState | None = None
        self.loss = ""
        self.silence = ""
        """What the last look met instead of an answer."""

    @property
    def silent_seconds(self) -> float:
        """For how long Ray has not answered; 0 while it does."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    def look(self, now: bool = False) -> None:
        """Ask Ray when it is time (or `now`); sets `state`, and `loss` when the head was replaced."""
        if not now and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._timing.job
        try:
            state = self._ray.state(self._job_id)
        except UnreachableError as error:
            self._silence(str(error))
            return
        if self._silent_since is not None:
            self._console.say("Ray answers again")
            self._silent_since = None
        if state is None:
            # Twice, since a dashboard that has just restarted may not have read its jobs yet.
            self._unknown += 1
            if self._unknown > 1:
                self.loss = f"the head was replaced: Ray no longer knows job {self._job_id}"
            return
        self._unknown = 0
        if self.state is None or state.status != self.state.status:
            self._console.say(f"Ray job is {state.status}")
        self.state = state

    def _silence(self, why: str) -> None:
        self.silence = why
        if self._silent_since is None:
            self._silent_since = time.monotonic()
            self._console.say(f"Ray does not answer: {why}")
