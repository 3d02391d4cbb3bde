"""Each algorithm through `python -m tuning_runner`: the tiny model learns, and the journal shows its advantages."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.unit.runner.documents import TINY, a_run_document, an_algorithm
from tests.unit.runner.volumes import Volume
from tuning_contract.metrics import TRAINER
from tuning_contract.run_document import (
    DatasetSettings,
    RolloutLimits,
    RolloutSettings,
    RunDocument,
)

pytestmark = pytest.mark.model
pytest.importorskip("torch")
STEPS = 16
EPISODES = 320


def a_run(model: Path, tasks: Path, group_size: int, **algorithm: Any) -> RunDocument:
    """A run of 320 episodes a step."""
    hyperparameters = {"steps": STEPS, "save_every_steps": STEPS, "learning_rate": 2e-3} | algorithm
    return a_run_document(
        model,
        dataset=DatasetSettings(str(tasks), hidden_fields=("answer",)),
        algorithm=an_algorithm(group_size=group_size, batch_size=EPISODES // group_size, **hyperparameters),
        rollout=RolloutSettings(2, min(2, group_size), 0.25, 64, RolloutLimits(turns=4, seconds=60)),
    )


def trained(volume: Volume, step: int) -> list[dict[str, Any]]:
    lines = map(json.loads, volume.run.episodes(step).read_text().splitlines())
    return [line for line in lines if line["mode"] == "train"]


def the_reward_rises(volume: Volume) -> bool:
    rewards = [record.values["reward_mean"] for record in volume.records(TRAINER)]
    assert len(rewards) == STEPS
    return sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.07


def test_rloo_learns_from_each_episode_against_the_others_of_its_task(tiny_model, tmp_path):
    volume = Volume(tmp_path)
    code, output = volume.execute(a_run(tiny_model, TINY / "train.jsonl", group_size=16, type="rloo"))
    assert code == 0, output
    assert the_reward_rises(volume), output
    groups: dict[str, list[dict[str, Any]]] = {}
    for episode in trained(volume, STEPS):
        groups.setdefault(episode["group"], []).append(episode)
    assert [len(members) for members in groups.values()] == [16] * 20
    for members in groups.values():
        right = sum(member["reward"] for member in members)
        for member in members:
            expected = member["reward"] - (right - member["reward"]) / 15
            assert member["advantage"] == pytest.approx(expected, abs=1e-12)


def test_reinforceplusplus_learns_from_one_episode_of_each_task(tiny_model, tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text((TINY / "train.jsonl").read_text() * 16)
    volume = Volume(tmp_path)
    code, output = volume.execute(a_run(tiny_model, tasks, group_size=1, type="reinforceplusplus"))
    assert code == 0, output
    assert the_reward_rises(volume), output
    episodes = trained(volume, STEPS)
    assert len({episode["group"] for episode in episodes}) == EPISODES
    mean = sum(episode["reward"] for episode in episodes) / EPISODES
    # Rewards are 0 and 1, so their squares are themselves.
    deviation = math.sqrt(EPISODES * mean * (1 - mean) / (EPISODES - 1))
    for episode in episodes:
        expected = (episode["reward"] - mean) / (deviation + 1e-4)
        assert episode["advantage"] == pytest.approx(expected, abs=1e-12)
    assert all(record.values["zero_advantage_group_ratio"] == 0 for record in volume.records(TRAINER))
