"""The worker nodes of the run's Ray cluster as places for episodes: one actor on each, which holds an `EpisodeNode`.

Used by `ray_workers` only, inside `ray_cluster.joined`. Actors ask Ray for no CPU: user code has the whole node, and
what bounds it is the number of episodes. Ray never restarts them, since a lost episode is tried again elsewhere.
"""

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tuning_runner.episodes.node import EpisodeNode, read
from tuning_runner.episodes.workers import WorkerSettings

_HEAD_RESOURCE = "node:__internal_head__"
_STOP_SECONDS = 5.0
_PLACING_SECONDS = 120.0
"""For starting the actor's process, which imports Ray."""


class NodeLostError(Exception):
    """The node, or the actor on it, is gone or does not answer; the text says what Ray said."""


@dataclass(frozen=True)
class NodeInfo:
    """A worker node that Ray calls alive."""

    id: str
    address: str
    cpus: float


def alive_worker_nodes() -> dict[str, NodeInfo]:
    """By their identity; the head is not among them. Blocks for as long as Ray's control service takes to answer."""
    found = {}
    for node in ray.nodes():
        resources: Mapping[str, float] = node["Resources"]
        if node["Alive"] and _HEAD_RESOURCE not in resources:
            info = NodeInfo(node["NodeID"], node["NodeManagerAddress"], resources.get("CPU", 0.0))
            found[info.id] = info
    return found


class EpisodeActor(EpisodeNode):
    """What runs in the actor's process."""

    def __init__(self, settings: WorkerSettings) -> None:
        # Ray puts folders of its own in front, which are not there beside the trainer.
        private = Path(ray.__file__).parent
        paths = tuple(path for path in sys.path if not Path(path or ".").is_relative_to(private))
        super().__init__(dataclasses.replace(settings, search_path=paths))


class RayNode:
    """One node with its actor, seen from the trainer. Make it in the episodes' event loop."""

    def __init__(self, info: NodeInfo, settings: WorkerSettings) -> None:
        self.info = info
        self.running = 0
        """Episodes that hold a lease on it."""
        self.given = 0
        """Leases on it, ended ones included."""
        self._settings = settings
        self._ended: list[int] = []
        """Leases that the node has not been told the end of: the next order does, since a call costs milliseconds."""
        self._actor: Any = None
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def load(self) -> tuple[float, int]:
        """Episodes for each CPU, then leases so far: of two idle nodes, the one that has had fewer is the next."""
        return self.running / max(self.info.cpus, 1.0), self.given

    async def start(self) -> str:
        """Place the actor and load the user's code; the judge's digest.

        Raises:
            NodeLostError: before the code was loaded.
            EntrypointError, UserCodeError: as `WorkerPool.start`.
        """
        try:
            self._actor = await asyncio.to_thread(self._placed)
            loading = self._actor.start.remote()
        except RayError as error:
            self.lose(_words(error))
            raise NodeLostError(_words(error)) from error
        answer = await self._answer(loading, self._settings.start_seconds + _PLACING_SECONDS)
        return str(read(answer)["judgeDigest"])

    def _placed(self) -> Any:
        options = ray.remote(
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=2 * self._settings.size + 16,  # an order of each episode, and the end of one
            scheduling_strategy=NodeAffinitySchedulingStrategy(self.info.id, soft=False),
        )
        return options(EpisodeActor).remote(self._settings)

    async def order(self, lease: int, kind: str, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The worker's reply to an order, see `EpisodeNode.order`.

        Raises:
            NodeLostError: before the reply was here.
            WorkerDied, WorkerStuck, UserCodeError: as `pool.Lease`.
        """
        settings = self._settings
        # An actor that hangs is worse than one that dies: Ray never says so. A worker may have to be made first.
        patience = seconds + settings.grace_seconds + settings.start_seconds
        if self._lost.done():
            raise NodeLostError(self._lost.result())
        ended, self._ended = self._ended, []
        work = self._actor.order.remote(lease, kind, json.dumps(order, default=str), seconds, ended)
        reply: dict[str, Any] = read(await self._answer(work, patience))["reply"]
        return reply

    def end(self, lease: int) -> None:
        """End a lease whose orders have all been answered; its worker is free for the next one."""
        self._ended.append(lease)

    async def give_up(self, lease: int) -> None:
        """End a lease and kill its worker; waits for that, so that it does not compute beside the next one."""
        if not self._lost.done():
            killed = _future(self._actor.give_up.remote(lease))
            # A node that is slow to answer, since user code keeps it busy, is not lost for that.
            await asyncio.wait({killed, self._lost}, timeout=_STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    def lose(self, reason: str) -> None:
        """Call the node lost: every order that waits ends with NodeLostError."""
        if not self._lost.done():
            self._lost.set_result(reason)

    async def close(self) -> None:
        """End actor and workers; never raises."""
        if self._actor is None:
            return
        if not self._lost.done():
            with contextlib.suppress(Exception):
                await asyncio.wait([_future(self._actor.stop.remote())], timeout=_STOP_SECONDS)
        # The raylet ends the template with its actor, and workers end with their connection to it.
        with contextlib.suppress(Exception):
            await asyncio.to_thread(ray.kill, self._actor)

    async def _answer(self, reference: Any, seconds: float) -> Any:
        answer = _future(reference)
        await asyncio.wait({answer, self._lost}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            try:
                return answer.result()
            except RayTaskError:
                raise  # a mistake of ours: the node is well
            except RayError as error:
                self.lose(_words(error))
        self.lose(f"no answer within {seconds:g} s")
        raise NodeLostError(self._lost.result())


def _future(reference: Any) -> "asyncio.Future[Any]":
    """Never cancelled, since Ray would complete it all the same; its exception is taken note of."""
    future = asyncio.wrap_future(reference.future())
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


def _words(error: RayError) -> str:
    return " ".join(str(error).split())[:300]
