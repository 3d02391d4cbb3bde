"""Chat-completions responses from a turn: JSON, or a stream of server-sent events.

The gateway calls these. A stream carries the whole reply in one chunk: the reply is sampled before its
first byte is sent.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tuning_runner.episodes.chat_request import ChatRequest
from tuning_runner.episodes.policy import Renderer
from tuning_runner.episodes.turns import Turn


@dataclass(frozen=True)
class Answer:
    """A finished turn and the request that it answers."""

    turn: Turn
    request: ChatRequest
    identity: str
    created: int
    """Seconds since 1970."""


def completion(answer: Answer, model_name: str, renderer: Renderer) -> dict[str, Any]:
    """The body of a response that is not streamed."""
    choice = {
        "index": 0,
        "message": _wire_message(answer),
        "finish_reason": answer.turn.finish,
        "logprobs": _logprobs(answer, renderer),
    }
    head = {"id": answer.identity, "object": "chat.completion", "created": answer.created, "model": model_name}
    return head | {"choices": [choice], "usage": _usage(answer.turn)}


def events(answer: Answer, model_name: str, renderer: Renderer) -> Iterator[bytes]:
    """Server-sent events of a streamed response."""
    message = _wire_message(answer)
    if "tool_calls" in message:
        message["tool_calls"] = [call | {"index": place} for place, call in enumerate(message["tool_calls"])]
    head = {"id": answer.identity, "object": "chat.completion.chunk", "created": answer.created, "model": model_name}
    content = {"index": 0, "delta": message, "finish_reason": None, "logprobs": _logprobs(answer, renderer)}
    end = {"index": 0, "delta": {}, "finish_reason": answer.turn.finish}
    yield _event(head | {"choices": [content]})
    yield _event(head | {"choices": [end]})
    if answer.request.include_usage:
        yield _event(head | {"choices": [], "usage": _usage(answer.turn)})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _wire_message(answer: Answer) -> dict[str, Any]:
    reply = answer.turn.reply
    message: dict[str, Any] = {"role": "assistant", "content": reply["content"]}
    if calls := reply.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": f"call_{answer.turn.number}_{place}",
                "type": "function",
                "function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])},
            }
            for place, call in enumerate(calls)
        ]
    return message


def _logprobs(answer: Answer, renderer: Renderer) -> dict[str, Any] | None:
    if not answer.request.logprobs:
        return None
    pairs = zip(answer.turn.completion_ids, answer.turn.logprobs, strict=True)
    return {
        "content": [
            {"token": renderer.decode([token]), "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in pairs
        ]
    }


def _usage(turn: Turn) -> dict[str, int]:
    prompt, reply = len(turn.prompt_ids), len(turn.completion_ids)
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}
