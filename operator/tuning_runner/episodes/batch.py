"""What an engine asks of `EpisodeRunner` and what it gets back.

Kept apart from the runner so that other parts can name the types without an HTTP server or processes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuning_contract.run_document import Sampling
from tuning_runner.episodes.record import TRAIN, EpisodeRecord
from tuning_runner.episodes.rows import Row
from tuning_runner.episodes.turns import Turn


@dataclass(frozen=True)
class EpisodeBatch:
    """Episodes that belong together: those of one step, or of one evaluation."""

    step: int
    tasks: Sequence[Mapping[str, Any]]
    """Raw rows, hidden fields included."""
    group_size: int
    """Episodes for each task."""
    policy_version: int
    """Number of policy updates that the weights have seen, in steps."""
    sampling: Sampling
    mode: str = TRAIN
    """`train`, `eval:<set>` or `dry`. An evaluation's sampling seeds do not depend on the step."""
    seconds: float | None = None
    """After these the episodes that still run are given up: they end as Lost."""


@dataclass(frozen=True)
class EpisodeResult:
    """One episode after its last try."""

    record: EpisodeRecord
    task: Mapping[str, Any]
    """The raw row."""
    turns: tuple[Turn, ...] = ()
    """Of the last try; for training and transcripts."""
    rows: tuple[Row, ...] = ()
    response: str = ""
    """Text of the workflow's response (or of the last model reply after a limit), at most 4,000 characters."""
