"""What TRL, transformers and PEFT are told: the run's hyperparameters and its `engine.config`, all else of TRL off.

Called by `engine` in the preflight (`require_fit`) and by `learner`. Which keys of `engine.config` exist, and what they
may hold, stands in `tuning_contract.engine_config`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from trl import GRPOConfig

from tuning_contract.algorithms import ALGORITHMS, LossAggregation
from tuning_contract.causes import Cause
from tuning_contract.engine_config import TRL_OVERRIDES, overrides_from_text
from tuning_contract.run_document import RunDocument
from tuning_runner.episodes.errors import RunError

_LOSS_TYPES = {LossAggregation.TOKEN: "dapo"}
"""TRL's name of each way to make one loss of many tokens."""
_ALL_LINEAR = "all-linear"
"""PEFT's word for every linear module but the output layer."""


def overrides(run: RunDocument) -> Mapping[str, Any]:
    """The run's `engine.config`, checked.

    Raises:
        RunError: ConfigInvalid, naming the key and what to change.
    """
    try:
        return overrides_from_text(run.engine.config, lora=run.algorithm.lora is not None)
    except ValueError as error:
        raise RunError(Cause.CONFIG_INVALID, str(error)) from error


def require_fit(run: RunDocument, model: Any) -> None:
    """Refuse overrides that are wrong, or that the loaded model cannot follow.

    Raises:
        RunError: ConfigInvalid, naming the key and what to change.
    """
    wanted = overrides(run).get("target_modules", _ALL_LINEAR)
    if wanted == _ALL_LINEAR:
        return
    output = model.get_output_embeddings()
    linear = {n for n, part in model.named_modules() if isinstance(part, torch.nn.Linear) and part is not output}
    known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    for entry in [wanted] if isinstance(wanted, str) else wanted:
        try:
            # As PEFT matches: a text is a pattern of the whole name, an entry of a list its end.
            pattern = re.compile(wanted if isinstance(wanted, str) else rf"(.*\.)?{re.escape(entry)}")
        except re.error as error:
            message = f"`engine.config.target_modules` {entry!r} is no regular expression: {error}"
            raise RunError(Cause.CONFIG_INVALID, message) from error
        found = {name for name, _ in model.named_modules() if pattern.fullmatch(name)}
        if not found or not found <= linear:
            other = f"also matches {min(found - linear)!r}" if found & linear else "matches none of them"
            message = f"`engine.config.target_modules` must name linear modules of the model ({known}): {entry!r}"
            raise RunError(Cause.CONFIG_INVALID, f"{message} {other}")


def adapter_settings(run: RunDocument) -> LoraConfig | None:
    """PEFT's settings, None when all weights are trained."""
    lora, given = run.algorithm.lora, overrides(run)
    if lora is None:
        return None
    own = {key: given[key] for key in given if TRL_OVERRIDES[key].needs_lora}
    values = {"r": lora.rank, "lora_alpha": lora.alpha, "target_modules": _ALL_LINEAR, "task_type": "CAUSAL_LM"}
    return LoraConfig(**values | own)


def trainer_settings(run: RunDocument, target_steps: int, scratch: Path) -> GRPOConfig:
    """TRL's settings.

    Args:
        run: all hyperparameters come from it.
        target_steps: of the whole run.
        scratch: an empty folder for TRL, which writes nothing there.
    """
    algorithm, given = run.algorithm, overrides(run)
    gpu = torch.cuda.is_available()
    values: dict[str, Any] = {
        "output_dir": str(scratch),
        "max_steps": target_steps,
        "seed": run.seed,
        "learning_rate": algorithm.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": algorithm.warmup_steps,
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.0,
        "max_grad_norm": algorithm.gradient_clip,
        "beta": algorithm.kl_coefficient,
        # KL is a term of the loss, as the algorithm table has it; TRL would weigh it with the probability ratio.
        "use_bias_correction_kl": False,
        "epsilon": algorithm.clip_range,
        "loss_type": _LOSS_TYPES[ALGORITHMS[algorithm.type].loss_aggregation],
        "importance_sampling_level": "token",
        "temperature": run.model.sampling.temperature,
        # Only checked against each other by TRL, which wants two; batches are made here.
        "per_device_train_batch_size": max(2, algorithm.group_size),
        "num_generations": max(2, algorithm.group_size),
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        # It would silence the adapters' own dropout too; the learner silences the base model's.
        "disable_dropout": False,
        "gradient_checkpointing": False,
        "use_cpu": not gpu,
        "bf16": gpu and torch.cuda.is_bf16_supported(),
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }
    return GRPOConfig(**values | {key: given[key] for key in given if not TRL_OVERRIDES[key].needs_lora})
