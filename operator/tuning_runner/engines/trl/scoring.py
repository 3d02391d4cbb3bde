"""Log-probabilities of completions, with gradients: each distinct prompt is computed once, and only sampled tokens are
scored.

Called by `learner` inside TRL's loss, in place of TRL's own pass, which computes the prompt again for each episode of
a group and, on a CPU, projects every position of it onto the vocabulary. The episodes of a group share their prompt,
so most of that work is the same; gradients of all episodes flow into the one prompt. `can_score` says for which
models this holds; the others take TRL's way.
"""

from typing import Any

import torch
from peft import PeftModel
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

_POSITIONS = 2048
"""Positions whose logits are in memory at once."""
_LOGIT_SETTINGS = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)
"""Settings by which some models change their logits after the projection."""


def can_score(model: Any) -> bool:
    """Whether the model is a plain decoder: full attention in every layer, logits straight from the last projection.

    A model that computes its activations twice keeps no cache in the meantime, so it cannot share prompts.
    """
    if model.training and torch.is_grad_enabled() and model.is_activation_checkpointing:
        return False
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    plain = layers == {"full_attention"} and getattr(config, "sliding_window", None) is None
    return plain and all(getattr(config, name, None) is None for name in _LOGIT_SETTINGS)


def completion_logprobs(
    model: Any, prompts: tuple[torch.Tensor, torch.Tensor], completions: tuple[torch.Tensor, torch.Tensor], heat: float
) -> torch.Tensor:
    """Log-probability of each scored completion token, 0 elsewhere.

    Args:
        model: a causal language model, or a PEFT model around one.
        prompts: ids and mask, (rows, prompt length), padded on the left.
        completions: ids and the mask of the tokens to score, (rows, completion length), padded on the right. What
            stands before a scored token must not be padding.
        heat: the temperature by which logits are divided.

    Returns:
        (rows, completion length), float32, with gradients.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    backbone, head = base.base_model, base.get_output_embeddings()
    prompt_ids, prompt_mask = prompts
    completion_ids, scored = completions
    distinct, row_of = torch.unique(torch.cat([prompt_mask, prompt_ids], dim=1), dim=0, return_inverse=True)
    width = prompt_ids.size(1)
    mask, ids = distinct[:, :width], distinct[:, width:]
    cache = DynamicCache(config=base.config)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    hidden = backbone(input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True)
    before = hidden.last_hidden_state[:, -1:][row_of]
    if completion_ids.size(1) > 1:
        # The last token of a completion predicts nothing. Padding behind a completion is seen by padding only.
        cache.batch_select_indices(row_of)
        inputs = completion_ids[:, :-1]
        offsets = torch.arange(inputs.size(1), device=inputs.device)
        output = backbone(
            input_ids=inputs,
            attention_mask=torch.cat([prompt_mask, torch.ones_like(inputs)], dim=1),
            position_ids=prompt_mask.sum(-1, keepdim=True) + offsets,
            cache=cache,
            use_cache=True,
        )
        before = torch.cat([before, output.last_hidden_state], dim=1)
    chosen = scored.bool()
    values = _token_logprobs(before[chosen], head, completion_ids[chosen], heat)
    return torch.zeros(scored.shape, device=values.device).masked_scatter(chosen, values)


def _token_logprobs(hidden: torch.Tensor, head: Any, tokens: torch.Tensor, heat: float) -> torch.Tensor:
    """Log-probability of one token for each state; of many, logits are made in pieces, and again for the gradients."""
    if len(tokens) <= _POSITIONS:
        return _piece(hidden, head, tokens, heat)
    pieces = zip(hidden.split(_POSITIONS), tokens.split(_POSITIONS), strict=True)
    return torch.cat([checkpoint(_piece, states, head, ids, heat, use_reentrant=False) for states, ids in pieces])


def _piece(hidden: torch.Tensor, head: Any, tokens: torch.Tensor, heat: float) -> torch.Tensor:
    logits = head(hidden).float() / heat
    return logits.gather(-1, tokens[:, None]).squeeze(-1) - torch.logsumexp(logits, dim=-1)
