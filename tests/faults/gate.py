"""Holds writes of chosen runs at chosen points, so that the operator can be killed exactly there.

`proxy` passes every write through it twice. What it holds never goes on: a write that is held before it was forwarded
never reaches the server, one that is held afterwards never gets its reply. Many runs can be held at a time, and one
SIGKILL then hits each of them between two of its writes.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from tests.faults.requests import Request

Run = tuple[str, str]
"""Namespace and name."""


class Moment(StrEnum):
    """When a write is held."""

    BEFORE = "before"
    """The server never sees it."""
    AFTER = "after"
    """The server has done it, the operator never hears of that; a write that was refused is not held."""


class Gate:
    """Counts the writes of each run as they come, from 0; safe to use from another thread than the proxy's."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._lock = threading.Lock()
        self._points: dict[Run, Mapping[int, Moment]] = {}
        self._seen: Counter[Run] = Counter()
        self._held: dict[Run, Request] = {}

    def hold(self, run: Run, points: Mapping[int, Moment]) -> None:
        """Hold these writes of a run, counted with those that come again after a kill."""
        with self._lock:
            self._points[run] = points

    @property
    def held(self) -> dict[Run, Request]:
        """The runs of which a write is held now, and that write."""
        with self._lock:
            return dict(self._held)

    def forget_held(self) -> None:
        """The operator that sent what is held is dead."""
        with self._lock:
            self._held.clear()

    def arrives(self, request: Request) -> int:
        """Count a write; returns its number among those of its run."""
        run = (request.namespace, request.run)
        with self._lock:
            number = self._seen[run]
            self._seen[run] += 1
        return number

    async def passes(self, request: Request, number: int, moment: Moment) -> None:
        """Return at once, or never if this is where the write is held; ended by the cancellation of the caller."""
        run = (request.namespace, request.run)
        with self._lock:
            held = self._points.get(run, {}).get(number) is moment
            if held:
                self._held[run] = request
        if held:
            await asyncio.get_running_loop().create_future()
