"""The one table of algorithms and engines: what each is, what it needs and its defaults.

CEL rules, reference docs, the runner's checks and every engine read this table; no engine has defaults of its own.
Formulas: GRPO (DeepSeekMath, 2024), RLOO (Ahmadian et al., 2024), REINFORCE++ (Hu, 2025), token-level loss
aggregation (DAPO, 2025). The advantages themselves are computed by the runner's `groups`.
"""

from dataclasses import dataclass
from enum import StrEnum


class Advantage(StrEnum):
    """How the advantage of an episode follows from the rewards of the scored episodes."""

    GROUP = "group"
    """(reward - mean of the group) / (standard deviation of the group + 1e-4)."""
    LEAVE_ONE_OUT = "leave_one_out"
    """reward - mean of the other episodes of the group."""
    STEP = "step"
    """(reward - mean of the step) / (standard deviation of the step + 1e-4)."""


class LossAggregation(StrEnum):
    """How the losses of tokens become the loss of a step."""

    TOKEN = "token"  # noqa: S105 - a unit of text, not a secret
    """The sum over all trained tokens of the step divided by their number."""


@dataclass(frozen=True, kw_only=True)
class KnownAlgorithm:
    """An algorithm that a TuningRun may name, available or not."""

    name: str
    summary: str
    """One sentence for the documentation."""
    group_relative: bool
    """Advantages compare the episodes of one task, so `groupSize` must be at least 2."""
    engines: tuple[str, ...] = ()
    """Engines that run it in this version; empty when none does yet."""


@dataclass(frozen=True, kw_only=True)
class Algorithm(KnownAlgorithm):
    """An available algorithm: how advantages and loss are made, and the defaults of optional hyperparameters."""

    advantage: Advantage
    loss_aggregation: LossAggregation
    clip_range: float
    """The probability ratio of a token is clipped to [1 - clip_range, 1 + clip_range]."""
    kl_coefficient: float
    """Weight of the KL estimate against the base model (k3), which is a term of the loss, not of the reward."""
    gradient_clip: float
    """Largest norm of the gradient."""
    warmup_steps: int


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One training engine and what it can do."""

    name: str
    available: bool
    """Whether this version can run it."""
    lora: bool
    """Whether it trains low-rank adapters."""
    trains_on_workers: bool
    """Whether the trainer's GPUs are those of the worker pods; otherwise it trains on the head, and workers only run
    episodes."""


_KNOWN = (
    Algorithm(
        name="multi_step_grpo",
        summary="Compares the episodes of one task with each other and trains every turn of each.",
        group_relative=True,
        engines=("TRL",),
        advantage=Advantage.GROUP,
        loss_aggregation=LossAggregation.TOKEN,
        clip_range=0.2,
        kl_coefficient=0.0,
        gradient_clip=1.0,
        warmup_steps=0,
    ),
    Algorithm(
        name="rloo",
        summary="Compares each episode with the mean of the others of its task, without scaling by their spread.",
        group_relative=True,
        engines=("TRL",),
        advantage=Advantage.LEAVE_ONE_OUT,
        loss_aggregation=LossAggregation.TOKEN,
        clip_range=0.2,
        kl_coefficient=0.0,
        gradient_clip=1.0,
        warmup_steps=0,
    ),
    Algorithm(
        name="reinforceplusplus",
        summary="Compares each episode with all episodes of the step, so that one episode a task is enough.",
        group_relative=False,
        engines=("TRL",),
        advantage=Advantage.STEP,
        loss_aggregation=LossAggregation.TOKEN,
        clip_range=0.2,
        kl_coefficient=0.0,
        gradient_clip=1.0,
        warmup_steps=0,
    ),
    KnownAlgorithm(
        name="ppo",
        summary="Compares each episode with the estimate of a second model, the critic, that is trained beside it.",
        group_relative=False,
    ),
    KnownAlgorithm(
        name="dpo",
        summary="Learns from pairs of a better and a worse answer in the dataset.",
        group_relative=False,
    ),
    KnownAlgorithm(
        name="sft",
        summary="Learns to repeat the answers in the dataset.",
        group_relative=False,
    ),
)

KNOWN_ALGORITHMS: dict[str, KnownAlgorithm] = {row.name: row for row in _KNOWN}
"""All algorithms that a TuningRun may name, by name; those with no engine are refused as not available."""

ALGORITHMS: dict[str, Algorithm] = {row.name: row for row in _KNOWN if isinstance(row, Algorithm)}
"""The available ones, by name."""

ENGINES: dict[str, Engine] = {
    row.name: row
    for row in (
        Engine(name="TRL", available=True, lora=True, trains_on_workers=False),
        Engine(name="Trinity", available=False, lora=True, trains_on_workers=True),
    )
}
"""All engines that a TuningRun may name, by name."""
