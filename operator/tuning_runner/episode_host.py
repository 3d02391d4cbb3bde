"""The episodes' event loop in a thread of its own, for an engine that computes in the main thread.

Engines hold one host: it owns gateway, worker pool and `EpisodeRunner`, and turns their coroutines into plain calls.
With `cluster.episodeNodes` the workers are on the worker nodes of Ray, else beside the trainer. Not here: what the
policy does with a request, what happens with the results.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tuning_contract.run_document import RunDocument
from tuning_runner.console import say
from tuning_runner.episodes.batch import EpisodeBatch, EpisodeResult
from tuning_runner.episodes.gateway import Gateway, GatewaySettings
from tuning_runner.episodes.policy import Policy, Renderer
from tuning_runner.episodes.pool import Pool
from tuning_runner.episodes.runner import EpisodeRunner, RunnerSettings
from tuning_runner.episodes.session import ModelLimits
from tuning_runner.episodes.workers import WorkerPool, WorkerSettings
from tuning_runner.ray_cluster import own_address
from tuning_runner.stopping import StopError

T = TypeVar("T")
_CLOSING_SECONDS = 5.0
"""The end of this process ends what has not stopped by then: workers hear that their connections close."""
_ABANDONING_SECONDS = 1.0


class EpisodeHost:
    """Make it, `load_user_code`, `serve`, `run` batches, `close`; inside `ray_cluster.joined`."""

    def __init__(self, run: RunDocument, attempt: int) -> None:
        self._run = run
        self._attempt = attempt
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
        self._thread.start()
        self._pool: Pool | None = None
        self._gateway: Gateway | None = None
        self._runner: EpisodeRunner | None = None
        self._loading: Future[None] | None = None

    def load_user_code(self) -> "Future[None]":
        """Start the worker templates, which import the user's modules; the future raises what is wrong with them."""
        # Held before it is started: `close` must find and end a process that hangs in the user's module.
        self._pool = self._make_pool()
        self._loading = self._submit(self._pool.start())
        return self._loading

    def _make_pool(self) -> Pool:
        settings = WorkerSettings(self._run.workflow, self._run.rollout.concurrency, gateway_host=self._gateway_host)
        if not self._run.cluster.episode_nodes:
            return WorkerPool(settings)
        from tuning_runner.ray_workers import RayWorkerPool  # it imports Ray

        return RayWorkerPool(settings, say)

    @property
    def _gateway_host(self) -> str:
        """The address that episodes reach: this node's where they run on others."""
        return own_address() if self._run.cluster.episode_nodes else "127.0.0.1"

    def serve(self, policy: Policy, renderer: Renderer) -> None:
        """Open the gateway; the user's code must have been loaded."""
        self._submit(self._serve(policy, renderer)).result()

    async def _serve(self, policy: Policy, renderer: Renderer) -> None:
        run = self._run
        if self._pool is None:
            raise RuntimeError("the user's code is not loaded")
        limits = ModelLimits(
            run_seed=run.seed,
            max_model_length=run.model.max_model_length,
            max_response_tokens=run.model.max_response_tokens,
            turns=run.rollout.limits.turns,
        )
        listening = GatewaySettings(run_attempt=self._attempt, limits=limits, host=self._gateway_host)
        gateway = Gateway(policy, renderer, listening)
        await gateway.start()
        self._gateway = gateway
        settings = RunnerSettings(
            run_attempt=self._attempt,
            max_attempts=run.rollout.max_attempts,
            seconds=run.rollout.limits.seconds,
            hidden_fields=run.dataset.hidden_fields,
        )
        self._runner = EpisodeRunner(gateway, self._pool, settings)

    @property
    def open_sessions(self) -> int:
        """Episodes that may still ask for a turn."""
        return self._gateway.open_sessions if self._gateway is not None else 0

    def run(self, batch: EpisodeBatch) -> list[EpisodeResult]:
        """All episodes of a batch, in the order of tasks, then members.

        Raises:
            RunError: as `EpisodeRunner.run`.
            StopError: the episodes are abandoned, with the records that could be had.
        """
        if self._runner is None:
            raise RuntimeError("the gateway is not open")
        work = self._submit(self._runner.run(batch))
        try:
            return work.result()
        except StopError as error:
            # Their processes are killed; one that cannot be, since its node is gone, is not waited for.
            self._loop.call_soon_threadsafe(self._runner.abandon)
            with contextlib.suppress(Exception):
                error.records = tuple(result.record for result in work.result(timeout=_ABANDONING_SECONDS))
            raise

    def close(self) -> None:
        """Stop gateway and workers."""
        with contextlib.suppress(Exception):
            self._submit(self._stop()).result(timeout=_CLOSING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._loop.close()

    async def _stop(self) -> None:
        if self._gateway is not None:
            await self._gateway.stop()
        if self._pool is not None:
            await self._pool.stop()
        if self._loading is not None:
            with contextlib.suppress(Exception):
                await asyncio.wrap_future(self._loading)

    def _submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)
