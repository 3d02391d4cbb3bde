"""Acceptance: with 1 % and 30 % of the episodes failing by script, none becomes a reward."""

import math
from collections import defaultdict
from typing import Any

import pytest

from tests.unit.runner.episodes.scripted import ScriptedPolicy, a_bench
from tuning_contract.algorithms import Advantage
from tuning_contract.outcomes import Outcome
from tuning_runner.groups import assign, failed_ratio, step_failure

TASKS, MEMBERS = 10, 10


@pytest.mark.parametrize(("share", "fails_attempt"), [(0.01, False), (0.30, True)])
async def test_advantages_equal_those_worked_out_by_hand_over_the_survivors(share: float, fails_attempt: bool) -> None:
    failing = round(share * TASKS * MEMBERS)
    asked = 0

    def script(_prompt: str, _request: Any) -> str:
        nonlocal asked
        asked += 1
        # 37 is coprime to 100, so exactly `failing` of 100 episodes fail, spread over tasks.
        return "broken" if asked * 37 % (TASKS * MEMBERS) < failing else str(asked % 7)

    tasks = [{"question": f"number {place}"} for place in range(TASKS)]
    async with a_bench("fails_by_schedule", "number", policy=ScriptedPolicy(script), size=8) as bench:
        records = [result.record for result in await bench.run(tasks, group_size=MEMBERS)]

    failed = [record for record in records if record.outcome is Outcome.ENVIRONMENT_ERROR]
    assert len(failed) == failing
    assert failed_ratio(records) == pytest.approx(share)
    assert [record.reward for record in failed] == [None] * failing
    assert all(
        record.outcome is Outcome.COMPLETED and record.reward is not None for record in records if record not in failed
    )

    survivors = defaultdict(list)
    for record in records:
        if record.reward is not None:
            survivors[record.group].append(record.reward)
    for record, assignment in zip(records, assign(records, Advantage.GROUP, min_group_size=2), strict=True):
        if record in failed:
            assert (assignment.advantage, assignment.masked) == (None, "EnvironmentError")
            continue
        rewards = survivors[record.group]
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
        assert record.reward is not None
        assert assignment.advantage == pytest.approx((record.reward - mean) / (deviation + 1e-4), abs=1e-12)
    assert (step_failure(records, max_failed_ratio=0.25) is not None) == fails_attempt
