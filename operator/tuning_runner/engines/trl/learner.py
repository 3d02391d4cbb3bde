"""One optimizer update from the rows of a step: TRL's clipped loss, optimizer and schedule, in micro-batches by tokens.

Called by `engine` between rollouts. TRL's own loop, sampler and generation are not used: the tasks of a step, the
episodes and the advantages come from outside, and TRL sees finished rows, whatever the algorithm. `_compute_loss` and
`_get_per_token_logps_and_entropies` are private to TRL, so its version is pinned exactly. Not here: the settings of
TRL and PEFT (`settings`).
"""

import contextlib
import copy
import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

from tuning_contract.causes import Cause
from tuning_contract.run_document import RunDocument
from tuning_runner.engines.trl.batches import TrainingRow, collate, pack
from tuning_runner.engines.trl.model import LoadedModel, write_model
from tuning_runner.engines.trl.scoring import can_score, completion_logprobs
from tuning_runner.engines.trl.settings import adapter_settings, trainer_settings
from tuning_runner.episodes.errors import RunError

KL_ROWS = 8
"""Rows of a step over which KL is estimated when it is not part of the loss."""
_COPIED_REFERENCE_PARAMETERS = 200_000_000
"""A full fine-tune without a KL term keeps a copy of a base model up to this size, for the metric alone."""
_ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True)
class Update:
    """Figures of one optimizer update."""

    policy_loss: float
    gradient_norm: float
    learning_rate: float
    clip_ratio: float
    kl: float | None
    """None when there is no reference model."""
    trained_tokens: int


class _StepTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with our own pass for log-probabilities."""

    scored: torch.Tensor | None = None
    """The tokens to score in the batch at hand, (rows, completion length); None leaves everything to TRL."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        if self.scored is None or self.aux_loss_enabled or not can_score(model):
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **options
            )
            return found  # type: ignore[no-any-return]
        prompt = input_ids.size(1) - logits_to_keep
        with self.accelerator.autocast():
            values = completion_logprobs(
                model,
                (input_ids[:, :prompt], attention_mask[:, :prompt]),
                (input_ids[:, prompt:], self.scored),
                self.temperature,
            )
        # The entropy only feeds a metric, and the sampler has measured it already.
        return values, torch.zeros_like(values), None


class Learner:
    """The policy with its optimizer.

    Args:
        loaded: the base model; a LoRA run wraps it.
        run: all hyperparameters come from it.
        target_steps: of the whole run.
        scratch: an empty folder for TRL, which writes nothing there.
    """

    def __init__(self, loaded: LoadedModel, run: RunDocument, target_steps: int, scratch: Path) -> None:
        self._loaded = loaded
        self._algorithm = run.algorithm
        self._copy: Any = None
        small = loaded.parameters <= _COPIED_REFERENCE_PARAMETERS
        if run.algorithm.lora is None and run.algorithm.kl_coefficient == 0 and small:
            self._copy = copy.deepcopy(loaded.model)
            add_fused_lm_head(self._copy, temperature=run.model.sampling.temperature)
        self._trainer = _make_trainer(loaded, run, target_steps, scratch)
        self._trainer.create_optimizer_and_scheduler(num_training_steps=target_steps)
        self._trainer.current_gradient_accumulation_steps = 1
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if self._copy is not None:
            self._copy.to(self.model.device).requires_grad_(False)

    @property
    def model(self) -> Any:
        """The policy, with adapters if it has any."""
        return self._trainer.model

    @property
    def trainable_parameters(self) -> int:
        """Number of parameters that the optimizer changes."""
        return sum(parameter.numel() for parameter in self._parameters)

    def update(self, rows: Sequence[TrainingRow]) -> Update:
        """One optimizer update on all rows of a step.

        The loss is the sum over all trained tokens of the step divided by their number. Rows without advantage have no
        gradient unless KL is part of the loss: they count in that number, but no pass is spent on them.

        Raises:
            RunError: NonFiniteLoss; the weights are then still those of before.
        """
        tokens = sum(row.trained_tokens for row in rows)
        kl, references = self._kl(rows)
        self.model.train()
        loss = clipped = 0.0
        for micro in pack([row for row in rows if self._has_gradient(row)], self._algorithm.micro_batch_tokens):
            batch = collate(micro, self._loaded.tokenizer.pad_token_id, self.model.device)
            batch["num_items_in_batch"] = torch.tensor(float(tokens), device=self.model.device)
            if references is not None:
                batch["ref_per_token_logps"] = self._pad([references[id(row)] for row in micro], batch)
            self._trainer.scored = batch["tool_mask"]
            part = self._trainer._compute_loss(self.model, batch)
            part.backward()
            loss += part.item()
            clipped += self._trainer._metrics["train"]["clip_ratio/region_mean"][-1] * sum(
                r.trained_tokens for r in micro
            )
        self._trainer._metrics["train"].clear()
        norm, rate = self._step(loss)
        self.model.eval()
        return Update(loss, norm, rate, clipped / max(tokens, 1), kl, tokens)

    def _has_gradient(self, row: TrainingRow) -> bool:
        return row.advantage != 0 or self._algorithm.kl_coefficient != 0

    def _step(self, loss: float) -> tuple[float, float]:
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        limit = self._algorithm.gradient_clip if self._algorithm.gradient_clip > 0 else math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, limit))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._trainer.optimizer.zero_grad()
            message = f"the loss is {loss} and the gradient's norm is {norm}: lower `algorithm.learningRate`"
            raise RunError(Cause.NON_FINITE_LOSS, message)
        rate = float(self._trainer.optimizer.param_groups[0]["lr"])
        self._trainer.optimizer.step()
        self._trainer.lr_scheduler.step()
        self._trainer.optimizer.zero_grad()
        return norm, rate

    def _kl(self, rows: Sequence[TrainingRow]) -> tuple[float | None, dict[int, torch.Tensor] | None]:
        """KL against the base model in nats per token, and the reference's log-probabilities when the loss needs them.

        Estimator k3 (Schulman, 2020): exp(d) - d - 1 with d = log(reference) - log(policy), over tokens of the policy.
        """
        in_loss = self._algorithm.kl_coefficient != 0
        chosen = list(rows) if in_loss else list(rows)[:: max(1, math.ceil(len(rows) / KL_ROWS))]
        references = self._reference_logprobs(chosen) if chosen else None
        if references is None:
            return None, None
        total, count = 0.0, 0
        for row in chosen:
            mask = torch.tensor(row.mask, dtype=torch.bool)
            difference = (references[id(row)].cpu().float() - torch.tensor(row.logprobs))[mask]
            total += float((difference.exp() - difference - 1).sum())
            count += int(mask.sum())
        return total / max(count, 1), references if in_loss else None

    def _reference_logprobs(self, rows: Sequence[TrainingRow]) -> dict[int, torch.Tensor] | None:
        with self._reference() as model:
            return None if model is None else self._logprobs(model, rows)

    @contextlib.contextmanager
    def _reference(self) -> Iterator[Any]:
        """The base model: the policy without its adapters, or a copy; None without either."""
        if isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                yield self.model
        else:
            yield self._trainer.ref_model if self._trainer.ref_model is not None else self._copy

    def _logprobs(self, model: Any, rows: Sequence[TrainingRow]) -> dict[int, torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        # Without gradients a pass keeps one layer's activations, not all of them.
        for micro in pack(rows, 4 * self._algorithm.micro_batch_tokens):
            batch = collate(micro, self._loaded.tokenizer.pad_token_id, self.model.device)
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            width = batch["completion_ids"].size(1)
            self._trainer.scored = batch["tool_mask"]
            with torch.no_grad():
                values = self._trainer._get_per_token_logps_and_entropies(model, ids, mask, width)[0]
            found |= {id(row): values[place, : len(row.completion_ids)] for place, row in enumerate(micro)}
        return found

    def _pad(self, values: Sequence[torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
        padded = torch.zeros_like(batch["old_per_token_logps"])
        for place, row in enumerate(values):
            padded[place, : len(row)] = row
        return padded

    def save(self, folder: Path) -> None:
        """Weights (or adapter), tokenizer, optimizer, schedule and random state."""
        self.model.save_pretrained(str(folder))
        self._loaded.tokenizer.save_pretrained(str(folder))
        state = {
            "optimizer": self._trainer.optimizer.state_dict(),
            "scheduler": self._trainer.lr_scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }
        torch.save(state, folder / "training_state.pt")

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote.

        Raises:
            RunError: ConfigInvalid, as `load_weights`.
        """
        self.load_weights(folder)
        state = torch.load(folder / "training_state.pt", map_location=self.model.device, weights_only=True)
        self._trainer.optimizer.load_state_dict(state["optimizer"])
        self._trainer.lr_scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"].cpu())

    def load_weights(self, folder: Path) -> None:
        """Take the weights (or adapter) that `save` wrote, and leave optimizer and schedule as they are.

        Raises:
            RunError: ConfigInvalid, when they are not of this model or of other adapters.
        """
        adapted = isinstance(self.model, PeftModel)
        if adapted != (folder / _ADAPTER).is_file():
            there, here = ("no adapter", "`algorithm.lora`") if adapted else ("an adapter", "no `algorithm.lora`")
            message = f"checkpoint {folder} holds {there}, and this run has {here}: set it as the run that made it did"
            raise RunError(Cause.CONFIG_INVALID, message)
        if adapted:
            weights = load_file(str(folder / _ADAPTER))
            _require_shapes(folder, weights, get_peft_model_state_dict(self.model))
            set_peft_model_state_dict(self.model, weights)
        else:
            plain = type(self.model).from_pretrained(str(folder), dtype=torch.float32).state_dict()
            _require_shapes(folder, plain, self.model.state_dict())
            self.model.load_state_dict(plain)

    def export(self, folder: Path) -> None:
        """The tuned model with adapters merged. The learner cannot be used afterwards."""
        model = self.model.merge_and_unload() if isinstance(self.model, PeftModel) else self.model
        write_model(model, self._loaded, folder)

    def weights_digest(self) -> str:
        """SHA-256 of everything that the optimizer changes."""
        digest = hashlib.sha256()
        for parameter in self._parameters:
            digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
        return digest.hexdigest()


def _require_shapes(folder: Path, found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """RunError ConfigInvalid for the first tensor that does not fit."""
    for name in sorted({*found, *wanted}):
        there = tuple(found[name].shape) if name in found else "not there"
        here = tuple(wanted[name].shape) if name in wanted else "not there"
        if there != here:
            message = (
                f"the weights in {folder} do not fit this run's model: {name} is {there} in the checkpoint and {here} "
                "here: set `model` and `algorithm.lora` as the run that made it did"
            )
            raise RunError(Cause.CONFIG_INVALID, message)


def _make_trainer(loaded: LoadedModel, run: RunDocument, target_steps: int, scratch: Path) -> Any:
    disable_dropout_in_model(loaded.model)
    with warnings.catch_warnings():
        # TRL still speaks of gradient checkpointing by a name that transformers is about to drop.
        warnings.simplefilter("ignore", FutureWarning)
        trainer = _StepTrainer(
            model=loaded.model,
            reward_funcs=[_no_reward],
            args=trainer_settings(run, target_steps, scratch),
            train_dataset=Dataset.from_list([{"prompt": ""}]),
            processing_class=loaded.tokenizer,
            peft_config=adapter_settings(run),
        )
    if trainer.args.activation_checkpointing:
        # Transformers does so in its own training loop, which is not used.
        trainer.model.activation_checkpointing_enable({"use_reentrant": False})
    return trainer


def _no_reward(prompts: list[Any], **_: Any) -> list[float]:
    """TRL insists on a reward function; rewards are the episodes' and come with their advantages."""
    return [0.0] * len(prompts)
