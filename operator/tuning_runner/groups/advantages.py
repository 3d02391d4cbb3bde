"""Which episodes train, and with what advantage.

Engines call `assign` once for each step, on all its records. Not here: retries (`episodes`), which formula an
algorithm has (`tuning_contract.algorithms`), the decision that a step fails (`verdict`), token weights (the engine).
"""

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from tuning_contract.algorithms import Advantage
from tuning_contract.outcomes import INFRASTRUCTURE, SCORED, Outcome

STDDEV_OFFSET = 1e-4
"""Keeps nearly equal rewards from being divided by next to nothing; the algorithm table's figure."""
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


def assign(episodes: Sequence[Episode], advantage: Advantage, min_group_size: int) -> tuple[Assignment, ...]:
    """Advantage or mask of each episode, in the order given.

    A failed episode is neither a reward of 0 nor a member: it is left out of every mean and deviation. Formulas, over
    scored episodes only; the deviation is the sample's, with n - 1, as `torch.std` and TRL compute it:

    - group: (reward - mean of the group) / (deviation of the group + 1e-4), as in GRPO (DeepSeekMath, 2024);
    - leave_one_out: reward - mean of the others of the group, as in RLOO (Ahmadian et al., 2024);
    - step: (reward - mean of the step) / (deviation of the step + 1e-4), as in REINFORCE++ (Hu, 2025). Groups below
      `min_group_size` count in both.

    Where all compared rewards are equal, or there is only one, the advantage is exactly 0.

    Args:
        episodes: all episodes of one step, any number of groups, in any order.
        advantage: the column of the algorithm table.
        min_group_size: a group with fewer scored episodes is masked whole.
    """
    groups: dict[str, list[int]] = {}
    for place, episode in enumerate(episodes):
        if is_scored(episode):
            groups.setdefault(episode.group, []).append(place)
    pools = [list(chain.from_iterable(groups.values()))] if advantage is Advantage.STEP else list(groups.values())
    formula = _against_others if advantage is Advantage.LEAVE_ONE_OUT else _standardised
    advantages: dict[int, float] = {}
    for pool in pools:
        rewards = [reward for place in pool if (reward := episodes[place].reward) is not None]
        advantages.update(zip(pool, formula(rewards), strict=True))
    large = {group for group, members in groups.items() if len(members) >= min_group_size}
    return tuple(
        Assignment(masked=mask) if (mask := _mask(episode, large)) else Assignment(advantages[place])
        for place, episode in enumerate(episodes)
    )


def _mask(episode: Episode, large: Set[str]) -> str:
    """Why an episode does not train, empty when it does."""
    if episode.outcome not in SCORED:
        return episode.outcome.value
    if episode.reward is None:
        return UNSCORED
    return "" if episode.group in large else SMALL_GROUP


def _standardised(rewards: Sequence[float]) -> list[float]:
    if _are_equal(rewards):
        return [0.0] * len(rewards)
    mean, deviation = math.fsum(rewards) / len(rewards), sample_stddev(rewards)
    return [(reward - mean) / (deviation + STDDEV_OFFSET) for reward in rewards]


def _against_others(rewards: Sequence[float]) -> list[float]:
    if _are_equal(rewards):
        return [0.0] * len(rewards)
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def _are_equal(rewards: Sequence[float]) -> bool:
    """Told by comparison: rounding can give a mean that differs from each of them, and a step that trains on it."""
    return not rewards or min(rewards) == max(rewards)


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
