"""The real operator on a simulated API server, in simulated time: it can be let work, left alone, and killed.

Everything between the client and the engine is the real thing, with the wiring of `tuning_operator.__main__`. Only
the sockets are not: to the API server, to the sidecars, and the clock.
"""

import asyncio
import logging
import selectors
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

from tests.unit.cluster.caches import SomeKubeRay
from tests.unit.engine.simulated_api import SimulatedApi
from tests.unit.engine.simulated_cluster import SimulatedCluster
from tuning_contract.progress import Progress
from tuning_contract.result import RunResult
from tuning_operator.__main__ import _caches
from tuning_operator.cluster.announcer import Announcer
from tuning_operator.cluster.execute import Executor, Hands
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.observe import Observer
from tuning_operator.cluster.progress import _POLLED, ProgressPoller
from tuning_operator.cluster.queue import WorkQueue
from tuning_operator.cluster.sidecar import SidecarClient, Unreachable
from tuning_operator.engine.world import StopAnswer
from tuning_operator.reconcile import Reconciler
from tuning_operator.settings import Settings

BEGINNING = datetime.fromisoformat("2026-01-02T12:00:00+00:00")
MOMENT = 0.001
"""Seconds in which the operator does all that it has to do now."""
_BUSY = 20_000
"""Turns of the loop at one moment of which none has so many that comes to an end."""
_PASSES = 100
"""Looks at a run, beside one a second, of which none needs so many."""
_CLIENTS_LIMIT = 5.0
"""Seconds after which the sidecars' client gives up."""


class SimulatedTime(asyncio.SelectorEventLoop):
    """An event loop that never waits: when nothing is to be done, its clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__(_Jump(self))
        self.seconds = 0.0

    def time(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        """The time of the simulated world."""
        return BEGINNING + timedelta(seconds=self.seconds)


class _Jump(selectors.SelectSelector):
    def __init__(self, loop: SimulatedTime) -> None:
        super().__init__()
        self._loop, self._turns = loop, 0

    def select(self, timeout: float | None = None) -> Any:
        self._turns += 1
        if timeout is None or timeout > 0:
            if timeout is None:
                raise AssertionError("nothing will ever happen again")
            self._loop.seconds += timeout
            self._turns = 0
        if self._turns > _BUSY:
            raise AssertionError("the operator is busy without end")
        return super().select(0)


class SimulatedSidecars(SidecarClient):
    """The sidecars of a simulated cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    async def progress(self, address: str) -> Progress:
        found = self._cluster.sidecar(address)
        if found is None:
            await asyncio.sleep(_CLIENTS_LIMIT)
            raise Unreachable("no answer")
        return found.progress()

    async def result(self, address: str) -> RunResult | None:
        found = self._cluster.sidecar(address)
        if found is None:
            await asyncio.sleep(_CLIENTS_LIMIT)
            raise Unreachable("no answer")
        return found.result()

    async def stop(self, address: str, token: str) -> StopAnswer:
        found = self._cluster.sidecar(address)
        if found is None:
            await asyncio.sleep(_CLIENTS_LIMIT)
            raise Unreachable("no answer")
        return found.stop(token)


class SimulatedOperator:
    """One installation of the operator, over all of its restarts."""

    def __init__(self, loop: SimulatedTime, api: SimulatedApi, cluster: SimulatedCluster, settings: Settings) -> None:
        self._loop, self._api, self._cluster, self.settings = loop, api, cluster, settings
        self._tasks: list[asyncio.Task[None]] = []
        self.bugs = _Bugs()
        for name in ("tuning_operator.reconcile", "tuning_operator.cluster.informer"):
            logging.getLogger(name).addHandler(self.bugs)

    def start(self) -> None:
        """Begin as a new process: knowing nothing, with copies that are listed anew."""
        self._run(self._start())

    def kill(self) -> None:
        """End at once: a write that waits is lost."""
        self._run(self._kill())

    def close(self) -> None:
        """End for good."""
        self.kill()
        for name in ("tuning_operator.reconcile", "tuning_operator.cluster.informer"):
            logging.getLogger(name).removeHandler(self.bugs)

    def work(self, seconds: float = MOMENT) -> None:
        """Let time pass, and the operator do what it does meanwhile."""
        self._api.writes = self.bugs.passes = 0
        self.bugs.most = _PASSES + round(seconds)
        self._run(asyncio.sleep(seconds))

    def poll(self) -> None:
        """Ask the sidecars now. Their own clock ticks each second, which would take long over days."""
        self._run(self._poll())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(work)

    async def _start(self) -> None:
        loop, api, settings = self._loop, self._api, self.settings
        self._queue, memory = WorkQueue(), Memory()
        self._views = caches = _caches(api, self._queue, memory, "")
        sidecars, announcer = SimulatedSidecars(self._cluster), Announcer(api, "simulated")
        executor = Executor(Hands(api, caches, memory, sidecars, announcer, loop.now), settings)
        observer = Observer(caches, memory, SomeKubeRay(), settings)  # type: ignore[arg-type]
        reconciler = Reconciler(self._queue, observer, executor, memory, self.bugs, settings, loop.now)
        self._poller = ProgressPoller(caches, memory, self._queue, sidecars, loop.now)
        self._tasks = [loop.create_task(informer.run()) for informer in caches.all()]
        for informer in caches.all():
            await informer.synced.wait()
        self._tasks += [loop.create_task(announcer.run()), loop.create_task(reconciler.work())]

    async def _kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _poll(self) -> None:
        for view in list(self._views.runs.views()):
            if view.phase in _POLLED:
                await self._poller._poll(view)


class _Bugs(logging.Handler):
    """What the operator says of its own mistakes."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self.passes, self.most = 0, _PASSES
        """Looks at the run, and how many of them are too many."""

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def passed(self, outcome: str, seconds: float) -> None:
        """Notice an operator that finds no rest; `BaseException`, since it would go on after any other."""
        self.passes += 1
        if self.passes > self.most:
            self.found.append("the operator looks at the run again and again")
            raise _Restless


class _Restless(BaseException):
    """Ends the operator's loop."""
