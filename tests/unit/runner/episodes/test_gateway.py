"""The gateway over real HTTP, with a scripted policy."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.unit.runner.episodes.scripted import (
    END,
    CharacterRenderer,
    ScriptedPolicy,
    a_gateway,
    a_session,
    ask,
    assistant,
    in_pairs,
    some_limits,
    user,
)
from tuning_contract.schedule import turn_seed
from tuning_runner.episodes.gateway_errors import HEADER
from tuning_runner.episodes.rows import rows_of
from tuning_runner.episodes.turns import FailureKind

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


async def test_a_turn_is_answered_and_recorded_with_the_exact_sampled_ids() -> None:
    async with a_gateway() as gateway:
        session = a_session(gateway)
        status, body = await ask(session, "hello", logprobs=True)
        (turn,) = session.turns()
    assert status == 200
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len(turn.completion_ids)
    assert turn.completion_ids == (*in_pairs("hello"), END)
    logprobs = [entry["logprob"] for entry in body["choices"][0]["logprobs"]["content"]]
    assert tuple(logprobs) == turn.logprobs == (-0.5, -0.51, -0.52, -0.53)


async def test_a_growing_conversation_continues_the_sampled_ids_where_reading_them_back_would_give_others() -> None:
    async with a_gateway() as gateway:
        session = a_session(gateway)
        await ask(session, "hello")
        await ask(session, "hello", assistant("hello"), "again")
        first, second = session.turns()
    held = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(held)] == held
    assert second.stitched
    assert second.drifted
    (row,) = rows_of((first, second))
    sampled = [number for number, mask in zip(row.completion_ids, row.mask, strict=True) if mask]
    assert tuple(sampled) == first.completion_ids + second.completion_ids
    assert row.prompt_ids + row.completion_ids == second.prompt_ids + second.completion_ids
    between = CharacterRenderer().encode("\n<|start|>user\nagain<|end|>\n<|start|>assistant\n")
    assert row.completion_ids[len(first.completion_ids) : -len(second.completion_ids)] == between


async def test_a_reply_with_a_name_and_in_content_parts_is_still_the_same_reply() -> None:
    async with a_gateway() as gateway:
        session = a_session(gateway)
        await ask(session, "hello")
        sent_back = {"role": "assistant", "name": "agent", "content": [{"type": "text", "text": "hello"}]}
        await ask(session, "hello", sent_back, "again")
        assert [turn.stitched for turn in session.turns()] == [False, True]


async def test_a_reply_at_the_token_limit_is_closed_by_the_environment_when_the_conversation_goes_on() -> None:
    async with a_gateway(ScriptedPolicy(ends_turns=False)) as gateway:
        session = a_session(gateway)
        _, body = await ask(session, "hello", max_tokens=2)
        assert body["choices"][0]["finish_reason"] == "length"
        await ask(session, "hello", assistant("hell"), "again")
        first, second = session.turns()
    (row,) = rows_of((first, second))
    assert first.completion_ids == in_pairs("hell")
    assert row.completion_ids[2] == END
    assert row.mask[:3] == (1, 1, 0)


@pytest.mark.parametrize("reply", ["Hello", "hello there"])
async def test_an_edited_reply_begins_a_row_of_its_own(reply: str) -> None:
    async with a_gateway() as gateway:
        session = a_session(gateway)
        await ask(session, "hello")
        await ask(session, "hello", assistant(reply), "again")
        turns = session.turns()
    assert not turns[1].stitched
    assert len(rows_of(turns)) == 2


async def test_a_template_that_rewrites_history_is_rendered_anew() -> None:
    async with a_gateway(renderer=CharacterRenderer(rewrites_history=True)) as gateway:
        session = a_session(gateway)
        await ask(session, "hello")
        await ask(session, "hello", assistant("hello"), "again")
        turns = session.turns()
    assert not turns[1].stitched
    assert len(rows_of(turns)) == 2


async def test_a_stop_string_cuts_ids_log_probabilities_and_text() -> None:
    async with a_gateway(ScriptedPolicy(lambda prompt, request: "12 + 30 = 42\nmore")) as gateway:
        session = a_session(gateway)
        _, body = await ask(session, "hello", stop=["=", "\n"])
        (turn,) = session.turns()
    assert body["choices"][0]["message"]["content"] == "12 + 30 "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert turn.completion_ids == in_pairs("12 + 30 = ")
    assert len(turn.logprobs) == len(turn.completion_ids)


async def test_tool_calls_are_parsed_and_their_results_continue_the_same_row() -> None:
    def script(prompt: str, _request: Any) -> str:
        return "5" if "|>tool\n" in prompt else 'call add {"a": 2, "b": 3}'

    async with a_gateway(ScriptedPolicy(script), CharacterRenderer(parses_tool_calls=True)) as gateway:
        session = a_session(gateway)
        _, body = await ask(session, "2 + 3?", tools=[TOOL], tool_choice="auto")
        message = body["choices"][0]["message"]
        assert body["choices"][0]["finish_reason"] == "tool_calls"
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 2, "b": 3}
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "5"}
        await ask(session, "2 + 3?", message, result, tools=[TOOL])
        _, body = await ask(session, "2 + 3?", tools=[TOOL], tool_choice="none")
        turns = session.turns()
    # The character template prints no tool calls, so the text differs; the template decides, not the gateway.
    assert turns[0].finish == "tool_calls"
    assert turns[1].reply["content"] == "5"
    assert body["choices"][0]["message"]["content"] == 'call add {"a": 2, "b": 3}'


async def test_a_streamed_reply_is_read_by_event() -> None:
    async with a_gateway() as gateway:
        session = a_session(gateway)
        body = {"messages": [user("hello")], "stream": True, "stream_options": {"include_usage": True}}
        headers = {"Authorization": f"Bearer {session.key}"}
        async with aiohttp.ClientSession(headers=headers) as client:
            async with client.post(f"{session.base_url}/chat/completions", json=body) as response:
                lines = (await response.text()).strip().split("\n\n")
            async with client.get(f"{session.base_url}/models") as response:
                models = await response.json()
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    assert events[0]["choices"][0]["delta"]["content"] == "hello"
    assert events[1]["choices"][0]["finish_reason"] == "stop"
    assert events[2]["usage"]["total_tokens"] > 0
    assert models["data"][0]["id"] == session.model_name


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"temperature": 0.2}, "unsupported_parameter"),
        ({"top_p": 0.9}, "unsupported_parameter"),
        ({"n": 2}, "unsupported_parameter"),
        ({"seed": 1}, "unsupported_parameter"),
        ({"presence_penalty": 0.5}, "unsupported_parameter"),
        ({"logit_bias": {"5": 1}}, "unsupported_parameter"),
        ({"top_logprobs": 3}, "unsupported_parameter"),
        ({"top_k": 20}, "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter"),
        ({"tool_choice": "required"}, "unsupported_parameter"),
        ({"tools": [TOOL]}, "tools_without_parser"),
        ({"tools": "add"}, "invalid_request"),
        ({"stream_options": 1}, "invalid_request"),
        ({"max_tokens": 0}, "invalid_request"),
        ({"stop": 3}, "invalid_request"),
        ({"messages": []}, "invalid_request"),
        ({"messages": [{"role": "forbidden", "content": ""}]}, "invalid_request"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported_content"),
    ],
)
async def test_a_request_that_would_sample_otherwise_is_refused_with_a_typed_code(
    options: dict[str, Any], code: str
) -> None:
    policy = ScriptedPolicy()
    async with a_gateway(policy) as gateway:
        session = a_session(gateway)
        status, body = await ask(session, "hello", **options)
        assert (status, body["error"]["code"]) == (400, code)
        assert body["error"]["message"]
        assert session.last_failure is not None
        assert session.last_failure.kind is FailureKind.REFUSED
    assert policy.requests == []


async def test_parameters_that_change_nothing_are_accepted() -> None:
    neutral = {
        "temperature": 1,
        "top_p": 1.0,
        "n": 1,
        "presence_penalty": 0,
        "logit_bias": {},
        "seed": None,
        "user": "x",
    }
    async with a_gateway() as gateway:
        assert (await ask(a_session(gateway), "hello", **neutral))[0] == 200


async def test_a_marked_retry_gets_the_same_turn_and_an_equal_request_without_mark_a_new_one() -> None:
    policy = ScriptedPolicy(delay=0.05)
    retry = {"x-stainless-retry-count": "1"}
    async with a_gateway(policy) as gateway:
        session = a_session(gateway)
        in_flight = await asyncio.gather(ask(session, "hello"), _later(0.02, ask(session, "hello", headers=retry)))
        done = await ask(session, "hello", headers=retry)
        assert len(session.turns()) == 1
        assert in_flight[0] == in_flight[1] == done
        await ask(session, "hello")
        assert len(session.turns()) == 2
    assert len(policy.requests) == 2


async def _later(seconds: float, work: Any) -> Any:
    await asyncio.sleep(seconds)
    return await work


async def test_a_retry_after_a_failure_of_the_model_samples_again() -> None:
    async with a_gateway(ScriptedPolicy(failures=[MemoryError("no room")])) as gateway:
        session = a_session(gateway)
        status, body = await ask(session, "hello")
        assert (status, body["error"]["code"]) == (500, "model_failed")
        assert "no room" in body["error"]["message"]
        assert session.last_failure is not None
        assert (await ask(session, "hello", headers={"x-stainless-retry-count": "1"}))[0] == 200
        assert session.last_failure is None
        assert [failure.kind for failure in session.failures] == [FailureKind.MODEL]


async def test_half_a_letter_in_a_message_reaches_the_model_as_a_question_mark() -> None:
    async with a_gateway() as gateway:
        session = a_session(gateway)
        status, body = await ask(session, "half \ud83d")
        (turn,) = session.turns()
    assert (status, body["choices"][0]["message"]["content"]) == (200, "half ?")
    assert turn.messages[0]["content"] == "half ?"


async def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    async with a_gateway() as gateway:
        nested: Any = []
        for _ in range(700):
            nested = [nested]
        status, body = await ask(a_session(gateway), "hello", stop=nested)
    assert (status, body["error"]["code"]) == (400, "invalid_request")


async def test_a_failure_is_made_up_for_by_a_later_equal_request_and_not_by_one_beside_it() -> None:
    policy = ScriptedPolicy(delay=0.3, failures=[MemoryError("no room")])
    async with a_gateway(policy) as gateway:
        session = a_session(gateway)
        answers = await asyncio.gather(ask(session, "hello"), ask(session, "hello"))
        assert sorted(status for status, _ in answers) == [200, 500]
        assert session.unresolved_failure is not None
        assert (await ask(session, "hello"))[0] == 200
        assert session.unresolved_failure is None


async def test_the_openai_clients_own_retries_make_one_turn() -> None:
    openai = pytest.importorskip("openai")
    policy = ScriptedPolicy(delay=0.4)
    async with a_gateway(policy) as gateway:
        session = a_session(gateway)
        client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key, timeout=0.3, max_retries=3)
        async with client:
            reply = await client.chat.completions.create(model="policy", messages=[user("hello")])
        assert reply.choices[0].message.content == "hello"
        assert len(session.turns()) == len(policy.requests) == 1


async def test_turns_beyond_the_limit_and_prompts_beyond_the_length_are_refused_as_limits() -> None:
    async with a_gateway(limits=some_limits(turns=2, max_model_length=60)) as gateway:
        session = a_session(gateway)
        long = await ask(session, "x" * 60)
        answers = [await ask(session, f"turn {number}") for number in range(3)]
        kinds = [failure.kind for failure in session.failures]
    assert long[1]["error"]["code"] == "context_length"
    assert [status for status, _ in answers] == [200, 200, 400]
    assert answers[2][1]["error"]["code"] == "turn_limit"
    assert kinds == [FailureKind.LIMIT, FailureKind.LIMIT]


async def test_a_closed_try_answers_410_also_to_a_request_that_waits() -> None:
    async with a_gateway(ScriptedPolicy(delay=30)) as gateway:
        session = a_session(gateway)
        waiting = asyncio.create_task(ask(session, "hello"))
        while not session.pending:
            await asyncio.sleep(0.01)
        gateway.close(session)
        assert [(status, body["error"]["code"]) for status, body in (await waiting, await ask(session, "hello"))] == [
            (410, "episode_closed")
        ] * 2
        assert session.turns() == ()
        assert gateway.open_sessions == 0


async def test_a_foreign_key_opens_no_episode_and_errors_carry_the_gateways_header() -> None:
    async with a_gateway() as gateway:
        mine, other = a_session(gateway), a_session(gateway, attempt=2)
        status, body = await ask(mine, "hello", headers={"Authorization": f"Bearer {other.key}"})
        assert (status, body["error"]["code"]) == (401, "invalid_key")
        async with aiohttp.ClientSession() as client, client.get(f"{mine.base_url}/models") as response:
            assert response.headers[HEADER] == "invalid_key"
        assert mine.turns() == other.turns() == ()


async def test_the_sampling_seed_depends_on_run_episode_try_and_turn_only() -> None:
    policy = ScriptedPolicy()
    async with a_gateway(policy) as gateway:
        session = a_session(gateway, attempt=2)
        await ask(session, "hello")
        await ask(session, "hello")
    assert [request.seed for request in policy.requests] == [turn_seed(7, "3.0.1", 2, number) for number in (0, 1)]
