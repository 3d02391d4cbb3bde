"""The `model` that a workflow gets: AgentScope's chat model where the user's code knows it, else our own.

Used inside worker processes. Either way the object has `base_url`, `api_key` and `model_name`, so that any
OpenAI client can be used instead.
"""

import importlib.util
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelAddress:
    """Where the episode finds the model."""

    base_url: str
    key: str
    model_name: str


@dataclass(frozen=True)
class ChatReply:
    """A reply in blocks, as AgentScope's ChatResponse."""

    content: list[dict[str, Any]] = field(default_factory=list)
    """`{type: text, text}` and `{type: tool_use, id, name, input}`."""

    @property
    def text(self) -> str:
        """All text blocks together."""
        return "".join(block["text"] for block in self.content if block["type"] == "text")


class ModelRequestError(Exception):
    """The gateway refused a request or failed; `code` is its typed code, `status_code` its HTTP status."""

    def __init__(self, status_code: int, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.status_code = status_code
        self.code = code


class ChatModel:
    """A small asynchronous chat client without retries."""

    def __init__(self, address: ModelAddress) -> None:
        self.base_url = address.base_url
        self.api_key = address.key
        self.model_name = address.model_name
        self.stream = False

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> ChatReply:
        """One model turn; `options` go into the request (max_tokens, stop, tool_choice)."""
        import aiohttp

        body = {"model": self.model_name, "messages": list(messages)} | options
        if tools:
            body["tools"] = list(tools)
        headers = {"Authorization": f"Bearer {self.api_key}"}
        # No time-out of its own: the episode's limit ends a request that takes too long.
        async with (
            aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.post(f"{self.base_url}/chat/completions", json=body) as response,
        ):
            document = await response.json()
        if response.status != 200:
            error = document.get("error", {})
            raise ModelRequestError(response.status, error.get("code", ""), error.get("message", ""))
        return _reply(document["choices"][0]["message"])


def _reply(message: Mapping[str, Any]) -> ChatReply:
    blocks: list[dict[str, Any]] = []
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = json.loads(function["arguments"] or "{}")
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
    return ChatReply(blocks)


def wants_agentscope(function: Callable[..., Any]) -> bool:
    """Whether a workflow expects AgentScope's model: it is imported, or the module's source names it, and it is there.

    Decided once, before any episode runs: an import inside the workflow must not change what `model` is from
    the second episode on.
    """
    if "agentscope" not in sys.modules and "agentscope" not in _source(function):
        return False
    return importlib.util.find_spec("agentscope") is not None


def _source(function: Callable[..., Any]) -> str:
    module = inspect.getmodule(function)
    try:
        return inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        return ""


def open_model(address: ModelAddress, agentscope: bool) -> tuple[Any, Callable[[], Awaitable[None]]]:
    """The model for one episode and what closes its connections."""
    if not agentscope:
        return ChatModel(address), _nothing_to_close
    import httpx

    # The gateway is inside the run: no proxy from the environment, no TLS context, no time-out but the episode's.
    client = httpx.AsyncClient(trust_env=False, verify=False, timeout=None)  # noqa: S113, S501
    return _agentscope_model(address, client), client.aclose


def _agentscope_model(address: ModelAddress, client: Any) -> Any:
    from agentscope.model import OpenAIChatModel

    model = OpenAIChatModel(
        model_name=address.model_name,
        api_key=address.key,
        stream=False,
        client_kwargs={"base_url": address.base_url, "http_client": client},
    )
    model.base_url = address.base_url
    model.api_key = address.key
    return model


async def warm_up(agentscope: bool) -> None:
    """Load what the first model turn loads, so that forked workers share it instead of each doing it again.

    Measured: AgentScope's and OpenAI's lazy imports cost each worker 35 to 70 MB and a second of CPU.
    """
    if not agentscope:
        importlib.import_module("aiohttp")
        return
    import httpx

    importlib.import_module("anyio._backends._asyncio")
    await httpx.AsyncClient(trust_env=False, verify=False).aclose()  # noqa: S501 - loads the transport, connects nowhere
    async with httpx.AsyncClient(transport=httpx.MockTransport(_canned)) as client:
        model = _agentscope_model(ModelAddress("http://warm-up.invalid/v1", "none", "none"), client)
        await model([{"role": "user", "content": "hello"}])


def _canned(_request: Any) -> Any:
    import httpx

    choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    head = {"id": "warm-up", "object": "chat.completion", "created": 0, "model": "none"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return httpx.Response(200, json=head | {"choices": [choice], "usage": usage})


async def _nothing_to_close() -> None:
    return None
