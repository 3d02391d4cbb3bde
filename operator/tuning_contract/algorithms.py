"""The one table of algorithms: what each is, what it needs and its defaults.

CEL rules, reference docs, the runner's checks and both engines read this table; no engine has defaults of
its own. Formulas: GRPO (DeepSeekMath, 2024), token-level loss aggregation of DAPO (2025).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """One row: how advantages and loss are made, and the defaults of optional hyperparameters."""

    name: str
    engines: tuple[str, ...]
    """Engines that run it today."""
    group_relative: bool
    """Advantages compare the episodes of one task, so `groupSize` must be at least 2."""
    advantage: str
    """`group`: (reward - mean of the group) / (standard deviation of the group + 1e-4), over scored episodes."""
    loss_aggregation: str
    """`token`: the sum over all trained tokens of the step divided by their number."""
    clip_range: float
    """The probability ratio is clipped to [1 - clip_range, 1 + clip_range]."""
    kl_coefficient: float
    gradient_clip: float
    warmup_steps: int
    trains_every_turn: bool
    """All turns of an episode are trained with the episode's advantage, however many rows they make."""


MULTI_STEP_GRPO = Algorithm(
    name="multi_step_grpo",
    engines=("TRL",),
    group_relative=True,
    advantage="group",
    loss_aggregation="token",
    clip_range=0.2,
    kl_coefficient=0.0,
    gradient_clip=1.0,
    warmup_steps=0,
    trains_every_turn=True,
)

ALGORITHMS: dict[str, Algorithm] = {row.name: row for row in (MULTI_STEP_GRPO,)}
"""All algorithms that a TuningRun may name, by name."""

ENGINES: dict[str, bool] = {"TRL": True, "Trinity": False}
"""All engines that a TuningRun may name: whether this version can run them."""
