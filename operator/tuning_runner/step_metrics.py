"""The metric values of one step that come from its episodes. Pure.

Called by engines, which add loss, gradient and durations. Names and meanings: `tuning_contract.metrics`.
"""

import math
from collections.abc import Sequence

from tuning_runner.episodes.record import EpisodeRecord
from tuning_runner.evaluation import judge_metrics
from tuning_runner.groups import failed_ratio, group_reward_stddev, is_scored


def episode_values(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Values of a step from its records with advantages or masks; a value that nothing backs is left out."""
    rewards = [record.reward for record in records if is_scored(record) and record.reward is not None]
    values: dict[str, float] = {}
    if rewards:
        values["reward_mean"] = math.fsum(rewards) / len(rewards)
        values["reward_min"], values["reward_max"] = min(rewards), max(rewards)
    if (spread := group_reward_stddev(records)) is not None:
        values["reward_stddev"] = spread
    if (idle := _idle_groups(records)) is not None:
        values["zero_advantage_group_ratio"] = idle
    values["masked_episode_ratio"] = _mean([record.masked is not None for record in records])
    values["failed_episode_ratio"] = failed_ratio(records)
    values["turns_mean"] = _mean([len(record.turns) for record in records])
    values["rows_per_episode"] = _mean([record.rows for record in records if record.rows])
    turns = [turn for record in records for turn in record.turns]
    if turns:
        values["response_tokens_mean"] = _mean([turn.tokens for turn in turns])
        values["prompt_tokens_mean"] = _mean([turn.prompt_tokens for turn in turns])
        values["response_truncated_ratio"] = _mean([turn.finish == "length" for turn in turns])
    return values | judge_metrics(records)


def _idle_groups(records: Sequence[EpisodeRecord]) -> float | None:
    """Share of the trained groups without any advantage other than 0; None without a trained group."""
    groups: dict[str, list[float]] = {}
    for record in records:
        if record.advantage is not None:
            groups.setdefault(record.group, []).append(record.advantage)
    return _mean([not any(advantages) for advantages in groups.values()]) if groups else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
