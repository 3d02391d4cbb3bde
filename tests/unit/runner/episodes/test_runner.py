"""Episodes end to end: real worker processes, real HTTP, a scripted policy."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runner.episodes.scripted import (
    Bench,
    CharacterRenderer,
    ScriptedPolicy,
    a_bench,
    some_limits,
)
from tuning_contract.algorithms import Advantage
from tuning_contract.causes import Cause
from tuning_contract.outcomes import Outcome
from tuning_runner.console import say
from tuning_runner.episodes import journal
from tuning_runner.episodes.batch import EpisodeResult
from tuning_runner.episodes.errors import UserCodeError
from tuning_runner.episodes.workers import WorkerLease
from tuning_runner.groups import assign


def a_task(does: str = "answer", **fields: Any) -> dict[str, Any]:
    return {"question": "hi", "answer": "hi", "does": does} | fields


def endings(results: list[EpisodeResult]) -> dict[str, Outcome]:
    return {result.task["does"]: result.record.outcome for result in results}


async def test_a_step_runs_every_task_in_groups_and_records_each_episode(tmp_path: Path) -> None:
    async with a_bench() as bench:
        results = await bench.run(
            [{"question": "hi", "answer": "hi"}, {"question": "yo", "answer": "no"}], group_size=3
        )
    records = [result.record for result in results]
    assert [record.episode for record in records] == ["3.0.0", "3.0.1", "3.0.2", "3.1.0", "3.1.1", "3.1.2"]
    assert [record.reward for record in records] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert {record.outcome for record in records} == {Outcome.COMPLETED}
    assert [record.group for record in records] == ["3.0"] * 3 + ["3.1"] * 3
    assert len({record.seed for record in records}) == 6
    assert results[0].response == "hi"
    assert [len(result.rows) for result in results] == [1] * 6
    path = tmp_path / "episodes" / "step-000003.jsonl"
    journal.append(path, [record.assigned(0.5, None) for record in records])
    line = json.loads(path.read_text().splitlines()[0])
    assert line["turns"] == [
        {
            "promptTokens": 21,
            "tokens": 2,
            "seconds": 0.01,
            "finish": "stop",
            "sampling": {"temperature": 1.0, "topP": 1.0},
        }
    ]
    expected = {"mode": "train", "policyVersion": 2, "tries": 1, "advantage": 0.5, "masked": None, "error": None}
    assert line | expected == line
    assert line["metrics"] == {"asked": 1.0, "length": 2.0}
    assert len(line["taskId"]) == len(line["judgeDigest"]) == 16


async def test_a_growing_conversation_is_one_training_row() -> None:
    async with a_bench("two_turns") as bench:
        (result,) = await bench.run([{"question": "hi", "answer": "again"}])
    assert result.record.reward == 1.0
    assert len(result.turns) == 2
    (row,) = result.rows
    assert sum(row.mask) == sum(len(turn.completion_ids) for turn in result.turns)


async def test_user_code_that_dies_hangs_or_raises_leaves_the_other_episodes_unharmed() -> None:
    deeds = ["exit", "segfault", "loop", "raise", "sys.exit", "environment", "connection", "wrapped connection"]
    tasks = [a_task(does) for does in [*deeds, "wrong output", "sleep", "sleep first"]]
    healthy = [a_task("answer", question=f"number {place}", answer=f"number {place}") for place in range(8)]
    started = time.monotonic()
    async with a_bench("scripted", size=6, seconds=0.7) as bench:
        results = await bench.run([*tasks, *healthy])
    assert [result.record.reward for result in results[-8:]] == [1.0] * 8
    assert endings(results[:-8]) == {
        "exit": Outcome.LOST,
        "segfault": Outcome.LOST,
        "loop": Outcome.LIMIT_REACHED,
        "raise": Outcome.AGENT_ERROR,
        "sys.exit": Outcome.AGENT_ERROR,
        "environment": Outcome.ENVIRONMENT_ERROR,
        "connection": Outcome.ENVIRONMENT_ERROR,
        "wrapped connection": Outcome.ENVIRONMENT_ERROR,
        "wrong output": Outcome.AGENT_ERROR,
        "sleep": Outcome.LIMIT_REACHED,
        "sleep first": Outcome.TIMED_OUT,
    }
    assert time.monotonic() - started < 8
    errors = {result.task["does"]: result.record.error for result in results[:-8]}
    assert errors["exit"] is not None
    assert "exit code 3" in errors["exit"].text
    assert errors["segfault"] is not None
    assert "SIGSEGV" in errors["segfault"].text
    assert errors["raise"] is not None
    assert errors["raise"].text.startswith("ValueError: cannot use hi\n")
    assert "agents.py" in errors["raise"].text
    assert errors["wrong output"] is not None
    assert "must return a WorkflowOutput" in errors["wrong output"].text


async def test_half_a_letter_in_a_users_text_is_written_as_a_question_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_bench("scripted", judge="scripted_judge") as bench:
        raised, measured = await bench.run([a_task("raise half a letter"), a_task("measure half a letter")])
    path = tmp_path / "step-000003.jsonl"
    journal.append(path, [raised.record, measured.record])
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["error"]["text"].startswith("ValueError: cannot use ?\n")
    assert (second["metrics"], second["reward"], measured.response) == ({"?": 1.0}, 1.0, "?")
    say("cannot use \ud83d")
    assert capsys.readouterr().out == "cannot use ?\n"


async def test_an_episode_cut_off_by_its_limit_is_graded_on_the_last_reply() -> None:
    async with a_bench("scripted", seconds=0.5, limits=some_limits(turns=3)) as bench:
        results = await bench.run([a_task("sleep"), a_task("loop"), a_task("many turns", answer="turn 1")])
    assert [result.record.outcome for result in results] == [Outcome.LIMIT_REACHED] * 3
    assert [result.record.reward for result in results] == [1.0] * 3
    assert [result.response for result in results] == ["hi", "hi", "turn 1"]
    assert len(results[2].turns) == 3
    assert results[2].record.error is not None
    assert results[2].record.error.type == "turn_limit"


async def test_a_judge_that_cannot_read_a_bare_reply_leaves_the_cut_off_episode_without_a_reward() -> None:
    async with a_bench("returns_steps", "reads_steps", seconds=0.5) as bench:
        whole, cut_off = await bench.run([a_task(), a_task("sleep")])
    assert (whole.record.outcome, whole.record.reward) == (Outcome.COMPLETED, 1.0)
    assert (cut_off.record.outcome, cut_off.record.reward) == (Outcome.LIMIT_REACHED, None)
    assert cut_off.record.error is not None
    assert "reached limits.seconds; no grade for the last reply" in cut_off.record.error.text
    assert "TypeError: string indices" in cut_off.record.error.text
    assert assign([cut_off.record], Advantage.GROUP, min_group_size=1)[0].masked == "Unscored"


async def test_a_blocking_call_to_the_model_delays_no_other_episode() -> None:
    policy = ScriptedPolicy(delay=0.3)
    async with a_bench("blocking", policy=policy, size=8) as bench:
        await bench.run([a_task()], group_size=8)  # forks the workers
        started = time.monotonic()
        results = await bench.run([a_task()], group_size=8)
    assert [result.record.reward for result in results] == [1.0] * 8
    assert time.monotonic() - started < 8 * 0.3 - 0.5


async def test_a_failing_model_is_a_model_error_whatever_the_workflow_makes_of_it_and_is_tried_again() -> None:
    policy = ScriptedPolicy(failures=[RuntimeError("no weights")] * 3)
    async with a_bench("scripted", policy=policy, size=1, max_attempts=2) as bench:
        lost, found = await bench.run([a_task("answer"), a_task("answer")])
    assert (lost.record.outcome, lost.record.tries, lost.record.reward) == (Outcome.MODEL_ERROR, 2, None)
    assert lost.record.error is not None
    assert lost.record.error.where == "gateway"
    assert "no weights" in lost.record.error.text
    assert (found.record.outcome, found.record.tries, found.record.reward) == (Outcome.COMPLETED, 2, 1.0)


async def test_a_model_failure_that_the_workflow_swallows_never_becomes_a_reward() -> None:
    def script(prompt: str, _request: Any) -> str:
        if "fails" in prompt:
            raise RuntimeError("no weights")
        return "hi"

    async with a_bench("scripted", policy=ScriptedPolicy(script)) as bench:
        (result,) = await bench.run([a_task("swallow", answer="nothing")])
    assert (result.record.outcome, result.record.reward) == (Outcome.MODEL_ERROR, None)


async def test_a_model_failure_counts_until_the_same_request_gets_its_turn() -> None:
    failed = set()

    def script(prompt: str, request: Any) -> str:
        if "fails once" in prompt and request.prompt_ids not in failed:
            failed.add(request.prompt_ids)
            raise RuntimeError("no weights")
        return "hi"

    for does, outcome, reward in (
        ("swallow and go on", Outcome.MODEL_ERROR, None),
        ("ask again", Outcome.COMPLETED, 1.0),
    ):
        failed.clear()
        async with a_bench("scripted", policy=ScriptedPolicy(script)) as bench:
            (result,) = await bench.run([a_task(does)])
        assert failed
        assert (result.record.outcome, result.record.reward) == (outcome, reward)


async def test_a_refused_request_is_a_model_error_of_the_workflows_own_and_not_tried_again() -> None:
    async with a_bench("scripted", max_attempts=3) as bench:
        (result,) = await bench.run([a_task("refused request")])
    assert (result.record.outcome, result.record.tries) == (Outcome.MODEL_ERROR, 1)
    assert result.record.error is not None
    assert result.record.error.where == "workflow"
    assert "temperature" in result.record.error.text


async def test_infrastructure_failures_are_tried_again_and_agent_errors_are_not() -> None:
    async with a_bench("scripted", max_attempts=3) as bench:
        environment, own = await bench.run([a_task("environment"), a_task("raise")])
    assert (environment.record.outcome, environment.record.tries) == (Outcome.ENVIRONMENT_ERROR, 3)
    assert (own.record.outcome, own.record.tries) == (Outcome.AGENT_ERROR, 1)
    seeds = {request.seed for request in bench.policy.requests}
    assert len(seeds) == 4  # each try has noise of its own


async def test_a_judge_whose_service_fails_or_that_never_ends_is_a_judge_error() -> None:
    tasks = [a_task(judge=name) for name in ("loop", "sleep", "connection", "rate limit", "exit", "score")]
    async with a_bench("scripted", "scripted_judge", seconds=0.5, size=6) as bench:
        results = await bench.run(tasks)
    assert {result.task["judge"]: result.record.outcome for result in results} == {
        "loop": Outcome.JUDGE_ERROR,
        "sleep": Outcome.JUDGE_ERROR,
        "connection": Outcome.JUDGE_ERROR,
        "rate limit": Outcome.JUDGE_ERROR,
        "exit": Outcome.LOST,
        "score": Outcome.COMPLETED,
    }
    assert [result.record.reward for result in results] == [None] * 5 + [1.0]


@pytest.mark.parametrize(
    ("judge", "text"),
    [("raise", "answer_key"), ("nan", "not finite: nan"), ("none", "must return"), ("not found", "HTTP 404")],
)
async def test_any_other_failure_of_the_judge_ends_the_run_with_the_users_own_text(judge: str, text: str) -> None:
    async with a_bench("scripted", "scripted_judge", size=1) as bench:
        with pytest.raises(UserCodeError, match=text) as raised:
            await bench.run([a_task(judge="score"), a_task(judge=judge), a_task("sleep")])
        assert raised.value.cause is Cause.WORKFLOW_ERROR
        assert [record.episode for record in raised.value.records] == ["3.0.0"]
        # The bench is whole: the next step runs.
        (result,) = await bench.run([a_task(judge="score")], step=4)
    assert result.record.reward == 1.0
    if judge == "raise":
        assert "scripted_judge" in raised.value.message
        assert "worker_process" not in raised.value.message


async def test_without_a_judge_the_workflows_own_reward_counts_and_must_be_finite() -> None:
    async with a_bench("without_judge", judge=None) as bench:
        (result,) = await bench.run([{"reward": 0.25}])
        assert result.record.reward == 0.25
        for reward, text in ((None, "no reward"), (float("inf"), "not finite: inf")):
            with pytest.raises(UserCodeError, match=text):
                await bench.run([{"reward": reward}])


async def test_hidden_fields_reach_the_judge_only() -> None:
    async with a_bench("shows_task", "compares_tasks", hidden_fields=("answer", "b")) as bench:
        (result,) = await bench.run([{"a": 1, "b": 2, "answer": 3}])
    assert result.response == "['a']"
    assert result.record.metrics == {"seen": 1.0, "all": 3.0}


async def test_a_response_that_no_process_boundary_lets_through_reaches_the_judge() -> None:
    async with a_bench("returns_object", "calls_response", size=1) as bench:
        first = await bench.run([{}], group_size=2)
        again = await bench.run([{}], group_size=2)
    rewards = [result.record.reward for result in first]
    assert len(set(rewards)) == 2
    # The worker's chance is seeded by the episode.
    assert rewards == [result.record.reward for result in again]


async def test_an_abandoned_step_ends_at_once_with_lost_episodes_and_the_next_one_runs() -> None:
    async with a_bench("scripted", size=2) as bench:
        running = asyncio.create_task(bench.run([a_task("sleep")], group_size=4))
        while len(bench.policy.requests) < 2:
            await asyncio.sleep(0.01)
        started = time.monotonic()
        bench.runner.abandon()
        results = await running
        assert time.monotonic() - started < 3
        assert [result.record.outcome for result in results] == [Outcome.LOST] * 4
        assert bench.gateway.open_sessions == 0
        (result,) = await bench.run([a_task()], step=4)
    assert result.record.outcome is Outcome.COMPLETED


@pytest.mark.parametrize("seconds", [0.0, 3.0])
async def test_when_the_time_of_a_batch_is_over_its_running_episodes_are_lost_and_the_next_batch_runs(
    seconds: float,
) -> None:
    async with a_bench("scripted", size=2) as bench:
        started = time.monotonic()
        tasks = [a_task(), a_task("sleep"), a_task("sleep"), a_task()]
        results = await bench.run(tasks, mode="eval:held", seconds=seconds)
        assert time.monotonic() - started < seconds + 5
        expected = [Outcome.COMPLETED if seconds else Outcome.LOST, *[Outcome.LOST] * 3]
        assert [result.record.outcome for result in results] == expected
        assert bench.gateway.open_sessions == 0
        results = await bench.run([a_task(), a_task()], mode="eval:held", seconds=60.0)
        await asyncio.sleep(0.1)
        assert not bench.runner._abandoned.is_set()
    assert [result.record.outcome for result in results] == [Outcome.COMPLETED] * 2


async def test_an_abandoned_step_does_not_wait_for_another_try_of_an_episode_whose_worker_has_died() -> None:
    async with a_bench("scripted", size=1, max_attempts=2, retry_seconds=600.0) as bench:
        running = asyncio.create_task(bench.run([a_task("exit")]))
        while not bench.policy.requests or bench.gateway.open_sessions:
            await asyncio.sleep(0.01)
        bench.runner.abandon()
        (result,) = await asyncio.wait_for(running, 10)
    assert (result.record.outcome, result.record.reward) == (Outcome.LOST, None)


async def test_an_episode_that_ends_in_the_moment_its_step_is_closed_is_late_and_has_no_reward() -> None:
    async with a_bench("without_judge", judge=None, size=1) as bench:
        original = WorkerLease.workflow

        async def workflow(lease: WorkerLease, order: Any, seconds: float) -> dict[str, Any]:
            reply = await original(lease, order, seconds)
            bench.runner.abandon()
            return reply

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WorkerLease, "workflow", workflow)
            (result,) = await bench.run([{"reward": 1.0}])
    assert (result.record.outcome, result.record.reward) == (Outcome.LATE, None)
    assert len(result.turns) == 1


async def test_an_evaluation_draws_the_same_noise_at_every_step_and_training_another_at_each() -> None:
    async def seeds(bench: Bench, **fields: Any) -> list[int]:
        return [result.record.seed for result in await bench.run([a_task()], group_size=2, **fields)]

    async with a_bench() as bench:
        assert await seeds(bench, step=0, mode="eval:held") == await seeds(bench, step=9, mode="eval:held")
        assert await seeds(bench, step=0) != await seeds(bench, step=9)


async def test_agentscopes_chat_model_react_agent_and_outputs_work_as_they_are() -> None:
    pytest.importorskip("agentscope")

    def script(prompt: str, _request: Any) -> str:
        if "|>tools" in prompt and "|>tool\n" not in prompt:
            return 'call add {"a": 2, "b": 3}'
        return prompt.rsplit("<|end|>", 1)[0].rsplit("\n", 1)[1]

    module = "tests.unit.runner.episodes.agentscope_agents"
    options: dict[str, Any] = {"module": module, "policy": ScriptedPolicy(script), "seconds": 60.0}
    async with a_bench("adds", renderer=CharacterRenderer(parses_tool_calls=True), **options) as bench:
        (result,) = await bench.run([{"question": "2 + 3?", "answer": "5"}])
    assert result.record.error is None
    assert result.record.reward == 1.0
    assert [turn.finish for turn in result.turns] == ["tool_calls", "stop"]
    assert json.dumps(result.record.metrics) == '{"length": 1.0}'
