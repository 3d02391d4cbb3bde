"""What a step says of its episodes: metric values, transcripts, metric records, and the preflight's judgement."""

import json
import math
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from tests.unit.runner.documents import a_run_document
from tuning_contract.causes import Cause
from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import EVALUATION, NAMES, TRAINER, MetricRecord
from tuning_contract.outcomes import Outcome
from tuning_contract.run_document import Sampling
from tuning_runner.episodes import journal
from tuning_runner.episodes.batch import EpisodeResult
from tuning_runner.episodes.errors import RunError
from tuning_runner.episodes.record import EpisodeError, EpisodeRecord, TurnRecord
from tuning_runner.episodes.turns import Turn
from tuning_runner.metrics_writer import MetricsWriter, written_records
from tuning_runner.preflight import check_dry_episodes, dry_batch, require_free_space
from tuning_runner.step_metrics import episode_values
from tuning_runner.transcripts import transcripts


def a_turn(reply="5", question="2 + 3 =", finish="stop", history=()) -> Turn:
    messages = (*history, {"role": "user", "content": question})
    return Turn(
        number=0, prompt_ids=(1,) * 10, completion_ids=(2,) * 4, logprobs=(-1.0,) * 4, finish=finish, seconds=0.1,
        seed=1,
        sampling=Sampling(), messages=messages, reply={"role": "assistant", "content": reply}, stitched=False,
        drifted=False,
    )  # fmt: skip


def a_result(
    name="1.0.0", reward: float | None = 1.0, outcome=Outcome.COMPLETED, turns=None, error=None, task=None, **metrics
) -> EpisodeResult:
    turns = (a_turn(),) if turns is None else tuple(turns)
    record = EpisodeRecord(
        mode="train", episode=name, group=name.rpartition(".")[0], task_id="", run_attempt=1, tries=1, seed=0,
        policy_version=0, outcome=outcome, reward=reward, rows=len(turns), error=error, metrics=metrics,
        turns=tuple(TurnRecord(len(t.prompt_ids), len(t.completion_ids), t.seconds, t.finish, {}) for t in turns),
    )  # fmt: skip
    return EpisodeResult(record, task or {"question": "2 + 3", "answer": "5"}, turns)


def failed(name="1.0.1", outcome=Outcome.MODEL_ERROR, text="no answer", where="gateway", turns=()) -> EpisodeResult:
    return a_result(name, None, outcome, turns=turns, error=EpisodeError(where, "Failure", text))


def test_values_of_a_step_follow_their_definitions():
    results = [
        a_result("1.0.0", 1.0, turns=[a_turn(), a_turn(finish="length")], tool_called=1.0),
        a_result("1.0.1", 0.0, tool_called=0.0),
        a_result("1.1.0", 1.0),
        a_result("1.1.1", 1.0),
        failed("1.1.2"),
    ]
    advantages = [1.0, -1.0, 0.0, 0.0, None]
    records = [
        r.record.assigned(a, None if a is not None else "ModelError") for r, a in zip(results, advantages, strict=True)
    ]
    values = episode_values(records)
    assert values["reward_mean"] == 0.75
    assert (values["reward_min"], values["reward_max"]) == (0.0, 1.0)
    assert values["reward_stddev"] == pytest.approx(math.sqrt(0.5) / 2)
    assert values["zero_advantage_group_ratio"] == 0.5
    assert (values["masked_episode_ratio"], values["failed_episode_ratio"]) == (0.2, 0.2)
    assert values["turns_mean"] == 1.0
    assert values["rows_per_episode"] == 1.25
    assert (values["prompt_tokens_mean"], values["response_tokens_mean"]) == (10, 4)
    assert values["response_truncated_ratio"] == 0.2
    assert values["judge/tool_called"] == 0.5
    assert {name for name in values if not name.startswith("judge/")} <= NAMES[TRAINER]


def test_a_step_without_a_score_has_no_reward():
    values = episode_values([failed().record.assigned(None, "ModelError")])
    assert not {"reward_mean", "reward_min", "reward_stddev", "zero_advantage_group_ratio"} & set(values)
    assert values["failed_episode_ratio"] == 1.0


def test_a_good_and_a_bad_transcript_show_each_message_once():
    first = a_turn("calc(2 + 3)")
    second = a_turn("5\n", "result 5", history=(*first.messages, first.reply))
    lines = transcripts([a_result("3.0.0", 0.25), a_result("3.0.1", 1.0, turns=[first, second]), failed("3.0.2")])
    assert lines == [
        "--- a good episode (3.0.1): reward 1, 2 turns",
        "    user: 2 + 3 =",
        "    assistant: calc(2 + 3)",
        "    user: result 5",
        "    assistant: 5\\n",
        "--- a bad episode (3.0.0): reward 0.25, 1 turns",
        "    user: 2 + 3 =",
        "    assistant: 5",
    ]


def test_equal_rewards_give_one_transcript_and_no_score_gives_none():
    assert transcripts([a_result(), a_result("1.0.1")])[0].startswith("--- a typical episode")
    assert transcripts([failed()]) == []


def test_metric_records_are_on_the_disk_line_by_line_and_refuse_unknown_names(tmp_path):
    directory = RunDirectory(tmp_path)
    with MetricsWriter(directory, 2, 7, clock=lambda: 5.0) as writer:
        writer.evaluation("heldout", 0, {"mean": 0.5, "judge/called": 1.0})
        assert writer.last_step == 0
        writer.step(1, {"reward_mean": 0.25, "kl": math.nan})
        lines = directory.metrics.read_text().splitlines()
        with pytest.raises(ValueError, match="`rewards` is no metric"):
            writer.step(2, {"rewards": 1.0})
        assert writer.last_step == 2
    assert [MetricRecord.from_line(line) for line in lines] == [
        MetricRecord(5.0, 2, EVALUATION, 0, 7, {"mean": 0.5, "judge/called": 1.0}, "heldout"),
        MetricRecord(5.0, 2, TRAINER, 1, 7, {"reward_mean": 0.25}),
    ]


def test_half_a_line_of_a_killed_attempt_swallows_no_record_of_the_next(tmp_path):
    directory = RunDirectory(tmp_path)
    for attempt in (1, 2):
        with MetricsWriter(directory, attempt, 7, clock=lambda: 5.0) as writer:
            writer.evaluation(f"held{attempt}", 0, {"mean": 0.5})
        if attempt == 1:
            with directory.metrics.open("a") as file:
                file.write('{"ts":5.0,"attempt":1,"ro')
        journal.append(directory.episodes(1), [a_result(f"1.0.{attempt}").record])
        if attempt == 1:
            os.truncate(directory.episodes(1), directory.episodes(1).stat().st_size - 9)
    assert [record.dataset for record in written_records(directory)] == ["held1", "held2"]
    torn, whole = directory.episodes(1).read_text().splitlines()
    assert not torn.endswith("}")
    assert json.loads(whole)["episode"] == "1.0.2"


def test_a_step_that_is_trained_again_takes_the_place_of_the_first_and_of_all_that_came_after_it(tmp_path):
    directory = RunDirectory(tmp_path)
    with MetricsWriter(directory, 1, 7) as writer:
        writer.evaluation("heldout", 0, {"mean": 0.1})
        for step in (1, 2, 3):
            writer.step(step, {"reward_mean": 0.1})
        writer.evaluation("heldout", 3, {"mean": 0.1})
    assert [(r.attempt, r.step) for r in written_records(directory)] == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 3)]
    with MetricsWriter(directory, 2, 7, resumed_step=1) as writer:
        writer.evaluation("heldout", 1, {"mean": 0.2})
        writer.step(2, {"reward_mean": 0.2})
    assert [(r.attempt, r.step) for r in written_records(directory)] == [(1, 0), (1, 1), (2, 1), (2, 2)]
    with MetricsWriter(directory, 3, 7, resumed_step=2) as writer:
        writer.step(3, {"reward_mean": 0.3})
    assert [(r.attempt, r.step) for r in written_records(directory)] == [(1, 0), (1, 1), (2, 1), (2, 2), (3, 3)]
    assert len(directory.metrics.read_text().splitlines()) == 8  # nothing is taken out of the file


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    directory = RunDirectory(tmp_path)
    with MetricsWriter(directory, 1, 7, clock=lambda: 1.0) as writer:
        for step in (1, 2, 3):
            writer.step(step, {"reward_mean": 0.125})
    time.sleep(1.1)  # TensorBoard reads the files in the order of their names, which end in seconds
    with MetricsWriter(directory, 2, 7, resumed_step=1, clock=lambda: 2.0) as writer:
        writer.step(2, {"reward_mean": 0.25})
    shown: dict[int, float] = {}
    for file in sorted(directory.events.iterdir()):
        for event in events_of(file):
            if event.session_log.status == SessionLog.START:
                shown = {step: value for step, value in shown.items() if step < event.step}
            for value in event.summary.value:
                shown[event.step] = value.simple_value
    assert shown == {1: 0.125, 2: 0.25}


def events_of(file: Path) -> list[Event]:
    """The records of an event file: length, checksum, bytes, checksum."""
    found, rest = [], file.read_bytes()
    while rest:
        length = int.from_bytes(rest[:8], "little")
        found.append(Event.FromString(rest[12 : 12 + length]))
        rest = rest[16 + length :]
    return found


def test_the_preflight_runs_three_different_tasks_once():
    batch = dry_batch(a_run_document(), [{"n": number} for number in range(5)])
    assert ([task["n"] for task in batch.tasks], batch.group_size, batch.mode) == ([0, 1, 2], 1, "dry")


def test_dry_episodes_that_all_raise_fail_with_the_users_text_first():
    results = [failed(f"0.{n}.0", Outcome.AGENT_ERROR, "KeyError: 'price'\n  agent.py", "workflow") for n in range(3)]
    with pytest.raises(RunError) as caught:
        check_dry_episodes(results, a_run_document(), lambda line: None)
    assert caught.value.cause is Cause.WORKFLOW_ERROR
    assert caught.value.message.startswith("KeyError: 'price'")
    assert "3 AgentError" in caught.value.message


def test_dry_episodes_without_a_judge_service_name_the_service():
    results = [failed(f"0.{n}.0", Outcome.JUDGE_ERROR, "503", "judge", [a_turn()]) for n in range(3)]
    with pytest.raises(RunError) as caught:
        check_dry_episodes(results, a_run_document(), lambda line: None)
    assert caught.value.cause is Cause.JUDGE_UNAVAILABLE


def test_one_good_dry_episode_is_enough():
    said: list[str] = []
    results = [a_result("0.0.0"), failed("0.1.0", Outcome.AGENT_ERROR, where="workflow")]
    check_dry_episodes(results, a_run_document(), said.append)
    assert said == ["preflight: 2 dry episodes are fine; the longest turn has 14 tokens"]


def test_a_workflow_that_never_asks_the_model_is_refused():
    with pytest.raises(RunError, match="no dry episode asked the model"):
        check_dry_episodes([a_result(turns=())], a_run_document(), lambda line: None)


def test_a_hidden_value_in_the_first_message_is_warned_about():
    said: list[str] = []
    leaking = a_result(task={"answer": "the long secret"}, turns=[a_turn(question="say: the long secret")])
    check_dry_episodes([leaking], a_run_document(), said.append)
    assert said[0] == "warning: the value of the hidden field `answer` stands in the first message to the model"


def test_a_full_volume_is_refused_before_training(tmp_path):
    require_free_space(RunDirectory(tmp_path), 1)
    with pytest.raises(RunError, match="MiB left") as caught:
        require_free_space(RunDirectory(tmp_path), 1 << 60)
    assert caught.value.cause is Cause.STORAGE_FAILED


def test_what_an_earlier_attempt_saved_makes_room_for_a_retry_on_the_same_volume(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    for folder, size in ((directory.checkpoint(1), 4 << 20), (directory.final, 2 << 20), (directory.logs(1), 9 << 20)):
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(size))
    require_free_space(directory, 9 << 20)
    with pytest.raises(RunError, match="has 3 MiB left; checkpoints and final model need 4 MiB"):
        require_free_space(directory, 10 << 20)
