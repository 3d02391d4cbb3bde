"""The gateway's `Policy` over the model in memory: single requests in, batches through the sampler.

The gateway calls `generate` from its event loop; sampling runs in one thread of its own, where gradients are off
(torch keeps that per thread). Not here: the sampling loop (`sampling`), the weights (`learner` changes them, after
`wait_until_idle`: a batch goes on when the episodes that asked for it have been cut off).
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from tuning_runner.engines.trl.sampling import SampledReply, Sampler, SamplingRequest
from tuning_runner.episodes.policy import Generation, GenerationRequest


@dataclass(frozen=True)
class BatchLimits:
    """When a batch is closed."""

    rows: int = 256
    tokens: int = 1 << 18
    """Prompt and response tokens of all rows, padding included: bounds the cache."""
    quiet_seconds: float = 0.03
    """A batch that waits for more requests starts after so long without a new one, or after a tenth of the time that
    the last batch took if that is longer: on busy cores the requests of one turn trickle in, and a small batch costs
    nearly as much as a large one."""
    longest_quiet_seconds: float = 0.5


@dataclass
class Usage:
    """Sums since the last `take_usage`."""

    tokens: int = 0
    entropy: float = 0.0
    """Sum over sampled tokens, in nats."""


@dataclass(frozen=True)
class _Waiting:
    request: GenerationRequest
    reply: "asyncio.Future[Generation]"


class BatchedPolicy:
    """Collects requests and samples them together.

    Args:
        sampler: draws the replies.
        limits: when a batch is closed.
        expected: number of episodes that may still send a request; a batch that holds so many waits no longer.
        precision: of forward passes.
    """

    def __init__(
        self,
        sampler: Sampler,
        limits: BatchLimits,
        expected: Callable[[], int],
        precision: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._sampler = sampler
        self._limits = limits
        self._expected = expected
        self._precision = precision
        self._pending: list[_Waiting] = []
        self._arrived: asyncio.Event | None = None
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")
        self._usage = Usage()
        self._last_seconds = 0.0
        self.failure: Exception | None = None
        """The newest failure of sampling itself: the episodes only see a ModelError."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one reply; called many at a time."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future())
        self._pending.append(waiting)
        if self._worker is None or self._worker.done():
            self._arrived = asyncio.Event()
            self._worker = loop.create_task(self._drain())
        elif self._arrived is not None:
            self._arrived.set()
        return await waiting.reply

    def take_usage(self) -> Usage:
        """The sums so far; they start again from 0."""
        usage, self._usage = self._usage, Usage()
        return usage

    def wait_until_idle(self) -> None:
        """Return when no batch is being sampled; the caller is another thread and has closed all sessions."""
        # The thread takes one thing at a time, in order; requests of closed sessions never reach the sampler.
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """End the thread after the batch in hand, which nobody waits for any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            await self._collect()
            batch = self._take()
            started = time.perf_counter()
            try:
                replies = await loop.run_in_executor(self._thread, self._sample, [entry.request for entry in batch])
            except Exception as error:
                for entry in batch:
                    if not entry.reply.done():
                        entry.reply.set_exception(error)
                continue
            seconds = time.perf_counter() - started
            self._last_seconds = seconds
            for entry, reply in zip(batch, replies, strict=True):
                if not entry.reply.done():  # the client may have gone away
                    entry.reply.set_result(_generation(reply, seconds))

    async def _collect(self) -> None:
        """Wait until every live episode has asked, the batch is full, or it has been quiet for a while."""
        if self._arrived is None:
            return
        limits = self._limits
        quiet = max(limits.quiet_seconds, min(self._last_seconds / 10, limits.longest_quiet_seconds))
        while len(self._pending) < min(limits.rows, max(self._expected(), 1)):
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), quiet)
            except TimeoutError:
                return

    def _take(self) -> list[_Waiting]:
        """The oldest requests that fit into one batch, at least one; those whose client is gone are dropped."""
        self._pending = [entry for entry in self._pending if not entry.reply.done()]
        width, count = 0, 0
        for entry in self._pending[: self._limits.rows]:
            width = max(width, len(entry.request.prompt_ids) + entry.request.max_new_tokens)
            if count and width * (count + 1) > self._limits.tokens:
                break
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch

    def _sample(self, requests: Sequence[GenerationRequest]) -> list[SampledReply]:
        # Failure and sums are kept here, in the policy's thread: once it is idle, no batch that was cut off is counted
        # among what comes next.
        if not requests:
            return []
        try:
            with torch.no_grad(), self._precision():
                replies = self._sampler.sample([_sampling_request(request) for request in requests])
        except Exception as error:
            _free_locals(error)
            self.failure = error
            raise
        self._count(replies)
        return replies

    def _count(self, replies: Sequence[SampledReply]) -> None:
        self._usage.tokens += sum(len(reply.tokens) for reply in replies)
        self._usage.entropy += sum(reply.entropy for reply in replies)


def _free_locals(error: BaseException) -> None:
    """Drop what the frames of a failure hold, the cache above all: the next try and the update need that memory."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        traceback.clear_frames(current.__traceback__)
        current = current.__cause__ or current.__context__


def _generation(reply: SampledReply, seconds: float) -> Generation:
    return Generation(reply.tokens, reply.logprobs, "stop" if reply.ended else "length", seconds)


def _sampling_request(request: GenerationRequest) -> SamplingRequest:
    return SamplingRequest(
        prompt=request.prompt_ids,
        max_new_tokens=request.max_new_tokens,
        seed=request.seed,
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
    )
