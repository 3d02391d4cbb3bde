"""The parent of the training process: it passes on every wish to stop, and has the last word when the child is killed.

Called by `__main__`. Only the process that the kernel's memory killer picks dies where cgroups are of version 1, so
this one lives to tell it. Child and parent share the process group, as Ray's stop of a job expects. It never imports a
training library. Not here: training and its own ends (`attempt`).
"""

import contextlib
import ctypes
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuning_contract.causes import Cause
from tuning_contract.checkpoint import complete_checkpoints
from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import TRAINER
from tuning_contract.result import FAILED, STOPPED, SUCCEEDED
from tuning_contract.run_document import RunDocument
from tuning_contract.termination import EXIT_DRIVER_ERROR, EXIT_FAILED, EXIT_STOPPED, EXIT_SUCCEEDED
from tuning_runner.checkpoints import Fence, SupersededError
from tuning_runner.console import Tee, say
from tuning_runner.metrics_writer import written_records
from tuning_runner.outcome import Ending, Failure, finished_result, out_of_memory, write_result, written_result
from tuning_runner.reserve import release_reserve
from tuning_runner.resources import Memory

_POLL_SECONDS = 0.2
_DYING_SECONDS = 5.0
"""From the kernel's decision to kill a process until it is gone, at most."""
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGTERM, signal.SIGCHLD)
_CODES = {SUCCEEDED: EXIT_SUCCEEDED, FAILED: EXIT_FAILED, STOPPED: EXIT_STOPPED}
_TRAINING = (sys.executable, "-m", "tuning_runner.training")


@dataclass(frozen=True)
class _End:
    """How the child ended."""

    code: int
    """As subprocess has it: negative for a signal."""
    stop_asked: bool
    lacked_memory: bool
    """The kernel's memory killer has struck in the child's last moments."""


class Supervision:
    """One attempt's parent process.

    Args:
        text: run.json.
        attempt: number of the attempt, from 1.
        directory: of the run.
        command: the child.
        memory: of the container.
    """

    def __init__(
        self,
        text: str,
        attempt: int,
        directory: RunDirectory,
        command: Sequence[str] = _TRAINING,
        memory: Memory | None = None,
    ) -> None:
        self._text = text
        self._attempt = attempt
        self._directory = directory
        self._command = command
        self._memory = memory or Memory.of_this_process()

    def execute(self) -> int:
        """Start the child, wait for its end, and leave a result and `stopped`; the exit code is the child's verdict."""
        # Taken by `sigtimedwait`; the child inherits the mask, and so loses no wish to stop before it listens.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with self._log():
            try:
                end = self._watch()
                return self._conclude(end)
            finally:
                self._sign_off()

    @contextlib.contextmanager
    def _log(self) -> Iterator[None]:
        try:
            tee = Tee(self._directory.runner_log(self._attempt))
            tee.__enter__()
        except OSError as error:
            say(f"warning: there is no log on the volume: {error}")
            yield
            return
        try:
            yield
        finally:
            tee.__exit__(None, None, None)

    def _watch(self) -> _End:
        asked, passed_on = False, False
        # Looks of the last seconds, so that the death of an episode's worker long ago is not taken for the trainer's,
        # and that of a process whose memory takes its time to be freed is.
        kills = deque([self._memory.kills()], maxlen=round(_DYING_SECONDS / _POLL_SECONDS))
        child = subprocess.Popen(self._command)
        while (code := child.poll()) is None:
            asked = asked or self._is_asked()
            if asked and not passed_on:
                say("a stop was asked for")
                child.send_signal(signal.SIGTERM)
                passed_on = True
            found = signal.sigtimedwait(_SIGNALS, _POLL_SECONDS)
            asked = asked or (found is not None and found.si_signo == signal.SIGTERM)
            kills.append(self._memory.kills())
        lacked = code == -signal.SIGKILL and self._memory.kills() > kills[0]
        return _End(code, asked or code == -signal.SIGTERM, lacked)

    def _is_asked(self) -> bool:
        try:
            return self._directory.stop_request(self._attempt).exists()
        except OSError:
            return False  # a volume with a fault is the child's to tell

    def _conclude(self, end: _End) -> int:
        """Exit code; writes the result that the child owes."""
        if end.code in (EXIT_SUCCEEDED, EXIT_FAILED, EXIT_DRIVER_ERROR):
            return end.code
        try:
            run = RunDocument.from_text(self._text)
        except ValueError as error:
            say(f"no result can be written: {error}")
            return EXIT_DRIVER_ERROR
        written = written_result(self._directory)
        if written is not None and written.attempt == self._attempt:
            return _CODES.get(written.outcome, EXIT_FAILED)
        if finished_result(self._directory, run) is not None:
            return EXIT_SUCCEEDED
        failure = None
        if end.code != EXIT_STOPPED and not (end.stop_asked and end.code == -signal.SIGTERM):
            failure = self._failure(end)
            say(f"failed: {failure.cause.value}: {failure.message}")
        try:
            self._write(run, failure)
        except SupersededError as error:
            say(f"no result is written: {error}")
        except OSError as error:
            say(f"the result cannot be written: {error}")
        return EXIT_FAILED if failure else EXIT_STOPPED

    def _failure(self, end: _End) -> Failure:
        if end.lacked_memory:
            return out_of_memory(f"the kernel killed the training process{self._memory.limit_in_words()}")
        if end.code < 0:
            name = signal.Signals(-end.code).name
            message = f"the training process was killed by signal {name}: see the end of its log for where"
            return Failure(Cause.ENGINE_ERROR, message)
        return Failure(Cause.ENGINE_ERROR, f"the training process ended with exit code {end.code}: see its log for why")

    def _write(self, run: RunDocument, failure: Failure | None) -> None:
        Fence(self._directory, self._attempt).raise_if_superseded()
        release_reserve(self._directory)
        records = written_records(self._directory)
        mine = [record.step for record in records if record.role == TRAINER and record.attempt == self._attempt]
        complete = complete_checkpoints(self._directory.checkpoints)
        saved = complete[-1][1].step if complete else 0
        ending = Ending(
            step=max([saved, *mine]) if failure else saved,
            target_steps=records[-1].target_steps if records else 0,
            failure=failure,
            stopped=failure is None,
        )
        write_result(self._directory, run, self._attempt, ending)

    def _sign_off(self) -> None:
        """Say that nothing more of this attempt will be written."""
        try:
            self._directory.stopped(self._attempt).touch()
        except OSError as error:
            say(f"the end of the attempt cannot be marked: {error}")


def die_with_parent() -> None:
    """Called by the child: without its parent nobody would tell how it ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
