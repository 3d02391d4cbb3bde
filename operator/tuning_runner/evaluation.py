"""From the episodes of an evaluation to its figures, the same way for the base model and the tuned one. Pure.

Called by engines on the records of one held-out set, and by `attempt` on a restarted run to find the base model's
figures. Not here: running the episodes, seeds (an evaluation's do not depend on the step).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuning_contract.metrics import EVALUATION, JUDGE_PREFIX, MetricRecord
from tuning_contract.result import EvaluationFigures
from tuning_runner.episodes.record import EpisodeRecord
from tuning_runner.groups import is_scored
from tuning_runner.groups.advantages import sample_stddev

MAX_UNSCORED_RATIO = 0.02
"""With more episodes than this without a score, there is no figure."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one set."""

    dataset: str
    step: int
    values: Mapping[str, float]
    """By the names of `tuning_contract.metrics`; without `mean` and `stddev` when too many episodes had no score."""

    @property
    def figures(self) -> EvaluationFigures | None:
        """What is shown; None when too many episodes had no score."""
        if "mean" not in self.values:
            return None
        episodes = int(self.values["episodes"])
        return EvaluationFigures(
            dataset=self.dataset,
            step=self.step,
            mean=self.values["mean"],
            episodes=episodes,
            unscored=round(self.values["unscored_ratio"] * episodes),
            metrics={n.removeprefix(JUDGE_PREFIX): v for n, v in self.values.items() if n.startswith(JUDGE_PREFIX)},
        )


def evaluate_records(records: Sequence[EpisodeRecord], dataset: str, step: int, seconds: float) -> Evaluation:
    """Figures of one evaluation that took so many seconds.

    An episode without a score counts 1 for the base model (step 0) and 0 for a tuned one: failures can only make the
    difference smaller. Above `MAX_UNSCORED_RATIO` there is no mean.
    """
    missing = 1.0 if step == 0 else 0.0
    tasks: dict[str, list[float]] = {}
    for record in records:
        reward = record.reward if is_scored(record) and record.reward is not None else missing
        tasks.setdefault(record.group, []).append(reward)
    unscored = sum(not is_scored(record) for record in records)
    values = {"episodes": float(len(records)), "unscored_ratio": unscored / max(len(records), 1), "seconds": seconds}
    if records and values["unscored_ratio"] <= MAX_UNSCORED_RATIO:
        rewards = [reward for group in tasks.values() for reward in group]
        values["mean"] = math.fsum(rewards) / len(rewards)
        values["stddev"] = sample_stddev([math.fsum(group) / len(group) for group in tasks.values()])
    return Evaluation(dataset, step, values | judge_metrics(records))


def judge_metrics(records: Iterable[EpisodeRecord]) -> dict[str, float]:
    """Means of the metrics that workflow and judge returned, each over the episodes that have it, as `judge/<name>`."""
    found: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.metrics.items():
            found.setdefault(JUDGE_PREFIX + name, []).append(float(value))
    return {name: math.fsum(values) / len(values) for name, values in sorted(found.items())}


def recorded_evaluations(records: Iterable[MetricRecord], step: int) -> dict[str, Evaluation]:
    """The newest evaluations of one step among metric records, by set."""
    return {
        record.dataset: Evaluation(record.dataset, step, record.values)
        for record in records
        if record.role == EVALUATION and record.step == step
    }
