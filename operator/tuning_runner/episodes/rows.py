"""Training rows from turns: exact token ids, never re-tokenised.

Engines call `rows_of`. A row is what one forward pass sees; a conversation that only grows is one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tuning_runner.episodes.turns import Turn


@dataclass(frozen=True)
class Row:
    """One training sequence: `prompt_ids + completion_ids`. The last three have one entry for each completion id."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 where the policy sampled the token, 0 where the environment wrote it."""
    logprobs: tuple[float, ...]
    """At sampling time; 0.0 where the mask is 0."""


def rows_of(turns: Sequence[Turn]) -> tuple[Row, ...]:
    """Rows of one episode, in the order of their first turns.

    A turn whose prompt starts with all ids of a row extends the longest such row: what lies between is the
    environment's. Any other turn (an independent question, an edited reply) begins a new row.
    """
    rows: list[Row] = []
    for turn in turns:
        held = [place for place, row in enumerate(rows) if _starts_with(turn.prompt_ids, row)]
        if held:
            place = max(held, key=lambda number: len(rows[number].prompt_ids) + len(rows[number].completion_ids))
            rows[place] = _extended(rows[place], turn)
        else:
            rows.append(Row(turn.prompt_ids, turn.completion_ids, (1,) * len(turn.completion_ids), turn.logprobs))
    return tuple(rows)


def _starts_with(prompt: tuple[int, ...], row: Row) -> bool:
    ids = row.prompt_ids + row.completion_ids
    return prompt[: len(ids)] == ids


def _extended(row: Row, turn: Turn) -> Row:
    between = turn.prompt_ids[len(row.prompt_ids) + len(row.completion_ids) :]
    return Row(
        prompt_ids=row.prompt_ids,
        completion_ids=row.completion_ids + between + turn.completion_ids,
        mask=row.mask + (0,) * len(between) + (1,) * len(turn.completion_ids),
        logprobs=row.logprobs + (0.0,) * len(between) + turn.logprobs,
    )
