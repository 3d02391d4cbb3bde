"""One node's share of the episodes: a worker pool whose leases are held for a trainer elsewhere.

`tuning_runner.ray_nodes` runs it as an actor on each worker node and sends it orders; orders and answers are JSON
texts. Calls may overlap and may arrive in another order than they were sent. Not here: which node gets an episode.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from tuning_runner.episodes.errors import EntrypointError, RunError, UserCodeError
from tuning_runner.episodes.pool import WorkerDied, WorkerStuck
from tuning_runner.episodes.workers import WorkerLease, WorkerPool, WorkerSettings

_ERRORS = {"EntrypointError": EntrypointError, "UserCodeError": UserCodeError}


@dataclass
class _Held:
    """One lease of the trainer's."""

    place: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    lease: WorkerLease | None = None
    work: asyncio.Task[dict[str, Any]] | None = None


class EpisodeNode:
    """Start it once, then give it orders; all in one event loop."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._pool = WorkerPool(settings)
        self._held: dict[int, _Held] = {}
        self._given_up: set[int] = set()
        """Leases whose last order may arrive after their end."""

    async def start(self) -> str:
        """Load the user's code; `{judgeDigest}` or an error, see `read`."""
        try:
            await self._pool.start()
        except RunError as error:
            return json.dumps(_failure(error))
        return json.dumps({"judgeDigest": self._pool.judge_digest})

    async def order(self, lease: int, kind: str, text: str, seconds: float, ended: list[int]) -> str:
        """Let the worker of a lease carry out an order; the first order of a lease takes a worker.

        Args:
            lease: the trainer's number for it.
            kind: `workflow` or `judge`.
            text: the order as JSON, as `pool.Lease` has it.
            seconds: the order's deadline.
            ended: leases that have ended well since the last order; their workers are free before this one starts.

        Returns:
            The reply or an error, see `read`.
        """
        for number in ended:
            await self._held.pop(number).place.aclose()
        if lease in self._given_up:
            return json.dumps({"died": "the episode was given up before its order arrived"})
        held = self._held.setdefault(lease, _Held())
        work = held.work = asyncio.create_task(self._carry_out(held, kind, json.loads(text), seconds))
        await asyncio.wait([work])
        return json.dumps({"died": "the episode was given up"} if work.cancelled() else work.result())

    async def _carry_out(self, held: _Held, kind: str, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        try:
            if held.lease is None:
                held.lease = await held.place.enter_async_context(self._pool.lease())
            ask = held.lease.judge if kind == "judge" else held.lease.workflow
            return {"reply": await ask(order, seconds)}
        except WorkerStuck as error:
            return {"stuck": str(error)}
        except WorkerDied as error:
            return {"died": str(error)}
        except RunError as error:
            return _failure(error)

    async def give_up(self, lease: int) -> None:
        """End a lease whose last order may be at work, or on its way, and kill its worker with all that it does."""
        self._given_up.add(lease)
        held = self._held.pop(lease, _Held())
        if held.work is not None:
            held.work.cancel()
            await asyncio.wait([held.work])
        if held.lease is not None:
            await held.lease.discard()
        await held.place.aclose()

    async def stop(self) -> None:
        """Kill all workers; a `start` that is under way fails."""
        await self._pool.stop()


def read(text: str) -> dict[str, Any]:
    """The answer of a node's `start` or `order`, at the trainer.

    Raises:
        WorkerDied, WorkerStuck: as the node's own pool raised them.
        EntrypointError, UserCodeError: the user's code cannot be loaded there.
    """
    answer: dict[str, Any] = json.loads(text)
    if "stuck" in answer:
        raise WorkerStuck(answer["stuck"])
    if "died" in answer:
        raise WorkerDied(answer["died"])
    if "error" in answer:
        raise _ERRORS[answer["error"]](answer["message"])
    return answer


def _failure(error: RunError) -> dict[str, Any]:
    # What a pool raises is one of the two; they do not survive pickling.
    return {"error": type(error).__name__, "message": error.message}
