"""One chat-completions request, checked and reduced to what the policy can honour.

The gateway calls `parse`. Training is on-policy, so a request either samples exactly as the run does or is
refused with a typed error: nothing is accepted and ignored.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuning_contract.run_document import Sampling
from tuning_runner.episodes.gateway_errors import (
    INVALID_REQUEST,
    UNSUPPORTED_CONTENT,
    UNSUPPORTED_PARAMETER,
    GatewayError,
)
from tuning_runner.episodes.policy import Message, Tool
from tuning_runner.episodes.text import writable_document

_READ = frozenset(
    ("model", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "logprobs", "stop")
) | {"tools", "tool_choice", "temperature", "top_p"}
_HARMLESS = frozenset(("user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier"))
"""They name or bill a request and change no token."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "store": (False,),
}
"""Parameters that are fine as long as they change nothing."""


@dataclass(frozen=True)
class ChatRequest:
    """What is left of a request."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    parse_tool_calls: bool
    """False for `tool_choice: none`: the reply stays text."""
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: bool


def parse(raw: bytes, sampling: Sampling) -> ChatRequest:
    """Check a request's body.

    Raises:
        GatewayError: it is no valid request, or would sample otherwise than the run does.
    """
    try:
        body = writable_document(json.loads(raw))
    except (ValueError, RecursionError) as error:
        raise GatewayError(INVALID_REQUEST, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise GatewayError(INVALID_REQUEST, "`messages` must be a list with at least one message")
    _refuse_other_sampling(body, sampling)
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    stream_options = body.get("stream_options") or {}
    if not isinstance(tools, list) or not isinstance(stream_options, dict):
        raise GatewayError(INVALID_REQUEST, "`tools` must be a list and `stream_options` an object")
    if choice not in (None, "auto", "none"):
        raise GatewayError(UNSUPPORTED_PARAMETER, f"tool_choice {choice!r} cannot be forced on the policy: use auto")
    return ChatRequest(
        messages=tuple(normal_message(message) for message in body["messages"]),
        tools=tuple(tools),
        parse_tool_calls=bool(tools) and choice != "none",
        max_tokens=_max_tokens(body),
        stop=_stop(body.get("stop")),
        stream=bool(body.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        logprobs=bool(body.get("logprobs")),
    )


def _refuse_other_sampling(body: Mapping[str, Any], sampling: Sampling) -> None:
    for name, run_value in (("temperature", sampling.temperature), ("top_p", sampling.top_p)):
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or not math.isclose(value, run_value, abs_tol=1e-6):
            text = f"{name} {value!r} differs from the run's {run_value:g}: leave it out, the run's sampling applies"
            raise GatewayError(UNSUPPORTED_PARAMETER, text)
    for name, value in body.items():
        if name in _READ or name in _HARMLESS or value is None:
            continue
        if name not in _NEUTRAL or value not in _NEUTRAL[name]:
            text = f"`{name}: {value!r}` would change how the policy samples or replies: leave it out"
            raise GatewayError(UNSUPPORTED_PARAMETER, text)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    value = body.get("max_completion_tokens")
    value = body.get("max_tokens") if value is None else value
    if value is not None and (not isinstance(value, int) or value < 1):
        raise GatewayError(INVALID_REQUEST, f"max_tokens must be a positive integer, not {value!r}")
    return value


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise GatewayError(INVALID_REQUEST, f"stop must be a string or a list of strings, not {value!r}")
    return tuple(stops)


def normal_message(message: Any) -> Message:
    """A message in the one form that templates see: text content, tool arguments as objects.

    Lists of text parts (AgentScope sends these) are joined, since many templates print other content as nothing.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise GatewayError(INVALID_REQUEST, f"a message must be an object with a role, not {message!r}"[:500])
    normal: dict[str, Any] = {"role": message["role"], "content": _text(message.get("content"))}
    if calls := message.get("tool_calls"):
        normal["tool_calls"] = [_tool_call(call) for call in calls]
    if message.get("name"):
        normal["name"] = message["name"]
    return normal


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise GatewayError(UNSUPPORTED_CONTENT, f"only text content can be trained on, not {part!r}"[:500])
        texts.append(str(part.get("text", "")))
    return "".join(texts)


def _tool_call(call: Any) -> dict[str, Any]:
    try:
        name, arguments = call["function"]["name"], call["function"].get("arguments") or "{}"
    except (KeyError, TypeError, AttributeError) as error:
        raise GatewayError(INVALID_REQUEST, f"a tool call needs function.name: {call!r}"[:500]) from error
    if isinstance(arguments, str):
        # Broken arguments are part of the conversation: the template prints what the agent sent back.
        with contextlib.suppress(ValueError):
            arguments = json.loads(arguments)
    return {"type": "function", "function": {"name": name, "arguments": arguments}}
