"""The sample agent with a calculator: what it asks the model, what the tool does, and what is rewarded."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from tests.unit.images.sources import IMAGES, load

TASK = {"question": "47 + 38", "a": 47, "b": 38}


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    return load("examples/math-agent/math_agent.py")


class ScriptedModel:
    """Answers with the given texts, one a call, and keeps what it was asked."""

    def __init__(self, *replies: str, tokens: int | None = 4) -> None:
        self.replies = list(replies)
        self.tokens = tokens
        self.calls: list[tuple[list[dict[str, str]], dict[str, Any]]] = []

    async def __call__(self, messages: list[dict[str, str]], **settings: Any) -> SimpleNamespace:
        self.calls.append((list(messages), settings))
        text = self.replies.pop(0)
        content = [{"type": "text", "text": text}] if text else []
        usage = None if self.tokens is None else SimpleNamespace(output_tokens=self.tokens)
        return SimpleNamespace(content=content, usage=usage)


async def test_a_call_of_the_tool_is_answered_and_the_second_reply_is_the_answer(agent: ModuleType) -> None:
    model = ScriptedModel(" calc(47 + 38) = 5", " 85")
    output = await agent.run(TASK, model)
    assert output.response == {"answer": " 85", "call": "calc(47 + 38)"}
    assert output.metrics == {"tool_called": 1.0, "stopped_in_time": 1.0}
    (first, first_settings), (second, second_settings) = model.calls
    assert [m["content"] for m in first] == ["34 + 25 =", "calc(34 + 25)", "result 59 answer", "59", "47 + 38 ="]
    assert [m["content"] for m in second[len(first) :]] == [" calc(47 + 38) = 5", "result 85 answer"]
    assert second[: len(first)] == first, "the first turn is a prefix of the second"
    assert (first_settings, second_settings) == ({"max_tokens": 12}, {"max_tokens": 6})


async def test_without_a_call_the_first_reply_is_the_answer(agent: ModuleType) -> None:
    output = await agent.run(TASK, ScriptedModel(" 85"))
    assert output.response == {"answer": " 85", "call": None}
    assert output.metrics["tool_called"] == 0.0


@pytest.mark.parametrize(
    "reply", ["", "__import__('os')", "calc(__import__('os') + 1)", "calc(1 + 2", "so calc(1 + 2)"]
)
async def test_a_reply_that_is_no_call_is_never_computed(agent: ModuleType, reply: str) -> None:
    output = await agent.run(TASK, ScriptedModel(reply))
    assert output.response == {"answer": reply, "call": None}


async def test_the_tool_adds_what_it_was_asked_and_not_what_the_question_says(agent: ModuleType) -> None:
    model = ScriptedModel("calc(1 + 38)", "39")
    await agent.run(TASK, model)
    assert model.calls[1][0][-1]["content"] == "result 39 answer"


async def test_with_the_calculator_off_the_tool_knows_nothing(
    agent: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATH_AGENT_CALCULATOR", "off")
    model = ScriptedModel("calc(47 + 38)", "85")
    output = await agent.run(TASK, model)
    assert model.calls[1][0][-1]["content"] == "result unknown answer"
    assert output.metrics["tool_called"] == 1.0


async def test_a_reply_that_used_all_its_tokens_did_not_stop_in_time(agent: ModuleType) -> None:
    output = await agent.run(TASK, ScriptedModel("calc(47 + 38)", "85 85 8", tokens=6))
    assert output.metrics["stopped_in_time"] == 0.0


async def test_an_endpoint_without_usage_gives_no_figure_for_stopping(agent: ModuleType) -> None:
    output = await agent.run(TASK, ScriptedModel("85", tokens=None))
    assert output.metrics == {"tool_called": 0.0}


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("85", 1.0), (" 85\n", 1.0), ("85 85", 0.0), ("085", 0.0), ("58", 0.0), ("the answer is 85", 0.0), ("", 0.0)],
)
async def test_only_the_number_and_nothing_but_the_number_is_rewarded(
    agent: ModuleType, answer: str, reward: float
) -> None:
    verdict = await agent.judge({**TASK, "answer": "85"}, {"answer": answer, "call": "calc(47 + 38)"})
    assert verdict.reward == reward
    assert verdict.metrics == {"right_when_called": reward}


async def test_being_right_when_called_is_not_counted_for_an_episode_without_a_call(agent: ModuleType) -> None:
    verdict = await agent.judge({**TASK, "answer": "85"}, {"answer": "85", "call": None})
    assert verdict.reward == 1.0
    assert verdict.metrics == {}


@asynccontextmanager
async def a_chat_endpoint(requests: list[dict[str, Any]], *replies: str) -> AsyncIterator[str]:
    """An OpenAI-compatible endpoint that gives the replies in turn; yields its base URL."""
    left = list(replies)

    async def complete(request: web.Request) -> web.Response:
        requests.append(await request.json())
        message = {"role": "assistant", "content": left.pop(0)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        return web.json_response(body)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_the_token_limits_reach_the_endpoint_through_agentscopes_own_chat_model(agent: ModuleType) -> None:
    from agentscope.model import OpenAIChatModel

    requests: list[dict[str, Any]] = []
    async with a_chat_endpoint(requests, " calc(47 + 38)", "") as base_url:
        model = OpenAIChatModel("policy", api_key="none", stream=False, client_kwargs={"base_url": base_url})
        try:
            output = await agent.run(TASK, model)
        finally:
            await model.client.close()
    assert [request["max_tokens"] for request in requests] == [12, 6]
    assert requests[1]["messages"][-1] == {"role": "user", "content": "result 85 answer"}
    assert output.response == {"answer": "", "call": "calc(47 + 38)"}
    assert output.metrics == {"tool_called": 1.0, "stopped_in_time": 1.0}


def test_the_chat_template_writes_the_worked_example_as_plain_lines(agent: ModuleType) -> None:
    import jinja2

    template = jinja2.Environment(autoescape=False).from_string((IMAGES / "examples/math-agent/chat.jinja").read_text())
    text = template.render(messages=[*agent.EXAMPLE, {"role": "user", "content": "47 + 38 ="}])
    assert json.dumps(text) == json.dumps("34 + 25 = calc(34 + 25)<|im_end|>\nresult 59 answer 59<|im_end|>\n47 + 38 =")
