"""Ending an attempt in good order when it is asked to stop.

`training` makes one `Stop`; `attempt` and engines hold it. The request (SIGTERM, from `supervision` or from Ray) ends
whatever the main thread waits for by `StopError`, but never between the accumulation of a gradient and the record of
its step, and never in the middle of a save. Not here: what is saved (engines), what is written at the end (`attempt`).
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from tuning_contract.termination import EXIT_STOPPED
from tuning_runner.episodes.record import EpisodeRecord

_UNWINDING_SECONDS = 1.5
"""After a request, until a process that has nothing to save ends in the middle of what it does."""
_AGAIN_SECONDS = 4.0
"""After a request, until a main thread that has not begun to end is interrupted once more."""
_POLL_SECONDS = 0.1


class StopError(BaseException):
    """The attempt was asked to stop. Not an Exception: no library may take it for a failure that it can get over.

    Attributes:
        records: episodes of the step in hand, for the journal.
    """

    def __init__(self, records: tuple[EpisodeRecord, ...] = ()) -> None:
        super().__init__("the attempt was asked to stop")
        self.records = records


class Stop:
    """Whether the attempt was asked to stop, and whether it may end where it stands."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._raised = False
        self._ending = False
        self._deferred = 0
        self.unsaved = False
        """Whether a step is finished that no checkpoint holds. Kept by the engine."""

    def listen(self) -> None:
        """Take SIGTERM for the request from here on; in the main thread. One that has come before counts, too."""
        signal.signal(signal.SIGTERM, self._on_signal)
        threading.Thread(target=self._leave, name="stop", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})  # blocked by the parent

    def request(self) -> None:
        """Stop at the next `raise_if_requested`."""
        self._requested.set()

    def raise_if_requested(self) -> None:
        """StopError when the attempt was asked to stop and does not end already."""
        if self._requested.is_set() and not self._ending:
            self._raised = True
            raise StopError

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """What happens inside is finished first; StopError comes at the end of it."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        self.raise_if_requested()

    def begin_ending(self) -> None:
        """From here on the attempt ends by itself, whatever is asked."""
        self._ending = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._requested.set()
        # Once only: what is left on the way out must not be cut off by a second signal.
        if not (self._raised or self._ending or self._deferred):
            self._raised = True
            raise StopError

    def _leave(self) -> None:
        """End the process when the main thread is held up, by a download's threads, say, and nothing would be lost.

        Where something would be, the main thread has to end by itself. What a signal's handler raises within a
        finalizer is lost, so it is raised again.
        """
        self._requested.wait()
        time.sleep(_UNWINDING_SECONDS)
        again = time.monotonic() + _AGAIN_SECONDS - _UNWINDING_SECONDS
        while not self._ending:
            if not (self._deferred or self.unsaved):
                os._exit(EXIT_STOPPED)
            if time.monotonic() >= again:
                again = time.monotonic() + _AGAIN_SECONDS
                self._raised = False
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            time.sleep(_POLL_SECONDS)
