"""`engine.config`: the overrides in the engine's own words, which of them exist, and which the API owns.

CEL rules of the CRD come from RESERVED; the runner reads the overrides of a run with `overrides_from_text` in its
preflight. What an accepted key does to the training is the engine's business (`tuning_runner.engines`). Names are
those of TRL, transformers and PEFT.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RESERVED: dict[str, str] = {
    # What is learned from, and how long.
    "model_name_or_path": "model",
    "model_init_kwargs": "model",
    "dataset_name": "dataset.train",
    "shuffle_dataset": "dataset.order",
    "seed": "seed",
    "data_seed": "seed",
    "num_train_epochs": "algorithm.epochs",
    "max_steps": "algorithm.steps",
    # The batch.
    "num_generations": "algorithm.groupSize",
    "num_generations_eval": "dataset.evaluation[].samplesPerTask",
    "generation_batch_size": "algorithm.batchSize",
    "per_device_train_batch_size": "algorithm.microBatchTokens",
    "gradient_accumulation_steps": "algorithm.microBatchTokens",
    "auto_find_batch_size": "algorithm.microBatchTokens",
    # The loss.
    "loss_type": "algorithm.type",
    "scale_rewards": "algorithm.type",
    "importance_sampling_level": "algorithm.type",
    "reward_weights": "workflow.judge",
    "beta": "algorithm.klCoefficient",
    "epsilon": "algorithm.clipRange",
    # The update.
    "learning_rate": "algorithm.learningRate",
    "warmup_steps": "algorithm.warmupSteps",
    "warmup_ratio": "algorithm.warmupSteps",
    "max_grad_norm": "algorithm.gradientClip",
    "use_peft": "algorithm.lora",
    "r": "algorithm.lora.rank",
    "lora_r": "algorithm.lora.rank",
    "lora_alpha": "algorithm.lora.alpha",
    # Sampling.
    "temperature": "model.sampling.temperature",
    "top_p": "model.sampling.topP",
    "max_length": "model.maxModelLength",
    "max_prompt_length": "model.maxModelLength",
    "max_completion_length": "model.maxResponseTokens",
    "chat_template_path": "model.chatTemplate",
    "max_tool_calling_iterations": "rollout.limits.turns",
    "use_vllm": "engine.type",
    # Where it runs, and what it leaves.
    "use_cpu": "cluster.head.gpus",
    "output_dir": "checkpoint.volume",
    "save_strategy": "algorithm.saveEverySteps",
    "save_steps": "algorithm.saveEverySteps",
    "save_total_limit": "checkpoint.keepLast",
    "eval_strategy": "algorithm.evaluateEverySteps",
    "eval_steps": "algorithm.evaluateEverySteps",
    "report_to": "metrics",
}
"""Keys that a field of the API owns, with that field below `spec`: each is refused by a rule of the CRD."""


@dataclass(frozen=True)
class Number:
    """A number in a range."""

    least: float
    below: float = math.inf
    """The value must be less."""
    above: bool = False
    """Whether `least` itself is excluded."""

    def problem(self, value: Any) -> str:
        """What the value must be, empty when it is."""
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        low = number and (value > self.least if self.above else value >= self.least)
        if low and value < self.below:
            return ""
        limit = f" and less than {self.below:g}" if math.isfinite(self.below) else ""
        return f"must be a number {'greater than' if self.above else 'of at least'} {self.least:g}{limit}"


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def problem(self, value: Any) -> str:
        """What the value must be, empty when it is."""
        return "" if isinstance(value, bool) else "must be true or false"


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def problem(self, value: Any) -> str:
        """What the value must be, empty when it is."""
        return "" if value in self.words else f"must be one of {', '.join(self.words)}"


@dataclass(frozen=True)
class Modules:
    """A pattern, or a list of the last parts of modules' names."""

    def problem(self, value: Any) -> str:
        """What the value must be, empty when it is."""
        names = value if isinstance(value, list) else [value]
        if names and all(isinstance(name, str) and name for name in names):
            return ""
        return "must be a regular expression or a list of module names"


@dataclass(frozen=True)
class Override:
    """One accepted key."""

    kind: Number | Flag | Choice | Modules
    meaning: str
    """One sentence for the documentation, with the default."""
    needs_lora: bool = False
    """It means nothing without `algorithm.lora`."""
    needs_adam: bool = False
    """It means nothing with another optimizer."""


_ADAM = ("adamw_torch_fused", "adamw_torch")

TRL_OVERRIDES: dict[str, Override] = {
    "optim": Override(Choice((*_ADAM, "adafactor", "sgd")), "Optimizer; adamw_torch_fused without it."),
    "adam_beta1": Override(Number(0, 1), "Decay of Adam's mean of gradients; 0.9 without it.", needs_adam=True),
    "adam_beta2": Override(Number(0, 1), "Decay of Adam's mean of squares; 0.999 without it.", needs_adam=True),
    "adam_epsilon": Override(
        Number(0, above=True), "Added to the root of Adam's mean of squares; 1e-8 without it.", needs_adam=True
    ),
    "weight_decay": Override(Number(0), "Pull of the weights towards 0; 0 without it."),
    "lr_scheduler_type": Override(
        Choice(("constant_with_warmup", "linear", "cosine", "inverse_sqrt")),
        "Course of the learning rate after the warm-up; constant_with_warmup without it.",
    ),
    "epsilon_high": Override(
        Number(0, above=True), "Upper clip range when it differs from the lower; `algorithm.clipRange` without it."
    ),
    "gradient_checkpointing": Override(
        Flag(), "Computes activations twice instead of keeping them, which saves memory; false without it."
    ),
    "target_modules": Override(
        Modules(), "Modules that get adapters; all linear ones but the last without it.", needs_lora=True
    ),
    "lora_dropout": Override(
        Number(0, 1), "Share of an adapter's inputs that is dropped in training; 0 without it.", needs_lora=True
    ),
    "use_rslora": Override(
        Flag(), "Divides alpha by the root of the rank, not by the rank; false without it.", needs_lora=True
    ),
}
"""What `engine.config` may hold with engine TRL."""


def overrides_from_text(text: str, lora: bool) -> Mapping[str, Any]:
    """The overrides of a TRL run, checked.

    Args:
        text: JSON text of `engine.config`.
        lora: whether the run trains adapters.

    Raises:
        ValueError: naming the key and what to change.
    """
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError("`engine.config` must be an object")
    for key, value in config.items():
        if problem := _problem(key, value, config, lora):
            raise ValueError(f"`engine.config.{key}` {problem}")
    return config


def _problem(key: str, value: Any, config: Mapping[str, Any], lora: bool) -> str:
    if key in RESERVED:
        return f"cannot be set: use `{RESERVED[key]}`"
    row = TRL_OVERRIDES.get(key)
    if row is None:
        return f"is not known to engine TRL, which takes {', '.join(TRL_OVERRIDES)}"
    if problem := row.kind.problem(value):
        return f"{problem}, not {json.dumps(value)}"
    if row.needs_lora and not lora:
        return "needs `algorithm.lora`: set that too, or leave it out"
    optimizer = config.get("optim", _ADAM[0])
    if row.needs_adam and optimizer not in _ADAM:
        return f"means nothing with `optim` {optimizer}: leave it out"
    return ""
