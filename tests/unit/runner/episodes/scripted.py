"""A scripted policy and a character tokenizer: deterministic stand-ins for the engine's side of the gateway."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tuning_contract.run_document import Sampling, WorkflowSettings
from tuning_runner.episodes.batch import EpisodeBatch, EpisodeResult
from tuning_runner.episodes.gateway import Gateway, GatewaySettings
from tuning_runner.episodes.policy import Generation, GenerationRequest, Message, Reply, Tool
from tuning_runner.episodes.pool import Pool
from tuning_runner.episodes.runner import EpisodeRunner, RunnerSettings
from tuning_runner.episodes.session import ModelLimits, Session, SessionSpec
from tuning_runner.episodes.workers import WorkerPool, WorkerSettings

START, END = 1_200_000, 1_200_001
PAIRS = 1_300_000
"""Ids from here on are pairs of letters: text that was sampled in pairs encodes to other ids when read back."""
SPECIAL = {"<|start|>": START, "<|end|>": END}


class CharacterRenderer:
    """One id for each character; samples may use ids of two letters, which `encode` never makes."""

    end_of_turn = (END, "<|end|>")

    def __init__(self, parses_tool_calls: bool = False, rewrites_history: bool = False) -> None:
        self.parses_tool_calls = parses_tool_calls
        self._rewrites_history = rewrites_history

    def text(self, messages: Sequence[Message], tools: Sequence[Tool], generation_prompt: bool) -> str:
        if any(message["role"] == "forbidden" for message in messages):
            raise ValueError("unknown role forbidden")
        text = "".join(f"<|start|>tools {json.dumps(tool)}<|end|>\n" for tool in tools)
        for place, message in enumerate(messages):
            content = message["content"]
            if self._rewrites_history and message["role"] == "assistant" and place < len(messages) - 1:
                content = f"[earlier] {content}"
            text += f"<|start|>{message['role']}\n{content}<|end|>\n"
        return text + ("<|start|>assistant\n" if generation_prompt else "")

    def encode(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        while text:
            for token, number in SPECIAL.items():
                if text.startswith(token):
                    ids.append(number)
                    text = text[len(token) :]
                    break
            else:
                ids.append(ord(text[0]))
                text = text[1:]
        return tuple(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(_letters(number) for number in token_ids)

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        text = self.decode(token_ids)
        if tools and text.startswith("call "):
            _, name, arguments = text.split(" ", 2)
            return Reply("", ({"name": name, "arguments": json.loads(arguments)},))
        return Reply(text)


def _letters(number: int) -> str:
    if number >= PAIRS:
        return "".join(chr(code) for code in divmod(number - PAIRS, 256))
    return "" if number in SPECIAL.values() else chr(number)


def in_pairs(text: str) -> tuple[int, ...]:
    """Ids of a sample that uses pair tokens."""
    pairs = [text[place : place + 2] for place in range(0, len(text), 2)]
    return tuple(PAIRS + 256 * ord(pair[0]) + ord(pair[1]) if len(pair) == 2 else ord(pair) for pair in pairs)


Script = Callable[[str, GenerationRequest], str]


def echo(prompt: str, _request: GenerationRequest) -> str:
    """Repeats the last message."""
    return prompt.rsplit("<|end|>", 1)[0].rsplit("\n", 1)[1]


@dataclass
class ScriptedPolicy:
    """Answers by a script; remembers the requests."""

    script: Script = echo
    delay: float = 0.0
    ends_turns: bool = True
    requests: list[GenerationRequest] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    async def generate(self, request: GenerationRequest) -> Generation:
        self.requests.append(request)
        await asyncio.sleep(self.delay)
        if self.failures:
            raise self.failures.pop(0)
        prompt = "".join(
            "<|start|>" if i == START else "<|end|>" if i == END else _letters(i) for i in request.prompt_ids
        )
        ids = in_pairs(self.script(prompt, request)) + ((END,) if self.ends_turns else ())
        stopped = self.ends_turns and len(ids) <= request.max_new_tokens
        ids = ids[: request.max_new_tokens]
        return Generation(
            ids, tuple(-0.5 - 0.01 * place for place in range(len(ids))), "stop" if stopped else "length", 0.01
        )


def some_limits(turns: int = 8, max_model_length: int = 4000, max_response_tokens: int = 200) -> ModelLimits:
    return ModelLimits(
        run_seed=7, max_model_length=max_model_length, max_response_tokens=max_response_tokens, turns=turns
    )


@contextlib.asynccontextmanager
async def a_gateway(
    policy: ScriptedPolicy | None = None, renderer: CharacterRenderer | None = None, limits: ModelLimits | None = None
) -> AsyncIterator[Gateway]:
    settings = GatewaySettings(run_attempt=1, limits=limits or some_limits())
    gateway = Gateway(policy or ScriptedPolicy(), renderer or CharacterRenderer(), settings)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


def a_session(gateway: Gateway, episode: str = "train-3.0.1", attempt: int = 1) -> Session:
    return gateway.open(SessionSpec(episode, attempt, "3.0.1", Sampling()))


async def ask(
    session: Session, *messages: str | Mapping[str, Any], headers: Mapping[str, str] | None = None, **options: Any
) -> tuple[int, Any]:
    """POST one request; texts are user messages. Gives status and JSON."""
    body = {"model": "policy", "messages": [m if isinstance(m, Mapping) else user(m) for m in messages]} | options
    sent = {"Authorization": f"Bearer {session.key}"} | dict(headers or {})
    url = f"{session.base_url}/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(url, json=body, headers=sent) as response:
        return response.status, await response.json()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


AGENTS = "tests.unit.runner.episodes.agents"


@dataclass
class Bench:
    """A gateway, a pool and a runner that are started."""

    gateway: Gateway
    pool: Any
    runner: EpisodeRunner
    policy: ScriptedPolicy

    async def run(self, tasks: Sequence[Mapping[str, Any]], group_size: int = 1, **fields: Any) -> list[EpisodeResult]:
        defaults: dict[str, Any] = {"step": 3, "policy_version": 2, "sampling": Sampling()}
        return await self.runner.run(EpisodeBatch(tasks=tasks, group_size=group_size, **(defaults | fields)))


@contextlib.asynccontextmanager
async def a_bench(
    workflow: str = "answers",
    judge: str | None = "exact",
    policy: ScriptedPolicy | None = None,
    limits: ModelLimits | None = None,
    size: int = 4,
    seconds: float = 10.0,
    max_attempts: int = 1,
    hidden_fields: tuple[str, ...] = ("answer",),
    module: str = AGENTS,
    renderer: CharacterRenderer | None = None,
    make_pool: Callable[[WorkerSettings], Pool] = WorkerPool,
    retry_seconds: float = 0.01,
) -> AsyncIterator[Bench]:
    """Everything that runs episodes, with valid defaults."""
    policy = policy or ScriptedPolicy()
    names = WorkflowSettings(f"{module}:{workflow}", f"{module}:{judge}" if judge else None)
    pool = make_pool(WorkerSettings(names, size=size, grace_seconds=0.3, start_seconds=60.0))
    settings = RunnerSettings(1, max_attempts, seconds, hidden_fields, retry_seconds=retry_seconds)
    async with a_gateway(policy, renderer, limits) as gateway:
        await pool.start()
        try:
            yield Bench(gateway, pool, EpisodeRunner(gateway, pool, settings), policy)
        finally:
            await pool.stop()
