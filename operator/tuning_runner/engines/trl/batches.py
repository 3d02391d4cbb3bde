"""Training rows in micro-batches: how rows are packed, and how they become tensors.

Called by `learner`. One optimizer update sees all rows of a step; micro-batches only bound its memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TrainingRow:
    """One sequence with the advantage of its episode. The last four have one entry for each completion id."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 for tokens that the policy sampled."""
    logprobs: tuple[float, ...]
    """At sampling time."""
    advantage: float

    @property
    def trained_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.mask)


def pack(rows: Sequence[TrainingRow], tokens: int) -> list[list[TrainingRow]]:
    """Micro-batches of at most `tokens` tokens, padding included; a row that is longer gets one of its own.

    Rows with one prompt share a micro-batch where they can, since a prompt is computed once for each micro-batch; so
    do rows of like length, since then little is padding.
    """
    packed: list[list[TrainingRow]] = []
    for row in sorted(rows, key=lambda entry: (len(entry.prompt_ids), entry.prompt_ids, len(entry.completion_ids))):
        if packed and _tokens([*packed[-1], row]) <= tokens:
            packed[-1].append(row)
        else:
            packed.append([row])
    return packed


def _tokens(rows: Sequence[TrainingRow]) -> int:
    prompts = {row.prompt_ids for row in rows}
    width = max(len(row.completion_ids) for row in rows)
    return len(prompts) * max(map(len, prompts)) + len(rows) * width


def collate(rows: Sequence[TrainingRow], pad_token: int, device: Any) -> dict[str, torch.Tensor]:
    """The tensors that TRL's GRPO loss reads: prompts padded on the left, completions on the right, (rows, length)."""
    prompt = max(len(row.prompt_ids) for row in rows)
    completion = max(len(row.completion_ids) for row in rows)

    def left(values: Sequence[Any], fill: Any) -> list[Any]:
        return [fill] * (prompt - len(values)) + list(values)

    def right(values: Sequence[Any], fill: Any) -> list[Any]:
        return list(values) + [fill] * (completion - len(values))

    columns = {
        "prompt_ids": [left(row.prompt_ids, pad_token) for row in rows],
        "prompt_mask": [left([1] * len(row.prompt_ids), 0) for row in rows],
        "completion_ids": [right(row.completion_ids, pad_token) for row in rows],
        "completion_mask": [right([1] * len(row.completion_ids), 0) for row in rows],
        "tool_mask": [right(row.mask, 0) for row in rows],
        "old_per_token_logps": [right(row.logprobs, 0.0) for row in rows],
        "advantages": [row.advantage for row in rows],
    }
    return {name: torch.tensor(values, device=device) for name, values in columns.items()}
