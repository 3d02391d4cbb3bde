"""Metric records: the stream from runner to sidecar, and the canonical names.

The runner appends one JSON line for each finished step or evaluation; the sidecar turns lines into
Prometheus series. A name that is not in NAMES is refused when it is written, not dropped when it is read.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

TRAINER = "trainer"
EVALUATION = "evaluation"


@dataclass(frozen=True)
class Metric:
    """One series of a run: its name in the record, its name in Prometheus and what it means."""

    name: str
    series: str
    help: str
    counter: bool = False


def _trainer(name: str, series: str, text: str, counter: bool = False) -> Metric:
    return Metric(name, f"tuningrun_{series}", text, counter)


TRAINER_METRICS: tuple[Metric, ...] = (
    _trainer(
        "reward_mean",
        "reward_mean",
        "Mean reward of the scored training episodes of the step, before masking and scaling; absent when none was",
    ),
    _trainer("reward_min", "reward_min", "Lowest reward of the step's scored training episodes"),
    _trainer("reward_max", "reward_max", "Highest reward of the step's scored training episodes"),
    _trainer("reward_stddev", "reward_stddev", "Mean standard deviation of the reward inside a group"),
    _trainer(
        "policy_loss",
        "policy_loss",
        "Objective per optimizer step including KL; it hovers near 0 and does not fall when training goes well",
    ),
    _trainer("kl", "kl_nats", "KL estimate of the policy against the base model, in nats per token"),
    _trainer("entropy", "entropy_nats", "Mean entropy of the sampled tokens' distribution, in nats"),
    _trainer("clip_ratio", "clip_ratio", "Share of trained tokens whose probability ratio was clipped"),
    _trainer("gradient_norm", "gradient_norm", "Gradient norm before clipping"),
    _trainer("learning_rate", "learning_rate", "Learning rate of the optimizer step"),
    _trainer(
        "zero_advantage_group_ratio",
        "zero_advantage_group_ratio",
        "Share of groups in which every advantage is 0, so that they give no gradient",
    ),
    _trainer("masked_episode_ratio", "masked_episode_ratio", "Share of episodes that were masked out of their group"),
    _trainer(
        "failed_episode_ratio",
        "failed_episode_ratio",
        "Share of episodes that ended by an infrastructure failure after all retries",
    ),
    _trainer("turns_mean", "turns_mean", "Mean number of model turns per episode"),
    _trainer(
        "rows_per_episode",
        "rows_per_episode",
        "Mean number of training rows per episode; above 1 when turns do not extend one another",
    ),
    _trainer("response_tokens_mean", "response_tokens_mean", "Mean number of generated tokens per model turn"),
    _trainer("prompt_tokens_mean", "prompt_tokens_mean", "Mean number of prompt tokens per model turn"),
    _trainer(
        "response_truncated_ratio", "response_truncated_ratio", "Share of model turns that ended at the token limit"
    ),
    _trainer("step_seconds", "step_duration_seconds", "Wall time of the last step"),
    _trainer("rollout_seconds", "rollout_duration_seconds", "Wall time of the last step's episodes"),
    _trainer("update_seconds", "update_duration_seconds", "Wall time of the last step's optimizer updates"),
    _trainer("optimizer_steps", "optimizer_steps_total", "Optimizer updates so far", counter=True),
    _trainer("tokens", "tokens_total", "Tokens trained on so far", counter=True),
    _trainer("episodes", "episodes_total", "Finished training episodes so far", counter=True),
)
"""Values of records with role `trainer`; tuningrun_step and tuningrun_target_steps come from the record itself."""

EVALUATION_METRICS: tuple[Metric, ...] = (
    Metric(
        "mean",
        "tuningrun_eval_mean",
        "Mean reward of an evaluation; unscored episodes count 0 for the tuned and 1 for the base model",
    ),
    Metric("stddev", "tuningrun_eval_stddev", "Standard deviation of the evaluation's per-task means"),
    Metric("unscored_ratio", "tuningrun_eval_unscored_ratio", "Share of the evaluation's episodes without a score"),
    Metric("episodes", "tuningrun_eval_episodes", "Episodes of the evaluation"),
    Metric("seconds", "tuningrun_eval_duration_seconds", "Wall time of the evaluation"),
)
"""Values of records with role `evaluation`; they carry the label `dataset`."""

NAMES: dict[str, frozenset[str]] = {
    TRAINER: frozenset(metric.name for metric in TRAINER_METRICS),
    EVALUATION: frozenset(metric.name for metric in EVALUATION_METRICS),
}
JUDGE_PREFIX = "judge/"
"""Prefix of metrics that workflow or judge returned; any name may follow."""


@dataclass(frozen=True)
class MetricRecord:
    """One line of metrics.jsonl: all values of one finished step or evaluation."""

    ts: float
    """Seconds since 1970, when the step ended."""
    attempt: int
    role: str
    step: int
    """Finished task batches; 0 is the base model's evaluation."""
    target_steps: int
    values: Mapping[str, float] = field(default_factory=dict)
    dataset: str = ""
    """Name of the evaluation set; empty for the trainer."""

    def to_line(self) -> str:
        """The record as one JSON line without its line end. Values that are not finite are left out."""
        for name in self.values:
            if name not in NAMES[self.role] and not name.startswith(JUDGE_PREFIX):
                raise ValueError(f"`{name}` is no metric of role {self.role}: add it to tuning_contract.metrics")
        document = {
            "ts": round(self.ts, 3),
            "attempt": self.attempt,
            "role": self.role,
            "step": self.step,
            "targetSteps": self.target_steps,
            "values": {name: value for name, value in self.values.items() if math.isfinite(value)},
        }
        if self.dataset:
            document["dataset"] = self.dataset
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str) -> "MetricRecord":
        """Parse one line; ValueError says what is wrong with it."""
        try:
            document = json.loads(line)
            return cls(
                ts=float(document["ts"]),
                attempt=int(document["attempt"]),
                role=str(document["role"]),
                step=int(document["step"]),
                target_steps=int(document["targetSteps"]),
                values={str(name): float(value) for name, value in document["values"].items()},
                dataset=str(document.get("dataset", "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a metric record: {line[:200]!r} ({error!r})") from error
