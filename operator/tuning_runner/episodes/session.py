"""One try of one episode at the gateway: its turns, limits and repeated requests.

`Gateway.open` makes it, the runner reads it. It lives in one event loop and knows no HTTP.
"""

import asyncio
import bisect
import hashlib
import logging
import time
from dataclasses import dataclass
from functools import partial

from tuning_contract.run_document import Sampling
from tuning_contract.schedule import turn_seed
from tuning_runner.episodes.chat_request import ChatRequest, normal_message, parse
from tuning_runner.episodes.chat_response import Answer
from tuning_runner.episodes.conversation import HeldTurn, prompt_of
from tuning_runner.episodes.gateway_errors import (
    CONTEXT_LENGTH,
    EPISODE_CLOSED,
    INVALID_REQUEST,
    MODEL_FAILED,
    TOOLS_WITHOUT_PARSER,
    TURN_LIMIT,
    GatewayError,
)
from tuning_runner.episodes.policy import Generation, GenerationRequest, Policy, Renderer, Reply
from tuning_runner.episodes.turns import FailureKind, GatewayFailure, Turn

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionSpec:
    """Who the session belongs to and what it may do."""

    episode: str
    """Unique among open sessions together with `attempt`; part of the URL."""
    attempt: int
    """Number of the try, from 1."""
    seed_identity: str
    """What the sampling noise depends on beside run seed, try and turn."""
    sampling: Sampling


@dataclass(frozen=True)
class ModelLimits:
    """Limits that the gateway enforces."""

    run_seed: int
    max_model_length: int
    max_response_tokens: int
    turns: int


@dataclass(frozen=True)
class Model:
    """What answers."""

    policy: Policy
    renderer: Renderer
    limits: ModelLimits


class Session:
    """Implements `turns.ModelSession`."""

    def __init__(self, spec: SessionSpec, model: Model, base_url: str, key: str, model_name: str) -> None:
        self.spec = spec
        self.base_url = base_url
        self.key = key
        self.model_name = model_name
        self._model = model
        self._held: list[HeldTurn] = []
        self._turns: dict[int, Turn] = {}
        self._answers: dict[bytes, asyncio.Task[Answer]] = {}
        self._running: set[asyncio.Task[Answer]] = set()
        self._failures: list[GatewayFailure] = []
        self._last_failure: GatewayFailure | None = None
        self._unresolved: dict[bytes, GatewayFailure] = {}
        self._started = 0
        self._sampling = 0
        self._closed = False

    def turns(self) -> tuple[Turn, ...]:
        """Finished turns, by number."""
        return tuple(turn for _, turn in sorted(self._turns.items()))

    @property
    def failures(self) -> tuple[GatewayFailure, ...]:
        """Typed errors given so far, oldest first."""
        return tuple(self._failures)

    @property
    def last_failure(self) -> GatewayFailure | None:
        """The newest answer's typed error; None when the newest answer was a turn."""
        return self._last_failure

    @property
    def unresolved_failure(self) -> GatewayFailure | None:
        """The oldest failure of the model whose request, known by its body, got no turn."""
        return next(iter(self._unresolved.values()), None)

    @property
    def pending(self) -> int:
        """Requests that wait for the policy."""
        return len(self._running)

    def seed(self, number: int) -> int:
        """Seed of one turn's sampling noise."""
        return turn_seed(self._model.limits.run_seed, self.spec.seed_identity, self.spec.attempt, number)

    def close(self) -> None:
        """Refuse all further requests and drop those that run."""
        self._closed = True
        for task in self._running:
            task.cancel()

    async def answer(self, raw: bytes, repeated: bool) -> Answer:
        """Answer one request.

        Args:
            raw: the request's body.
            repeated: the client marked it as a retry. With the body of an earlier request it gets that
                request's answer, finished or not, so a retry never forks the trajectory. An unmarked equal
                request is a new turn: an agent may ask the same thing twice on purpose.
        """
        digest = hashlib.sha256(raw).digest()
        task = self._answers.get(digest) if repeated else None
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._sampled_answer(raw))
            self._answers[digest] = task
            self._running.add(task)
            task.add_done_callback(partial(self._finished, digest, self._unresolved.get(digest)))
        try:
            # The client may hang up and ask again: the turn goes on.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise GatewayError(EPISODE_CLOSED, "this try of the episode is over") from None
            raise

    def _finished(self, digest: bytes, known: GatewayFailure | None, task: asyncio.Task[Answer]) -> None:
        """Keep the end of a request; `known` is the unresolved failure of its body when it began."""
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        self._last_failure = error.failure if isinstance(error, GatewayError) else None
        if self._last_failure is None:
            # A turn makes up for a failure that its client knew of, not for that of an equal request beside it.
            if self._unresolved.get(digest) is known:
                self._unresolved.pop(digest, None)
            return
        self._failures.append(self._last_failure)
        if self._last_failure.kind is FailureKind.MODEL:
            self._unresolved[digest] = self._last_failure

    async def _sampled_answer(self, raw: bytes) -> Answer:
        if self._closed:
            raise GatewayError(EPISODE_CLOSED, "this try of the episode is over")
        request = parse(raw, self.spec.sampling)
        if request.tools and not self._model.renderer.parses_tool_calls:
            raise GatewayError(TOOLS_WITHOUT_PARSER, "the model has no parser for tool calls: leave `tools` out")
        if len(self._turns) + self._sampling >= self._model.limits.turns:
            raise GatewayError(TURN_LIMIT, f"the episode has used its {self._model.limits.turns} model turns")
        number, self._started = self._started, self._started + 1
        self._sampling += 1
        try:
            turn = await self._turn(number, request)
        except GatewayError:
            raise
        except Exception as error:
            _LOG.exception("the policy failed on a turn of episode %s", self.spec.episode)
            raise GatewayError(MODEL_FAILED, f"{type(error).__name__}: {error}") from error
        finally:
            self._sampling -= 1
        self._turns[number] = turn
        identity = f"chatcmpl-{self.spec.episode}-{self.spec.attempt}-{number}"
        return Answer(turn, request, identity, int(time.time()))

    async def _turn(self, number: int, request: ChatRequest) -> Turn:
        renderer, limits = self._model.renderer, self._model.limits
        try:
            prompt = prompt_of(renderer, request.messages, request.tools, self._held)
        except ValueError as error:
            raise GatewayError(INVALID_REQUEST, f"the chat template refuses the messages: {error}") from error
        room = min(limits.max_response_tokens, limits.max_model_length - len(prompt.ids))
        if room < 1:
            text = f"the prompt's {len(prompt.ids)} tokens leave no room in the model's {limits.max_model_length}"
            raise GatewayError(CONTEXT_LENGTH, text)
        sampled, text_reply = await self._sample(
            GenerationRequest(
                prompt_ids=prompt.ids,
                max_new_tokens=min(room, request.max_tokens or room),
                seed=self.seed(number),
                sampling=self.spec.sampling,
                stop=request.stop,
            )
        )
        reply = text_reply
        if reply is None:
            tools = request.tools if request.parse_tool_calls else ()
            reply = renderer.parse(sampled.token_ids, tools)
        turn = Turn(
            number=number,
            prompt_ids=prompt.ids,
            completion_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            finish="tool_calls" if reply.tool_calls else sampled.finish,
            seconds=sampled.seconds,
            seed=self.seed(number),
            sampling=self.spec.sampling,
            messages=request.messages,
            reply=_message(reply),
            stitched=prompt.stitched,
            drifted=prompt.drifted,
        )
        if text_reply is None:
            # A reply that a stop string cut is not what its ids say, so no later prompt continues those ids.
            self._held.append(HeldTurn(turn, request.tools))
        return turn

    async def _sample(self, request: GenerationRequest) -> tuple[Generation, Reply | None]:
        """The generation, and the reply if a stop string cut it."""
        sampled = await self._model.policy.generate(request)
        return cut_at_stop(sampled, request.stop, self._model.renderer)


def _message(reply: Reply) -> dict[str, object]:
    calls = [{"type": "function", "function": dict(call)} for call in reply.tool_calls]
    message = {"role": "assistant", "content": reply.content} | ({"tool_calls": calls} if calls else {})
    return dict(normal_message(message))


def cut_at_stop(sampled: Generation, stops: tuple[str, ...], renderer: Renderer) -> tuple[Generation, Reply | None]:
    """The shortest beginning of a generation that contains a stop string, and the text before that string.

    A beginning of a sample is a sample of the process that stops there, so ids and log-probabilities stay exact.
    """
    ids = sampled.token_ids
    if not any(stop in renderer.decode(ids) for stop in stops):
        return sampled, None
    length = bisect.bisect_left(
        range(len(ids) + 1), True, key=lambda size: any(stop in renderer.decode(ids[:size]) for stop in stops)
    )
    text = renderer.decode(ids[:length])
    end = min(place for place in (text.find(stop) for stop in stops) if place >= 0)
    cut = Generation(ids[:length], sampled.logprobs[:length], "stop", sampled.seconds)
    return cut, Reply(text[:end])
