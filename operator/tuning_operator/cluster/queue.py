"""The queue of keys that need a look: keyed, de-duplicating, in lanes, with back-off and deadlines.

Informers and the reconciler add keys, workers take them. A key is never worked on twice at the same time; whatever is
added meanwhile makes it come again. What a key stands for is not known here. Everything runs in one event loop.
"""

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from enum import IntEnum

FIRST_DELAY = 0.1
LONGEST_DELAY = 60.0


class Lane(IntEnum):
    """What the next write of a key is; under load the server's time goes to the first lanes first."""

    CLUSTER = 0
    """Also every key that was not looked at yet."""
    SUPPORT = 1
    JOB = 2
    STATUS = 3
    CLEANUP = 4


class WorkQueue:
    """Keys that wait, lanes in order and first come, first served in a lane."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """Make an empty queue.

        Args:
            clock: Monotonic seconds; the event loop's own by default.
        """
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._lanes: tuple[deque[str], ...] = tuple(deque() for _ in Lane)
        self._waiting: dict[str, Lane] = {}
        self._active: set[str] = set()
        self._again: dict[str, Lane] = {}
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._getters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """Keys that wait to be taken now."""
        return len(self._waiting)

    @property
    def deadlines(self) -> int:
        """Keys that come again at a later time."""
        return len(self._due)

    def add(self, key: str, lane: Lane = Lane.CLUSTER) -> None:
        """Let the key come as soon as possible; while it is worked on, right after that."""
        if key in self._active:
            self._again[key] = min(lane, self._again.get(key, lane))
            return
        known = self._waiting.get(key)
        if known is not None and known <= lane:
            return
        # An entry in a slower lane stays behind and is skipped when its turn comes.
        self._waiting[key] = lane
        self._lanes[lane].append(key)
        self._wake_one()

    def set_deadline(self, key: str, delay: float | None) -> None:
        """Let the key come again after `delay` seconds; replaces its earlier deadline. None: no deadline."""
        if delay is None:
            self._due.pop(key, None)
            return
        due = self._clock() + max(0.0, delay)
        self._due[key] = due
        heapq.heappush(self._deadlines, (due, key))
        self._set_timer()

    def failed(self, key: str, at_least: float = 0.0) -> float:
        """Let the key come again later, after ever longer delays; returns the delay in seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay: float = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(count, 20))
        # Jitter only lengthens: many keys that failed together shall not come back together.
        delay = max(delay, at_least) * random.uniform(1.0, 1.25)  # noqa: S311 - no secret
        self.set_deadline(key, delay)
        return delay

    def succeeded(self, key: str) -> None:
        """Forget the key's failures."""
        self._failures.pop(key, None)

    def forget(self, key: str) -> None:
        """Forget all about a key that will not come again."""
        self.succeeded(key)
        self._due.pop(key, None)

    def is_first(self, lane: Lane) -> bool:
        """Whether no key waits in a faster lane, so that work of this lane may be done at once."""
        return not any(self._head(faster) for faster in Lane if faster < lane)

    async def get(self) -> tuple[str, Lane]:
        """Wait for a key and take it; `done` must follow."""
        while (found := self._take()) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._getters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # A wake-up that came too late for us belongs to the next in line.
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
        return found

    def done(self, key: str) -> None:
        """Give the key back; it waits again if it was added meanwhile."""
        self._active.discard(key)
        lane = self._again.pop(key, None)
        if lane is not None:
            self.add(key, lane)

    def _head(self, lane: Lane) -> tuple[str, ...]:
        """The first key of a lane that really waits there, if any."""
        entries = self._lanes[lane]
        while entries and self._waiting.get(entries[0]) != lane:
            entries.popleft()
        return (entries[0],) if entries else ()

    def _take(self) -> tuple[str, Lane] | None:
        for lane in Lane:
            for key in self._head(lane):
                self._lanes[lane].popleft()
                del self._waiting[key]
                self._active.add(key)
                return key, lane
        return None

    def _wake_one(self) -> None:
        while self._getters:
            waiter = self._getters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._deadlines and self._due.get(self._deadlines[0][1]) != self._deadlines[0][0]:
            heapq.heappop(self._deadlines)
        if self._deadlines:
            delay = max(0.0, self._deadlines[0][0] - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            due, key = heapq.heappop(self._deadlines)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._timer = None
        self._set_timer()
