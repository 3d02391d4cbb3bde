"""`python -m tuning_runner` as the Ray job starts it, with the tiny model: it learns, resumes, fails with a cause."""

import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.runner.documents import DIRECTORY, TINY, a_run_document, an_algorithm
from tests.unit.runner.volumes import Volume
from tuning_contract.checkpoint import complete_checkpoints, damage
from tuning_contract.metrics import EVALUATION, TRAINER
from tuning_contract.run_document import DatasetSettings, RunDocument, WorkflowSettings
from tuning_contract.schedule import schedule
from tuning_runner.dataset import load_dataset
from tuning_runner.episodes.record import task_id

pytestmark = pytest.mark.model
pytest.importorskip("torch")
STEPS = 24
KILL_AFTER = 12


def kill_when(process: subprocess.Popen, path: Path) -> None:
    """Kill -9 as soon as a file is there."""
    deadline = time.monotonic() + 240
    while not path.exists():
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def finished(tiny_model, tmp_path_factory) -> tuple[RunDocument, Volume]:
    """A run that was killed after step 12 and finished by its second attempt."""
    volume = Volume(tmp_path_factory.mktemp("volume"))
    algorithm = an_algorithm(steps=STEPS, save_every_steps=4, evaluate_every_steps=8, learning_rate=2e-3)
    run = a_run_document(tiny_model, algorithm=algorithm)
    kill_when(volume.start(run, attempt=1), volume.run.checkpoint(KILL_AFTER) / "COMPLETE")
    torn = volume.run.checkpoint(KILL_AFTER + 1)
    torn.mkdir()
    (torn / "training_state.pt").write_bytes(b"half")
    code, output = volume.execute(run, attempt=2)
    assert code == 0, output
    return run, volume


def test_the_result_proves_success(finished):
    run, volume = finished
    result = volume.result
    assert result.complete
    assert (result.step, result.attempt, result.run_digest, result.cause) == (STEPS, 2, run.digest, "")
    assert result.checkpoint == f"{DIRECTORY}/checkpoints/step-{STEPS:06d}"
    assert result.final_model == f"{DIRECTORY}/final"
    assert [(figures.dataset, figures.step) for figures in result.evaluation] == [("heldout", 0), ("heldout", STEPS)]
    assert result.metrics["reward_mean"] == volume.records(TRAINER)[-1].values["reward_mean"]


def test_the_reward_rises(finished):
    _, volume = finished
    rewards = [record.values["reward_mean"] for record in volume.records(TRAINER)]
    first, last = sum(rewards[:4]) / 4, sum(rewards[-4:]) / 4
    assert first < 0.35
    assert last > first + 0.15


def test_every_step_changes_the_weights_and_has_one_record(finished):
    _, volume = finished
    log = volume.log(1) + volume.log(2)
    digests = [line.rpartition(" ")[2] for line in log.splitlines() if "weights sha256" in line]
    assert len(set(digests)) == len(digests) >= STEPS
    second = [record.step for record in volume.records(TRAINER) if record.attempt == 2]
    assert second == list(range(KILL_AFTER + 1, STEPS + 1))
    values = volume.records(TRAINER)[-1].values
    assert values["optimizer_steps"] == STEPS
    assert values["episodes"] == STEPS * 20 * 16
    for name in ("policy_loss", "kl", "entropy", "gradient_norm", "learning_rate", "step_seconds", "reward_stddev"):
        assert name in values


def test_a_resumed_run_goes_on_with_numbering_and_schedule(finished):
    run, volume = finished
    assert f"resuming after step {KILL_AFTER}" in volume.log(2)
    assert f"step-{KILL_AFTER + 1:06d} has no COMPLETE manifest" in volume.log(2)
    data = load_dataset(Path(run.dataset.path))
    for step in (1, KILL_AFTER, KILL_AFTER + 1, STEPS):
        lines = [json.loads(line) for line in volume.run.episodes(step).read_text().splitlines()]
        trained = [line for line in lines if line["mode"] == "train"]
        numbers = schedule(data.digest, run.seed, "Shuffle", len(data.rows), run.algorithm.batch_size, step)
        expected = [task_id(data.rows[number]) for number in numbers for _ in range(run.algorithm.group_size)]
        newest = max(line["runAttempt"] for line in trained)
        assert [line["taskId"] for line in trained if line["runAttempt"] == newest] == expected
        assert {line["policyVersion"] for line in trained} == {step - 1}


def test_the_base_model_is_judged_once_over_both_attempts_and_the_policy_at_its_intervals(finished):
    _, volume = finished
    found = [(record.attempt, record.step) for record in volume.records(EVALUATION)]
    assert found == [(1, 0), (1, 8), (2, 16), (2, STEPS)]
    assert all(record.values["episodes"] == 20 for record in volume.records(EVALUATION))


def test_kept_checkpoints_are_whole_and_torn_ones_are_gone(finished):
    _, volume = finished
    found = complete_checkpoints(volume.run.checkpoints)
    assert [manifest.step for _, manifest in found] == [STEPS - 4, STEPS]
    assert [damage(folder, manifest) for folder, manifest in found] == ["", ""]
    assert sorted(path.name for path in volume.run.checkpoints.iterdir()) == sorted(folder.name for folder, _ in found)
    assert found[-1][1].position == STEPS * 20


def test_the_final_model_loads_with_plain_transformers_and_is_the_tuned_one(finished, tiny_model):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, volume = finished
    tokenizer = AutoTokenizer.from_pretrained(str(volume.run.final))
    question = [{"role": "user", "content": "What is 1 + 2?"}]
    base = AutoTokenizer.from_pretrained(str(tiny_model))
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert text == base.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    right = {}
    for name, folder in (("tuned", volume.run.final), ("base", tiny_model)):
        model = AutoModelForCausalLM.from_pretrained(str(folder)).eval()
        rows = [json.loads(line) for line in (TINY / "train.jsonl").read_text().splitlines()]
        total = 0.0
        for row in rows:
            asked = [{"role": "user", "content": row["question"]}]
            prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
            ids = torch.tensor([tokenizer(prompt)["input_ids"] + tokenizer(row["answer"])["input_ids"]])
            with torch.no_grad():
                total += float(model(ids).logits[0, -2].softmax(-1)[ids[0, -1]])
        right[name] = total / len(rows)
    assert right["tuned"] > right["base"] + 0.1


def test_provenance_names_versions_and_files(finished):
    run, volume = finished
    document = json.loads(volume.run.provenance.read_text())
    assert document["run"]["digest"] == run.digest
    assert document["packages"]["trl"] == "1.16.0"
    assert "model.safetensors" in document["files"]


def test_tensorboard_events_are_written(finished):
    _, volume = finished
    assert list(volume.run.events.glob("events.out.tfevents.*"))


def test_a_runner_that_starts_on_a_complete_result_ends_at_once(finished):
    run, volume = finished
    before = volume.run.result.read_text()
    started = time.monotonic()
    code, output = volume.execute(run, attempt=3)
    assert code == 0
    assert "nothing to do" in output
    assert time.monotonic() - started < 10
    assert volume.run.result.read_text() == before


def test_other_settings_refuse_the_checkpoint_and_name_the_field(finished):
    run, volume = finished
    volume.run.result.rename(volume.run.result.with_suffix(".kept"))
    try:
        changed = replace(run, algorithm=replace(run.algorithm, group_size=8))
        code, _ = volume.execute(changed, attempt=4)
        assert code == 10
        assert volume.result.cause == "ConfigInvalid"
        assert "groupSize (16 there, 8 here)" in volume.result.message
    finally:
        volume.run.result.with_suffix(".kept").rename(volume.run.result)


RAISING = """
import os
from dataclasses import dataclass, field

@dataclass
class Output:
    reward: float = None
    response: str = None
    metrics: dict = field(default_factory=dict)

async def always(task, model):
    raise RuntimeError("the price list is not there")

async def later(task, model):
    reply = await model([{"role": "user", "content": task["question"]}], max_tokens=2)
    # One file for each episode: the preflight's three, the base model's 20, one step's 320.
    with open(os.environ["EPISODES_LOG"], "a") as log:
        log.write(".")
    if os.path.getsize(os.environ["EPISODES_LOG"]) > 343:
        raise RuntimeError("the second step is too much")
    return Output(response="x", reward=0.5)
"""


@pytest.fixture
def raising(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "raising_agent.py").write_text(RAISING)
    monkeypatch.setenv("EPISODES_LOG", str(tmp_path / "episodes.log"))
    return folder


def test_a_workflow_that_raises_in_every_episode_fails_the_preflight_with_the_users_text(tiny_model, tmp_path, raising):
    volume = Volume(tmp_path)
    run = a_run_document(tiny_model, workflow=WorkflowSettings("raising_agent:always"))
    code, output = volume.execute(run, source=raising)
    assert code == 10, output
    assert (volume.result.outcome, volume.result.cause, volume.result.step) == ("Failed", "WorkflowError", 0)
    assert "the price list is not there" in volume.result.message
    assert "raising_agent.py" in volume.result.message
    assert not volume.run.metrics.exists() or not volume.records(TRAINER)


def test_a_workflow_that_starts_raising_in_the_second_step_fails_there_with_the_users_text(
    tiny_model, tmp_path, raising
):
    volume = Volume(tmp_path)
    run = a_run_document(tiny_model, workflow=WorkflowSettings("raising_agent:later"))
    code, output = volume.execute(run, source=raising)
    assert code == 10, output
    assert (volume.result.cause, volume.result.step, volume.result.target_steps) == ("WorkflowError", 1, 4)
    assert "the second step is too much" in volume.result.message
    outcomes = [json.loads(line)["outcome"] for line in volume.run.episodes(2).read_text().splitlines()]
    assert set(outcomes) == {"AgentError"}


JUDGES = """
import asyncio
from tiny_agent import Output, judge, run

async def nan(task, response):
    return Output(reward=float("nan"))

async def hangs(task, response):
    await asyncio.sleep(600)
"""


@pytest.mark.parametrize(
    ("judge", "cause", "text"),
    [
        ("judges:nan", "WorkflowError", "the judge returned a reward that is not finite: nan"),
        ("judges:hangs", "JudgeUnavailable", "the judge took longer than `rollout.limits.seconds`"),
        ("judges:nobody", "ConfigInvalid", "workflow.judge: module judges has no function 'nobody'"),
    ],
)
def test_a_judge_that_gives_no_grade_fails_the_preflight_with_its_cause(tiny_model, tmp_path, judge, cause, text):
    (tmp_path / "judges.py").write_text(JUDGES)
    (tmp_path / "volume").mkdir()
    volume = Volume(tmp_path / "volume")
    run = a_run_document(tiny_model, workflow=WorkflowSettings("judges:run", judge))
    run = replace(run, rollout=replace(run.rollout, limits=replace(run.rollout.limits, seconds=3)))
    code, output = volume.execute(run, source=Path(f"{tmp_path}:{TINY}"))
    assert code == 10, output
    assert (volume.result.cause, volume.result.step) == (cause, 0)
    assert text in volume.result.message, volume.result.message
    assert volume.run.stopped(1).exists()


def test_a_dataset_that_does_not_exist_fails_within_seconds(tmp_path):
    volume = Volume(tmp_path)
    run = a_run_document(dataset=DatasetSettings("/data/tasks.jsonl"))
    started = time.monotonic()
    code, output = volume.execute(run)
    assert code == 10, output
    assert volume.result.cause == "DatasetInvalid"
    assert "/data/tasks.jsonl does not exist" in volume.result.message
    assert time.monotonic() - started < 20
