"""The pool of episode workers on the worker nodes of the run's Ray cluster; implements `episodes.pool.Pool`.

`EpisodeHost` makes it for a run with episode nodes, inside `ray_cluster.joined`. Each node hosts the same worker
processes as a machine that trains alone, so user code is confined in the same way. A node that is lost ends its
episodes as Lost, to be tried again on another one, and is taken up again when it is back. Not here: Ray itself
(`ray_nodes`).
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from tuning_contract.causes import Cause
from tuning_runner.episodes.errors import EntrypointError, RunError, UserCodeError
from tuning_runner.episodes.pool import WorkerDied
from tuning_runner.episodes.workers import WorkerSettings
from tuning_runner.ray_nodes import NodeInfo, NodeLostError, RayNode, alive_worker_nodes

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How the pool waits, in seconds."""

    poll: float = 3.0
    """Between two looks at Ray's nodes."""
    again: float = 10.0
    """Until a node is tried again on which the workers could not be started."""
    without_nodes: float = 120.0
    """Without any node, until the run fails."""


class NodeLease:
    """A `pool.Lease` on a worker of one node."""

    def __init__(self, pool: "RayWorkerPool", node: RayNode, number: int) -> None:
        self._pool = pool
        self._node = node
        self._number = number
        self._asked = False

    async def workflow(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Run the workflow."""
        return await self._ask("workflow", order, seconds)

    async def judge(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Run the judge on `order.response`, or on what this lease's workflow returned."""
        return await self._ask("judge", order, seconds)

    async def _ask(self, kind: str, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        self._asked = True
        try:
            return await self._node.order(self._number, kind, order, seconds)
        except NodeLostError as error:
            self._pool.lose(self._node, str(error))
            raise WorkerDied(f"the node {self._node.info.address} was lost: {error}") from None

    def end(self) -> None:
        """Give the worker back."""
        if self._asked:
            self._node.end(self._number)

    async def give_up(self) -> None:
        """Kill the worker."""
        if self._asked:
            await self._node.give_up(self._number)


class RayWorkerPool:
    """A `pool.Pool` over all worker nodes.

    Args:
        settings: `size` bounds the episodes of all nodes together.
        say: gets a line for each change of the nodes.
        patience: how long it waits.
    """

    def __init__(self, settings: WorkerSettings, say: Callable[[str], None], patience: Patience = Patience()) -> None:
        self._settings = settings
        self._say = say
        self._patience = patience
        self._free = asyncio.Semaphore(settings.size)
        self._numbers = itertools.count()
        self._known: dict[str, RayNode] = {}
        """Nodes with an actor, loaded or not."""
        self._ready: dict[str, RayNode] = {}
        self._not_before: dict[str, float] = {}
        """When a node on which the workers could not be started is tried again, on the monotonic clock."""
        self._change = asyncio.Event()
        """Set while there is a node, or none to be waited for."""
        self._since = 0.0
        """When the last node was lost, on the monotonic clock."""
        self._failure: RunError | None = None
        """Ends the run at once."""
        self._last_problem: RunError | None = None
        self._digest: tuple[str, str] | None = None
        """The judge's, and the address of the node that told it first."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def has_judge(self) -> bool:
        """Whether the run has a judge."""
        return self._settings.workflow.judge is not None

    @property
    def judge_digest(self) -> str:
        """Identity of the judge's code, the same on all nodes."""
        return self._digest[0] if self._digest else ""

    @property
    def addresses(self) -> list[str]:
        """Of the nodes that take episodes."""
        return sorted(node.info.address for node in self._ready.values())

    async def start(self) -> None:
        """Load the user's code on every node that is there.

        Raises:
            EntrypointError, UserCodeError: of the first node that has it.
            RunError: ConfigInvalid when the judge is not the same on all nodes; WorkerLost when there is no node.
        """
        self._since = time.monotonic()
        nodes = await asyncio.to_thread(alive_worker_nodes)
        problems = await asyncio.gather(*[self._take_up(info) for info in nodes.values()])
        for problem in problems:
            if problem is not None:
                raise problem
        self._watching = asyncio.create_task(self._watch())
        await self._node()

    async def stop(self) -> None:
        """End the actors with all workers; a `start` that is under way fails."""
        self._failure = self._failure or RunError(Cause.WORKER_LOST, "the episode workers were stopped")
        self._change.set()
        if self._watching is not None:
            self._watching.cancel()
        nodes = list(self._known.values())
        self._known.clear()
        self._ready.clear()
        await asyncio.gather(*[node.close() for node in nodes])
        for node in nodes:
            node.lose("the run has ended")
        if self._tasks:
            await asyncio.wait(self._tasks)

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[NodeLease]:
        """Wait for a free place, and for a node if there is none; the one with the least to do is taken.

        Raises:
            RunError: WorkerLost when there was no node for too long; ConfigInvalid for another judge on a new node.
        """
        async with self._free:
            node = await self._node()
            lease = NodeLease(self, node, next(self._numbers))
            node.running += 1
            node.given += 1
            try:
                yield lease
            except BaseException:
                await lease.give_up()
                raise
            finally:
                node.running -= 1
            lease.end()

    def lose(self, node: RayNode, reason: str) -> None:
        """Go on without a node; calling it twice is harmless."""
        node.lose(reason)
        if self._known.get(node.info.id) is not node:
            return
        del self._known[node.info.id]
        self._background(node.close())
        if self._ready.pop(node.info.id, None) is None:
            self._not_before[node.info.id] = time.monotonic() + self._patience.again
            _LOG.warning("no episode workers on node %s: %s", node.info.address, reason)
            return
        if not self._ready:
            self._since = time.monotonic()
            self._change.clear()
        self._say(f"lost the episode workers on node {node.info.address}: {reason}; {self._summary()}")

    def _summary(self) -> str:
        count = len(self._ready)
        where = f" ({', '.join(self.addresses)})" if count else ""
        return f"episode workers on {count} {'node' if count == 1 else 'nodes'}{where}"

    async def _node(self) -> RayNode:
        while self._failure is None and not self._ready:
            try:
                async with asyncio.timeout_at(self._deadline()):
                    await self._change.wait()
            except TimeoutError:
                if not self._change.is_set():
                    raise self._too_late() from None
        if self._failure is not None:
            raise self._failure
        return min(self._ready.values(), key=lambda node: node.load)

    def _deadline(self) -> float:
        """On the loop's clock, which is the monotonic one."""
        return self._since + self._patience.without_nodes

    def _too_late(self) -> RunError:
        if self._last_problem is not None:
            return self._last_problem
        message = (
            f"no worker node for episodes was there for {self._patience.without_nodes:.0f} s: see why the pods of "
            "`cluster.workers` do not run (kubectl describe), or give them more memory if they were killed"
        )
        return RunError(Cause.WORKER_LOST, message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._patience.poll)
            try:
                alive = await asyncio.to_thread(alive_worker_nodes)
            except Exception as error:
                # The control service is on the trainer's own node: it comes back, or all of us end.
                _LOG.warning("Ray does not tell its nodes: %s", error)
                continue
            for identity, node in list(self._known.items()):
                if identity not in alive:
                    self.lose(node, "Ray calls it dead")
            for identity, info in alive.items():
                if identity not in self._known and time.monotonic() >= self._not_before.get(identity, 0.0):
                    self._background(self._take_up_again(info))

    async def _take_up_again(self, info: NodeInfo) -> None:
        """Take up a node in the middle of the run, when its code has been loaded elsewhere."""
        problem = await self._take_up(info)
        if isinstance(problem, EntrypointError | UserCodeError):
            # Of this node alone, for now: others may do without it, and it is tried again.
            self._last_problem = problem
        elif problem is not None:
            self._failure = problem
            self._change.set()

    async def _take_up(self, info: NodeInfo) -> RunError | None:
        node = self._known[info.id] = RayNode(info, self._settings)
        try:
            problem = self._other_judge(info, await node.start())
        except NodeLostError as error:
            self.lose(node, str(error))
            return None
        except RunError as error:
            problem = error
        if problem is not None:
            self.lose(node, problem.message)
            return problem
        if self._failure is None and self._known.get(info.id) is node:
            self._ready[info.id] = node
            self._last_problem = None
            self._change.set()
            self._say(self._summary())
        return None

    def _other_judge(self, info: NodeInfo, digest: str) -> RunError | None:
        known, address = self._digest = self._digest or (digest, info.address)
        if digest == known:
            return None
        message = (
            f"the judge's code on node {info.address} is not that on node {address}: head and workers must run one "
            "image, so name it by a tag that never moves, or by its digest, in `workflow.image`"
        )
        return RunError(Cause.CONFIG_INVALID, message)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
