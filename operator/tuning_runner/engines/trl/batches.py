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
    def length(self) -> int:
        """Tokens of the whole sequence."""
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def trained_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(self.mask)


def pack(rows: Sequence[TrainingRow], tokens: int) -> list[list[TrainingRow]]:
    """Micro-batches of at most `tokens` tokens, padding included; a row that is longer gets one of its own.

    Rows of like length share a micro-batch, so that little is padding.
    """
    packed: list[list[TrainingRow]] = []
    for row in sorted(rows, key=lambda entry: (entry.length, len(entry.prompt_ids)), reverse=True):
        if packed and _width([*packed[-1], row]) * (len(packed[-1]) + 1) <= tokens:
            packed[-1].append(row)
        else:
            packed.append([row])
    return packed


def _width(rows: Sequence[TrainingRow]) -> int:
    return max(len(row.prompt_ids) for row in rows) + max(len(row.completion_ids) for row in rows)


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
