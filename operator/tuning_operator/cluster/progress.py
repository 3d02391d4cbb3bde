"""Polls the sidecars of runs that train, for the status only. Run by `handlers` as one task.

Bounded in number and time, with jitter; a sidecar that does not answer makes the metrics Unknown and nothing else.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import datetime

from tuning_operator.api.conditions import Phase
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.observe import Caches
from tuning_operator.cluster.projections import RunView
from tuning_operator.cluster.queue import Lane, WorkQueue
from tuning_operator.cluster.sidecar import SidecarClient, Unreachable
from tuning_operator.engine.world import Reachability

INTERVAL = 15.0
TICK = 1.0
_POLLED = (Phase.RUNNING, Phase.SUSPENDING)
_SILENT = 2
"""Polls without an answer after which the metrics count as not available."""


class ProgressPoller:
    """Asks each running run's sidecar every fifteen seconds."""

    def __init__(
        self, caches: Caches, memory: Memory, queue: WorkQueue, sidecars: SidecarClient, clock: Callable[[], datetime]
    ) -> None:
        """Read `caches`, write `memory`, wake `queue` on news."""
        self._caches = caches
        self._memory = memory
        self._queue = queue
        self._sidecars = sidecars
        self._clock = clock
        self._next: dict[str, float] = {}
        self._misses: dict[str, int] = {}

    async def run(self) -> None:
        """Poll for ever."""
        tasks: set[asyncio.Task[None]] = set()
        while True:
            for view in self._due():
                task = asyncio.create_task(self._poll(view))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(TICK)

    def _due(self) -> list[RunView]:
        now = asyncio.get_running_loop().time()
        running = {view.uid: view for view in self._caches.runs.views() if view.phase in _POLLED}
        for known in [uid for uid in self._next if uid not in running]:
            del self._next[known]
            self._misses.pop(known, None)
        due = [view for uid, view in running.items() if now >= self._next.setdefault(uid, now + 2 * random.random())]  # noqa: S311
        for view in due:
            self._next[view.uid] = now + INTERVAL * random.uniform(0.9, 1.1)  # noqa: S311 - no secret
        return due

    async def _poll(self, view: RunView) -> None:
        address = self._caches.head_address(view)
        memory = self._memory.of(view.uid, self._clock())
        attempt, before = memory.attempt, (memory.progress, memory.metrics)
        try:
            progress = await self._sidecars.progress(address)
        except Unreachable:
            progress = None
        if memory.attempt != attempt:
            # Another attempt has begun meanwhile: this was the word of the one before.
            return
        if progress is not None:
            memory.progress, memory.metrics = progress, Reachability.ANSWERED
            self._misses[view.uid] = 0
        else:
            self._misses[view.uid] = self._misses.get(view.uid, 0) + 1
            if self._misses[view.uid] >= _SILENT:
                memory.metrics = Reachability.UNREACHABLE
        if (memory.progress, memory.metrics) != before:
            self._queue.add(view.uid, Lane.STATUS)
