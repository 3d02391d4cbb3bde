"""Which episodes train, and with what advantage.

Engines call `assign` once for each step, on all its records. Not here: retries (`episodes`), the decision
that a step fails (`verdict`), token weights (the engine).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuning_contract.outcomes import INFRASTRUCTURE, SCORED, Outcome

STDDEV_OFFSET = 1e-4
"""Keeps a group of nearly equal rewards from dividing by nothing; the algorithm table's figure."""
SMALL_GROUP = "SmallGroup"
UNSCORED = "Unscored"


class Episode(Protocol):
    """What is read of an episode record."""

    @property
    def group(self) -> str:
        """Episodes of one task share it."""
        ...

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        ...

    @property
    def reward(self) -> float | None:
        """None when it was not scored."""
        ...


class ErrorText(Protocol):
    """What is read of a record's error."""

    @property
    def where(self) -> str:
        """One of workflow, judge, gateway, worker, runner."""
        ...

    @property
    def text(self) -> str:
        """For a person."""
        ...


class FailedEpisode(Episode, Protocol):
    """An episode record with its error."""

    @property
    def error(self) -> ErrorText | None:
        """What went wrong, if something did."""
        ...


@dataclass(frozen=True)
class Assignment:
    """Exactly one of the two is set."""

    advantage: float | None = None
    masked: str | None = None
    """The outcome's name, `SmallGroup`, or `Unscored` (a limit without a judge)."""


def is_scored(episode: Episode) -> bool:
    """Whether its reward counts: the outcome allows one and there is one."""
    return episode.outcome in SCORED and episode.reward is not None


def assign(episodes: Sequence[Episode], min_group_size: int) -> tuple[Assignment, ...]:
    """Advantage or mask of each episode, in the order given.

    advantage = (reward - mean of the group) / (standard deviation of the group + 1e-4), over the scored
    episodes of the group only (GRPO, DeepSeekMath 2024). The standard deviation is the sample's, with
    n - 1, as `torch.std` and TRL compute it; of one reward it is 0. A failed episode is neither a reward of
    0 nor a member: it is left out of mean and deviation.

    Args:
        episodes: all episodes of one step, any number of groups, in any order.
        min_group_size: a group with fewer scored episodes is masked whole.
    """
    rewards: dict[str, list[float]] = {}
    for episode in episodes:
        if is_scored(episode) and episode.reward is not None:
            rewards.setdefault(episode.group, []).append(episode.reward)
    return tuple(_assignment(episode, rewards.get(episode.group, []), min_group_size) for episode in episodes)


def _assignment(episode: Episode, rewards: list[float], min_group_size: int) -> Assignment:
    if episode.outcome not in SCORED:
        return Assignment(masked=episode.outcome.value)
    if episode.reward is None:
        return Assignment(masked=UNSCORED)
    if len(rewards) < min_group_size:
        return Assignment(masked=SMALL_GROUP)
    mean = math.fsum(rewards) / len(rewards)
    return Assignment(advantage=(episode.reward - mean) / (sample_stddev(rewards) + STDDEV_OFFSET))


def sample_stddev(values: Sequence[float]) -> float:
    """Standard deviation with n - 1; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def group_reward_stddev(episodes: Iterable[Episode]) -> float | None:
    """Mean over the groups with at least two scored episodes of the reward's standard deviation; None without one."""
    rewards: dict[str, list[float]] = {}
    for episode in episodes:
        if is_scored(episode) and episode.reward is not None:
            rewards.setdefault(episode.group, []).append(episode.reward)
    spreads = [sample_stddev(values) for values in rewards.values() if len(values) > 1]
    return math.fsum(spreads) / len(spreads) if spreads else None


def is_refused(episode: FailedEpisode) -> bool:
    """Whether the gateway refused what the workflow asked for, which is the workflow's own doing."""
    return episode.outcome == Outcome.MODEL_ERROR and episode.error is not None and episode.error.where == "workflow"


def is_infrastructure_failure(episode: FailedEpisode) -> bool:
    """Whether something failed that is not the agent's own."""
    return episode.outcome in INFRASTRUCTURE and not is_refused(episode)


def failed_ratio(episodes: Sequence[FailedEpisode]) -> float:
    """Share of all episodes that ended by an infrastructure failure; the agent's own errors do not count."""
    return sum(map(is_infrastructure_failure, episodes)) / len(episodes) if episodes else 0.0
