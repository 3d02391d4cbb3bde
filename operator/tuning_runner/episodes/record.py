"""The record of one episode: one line of `episodes/step-<n>.jsonl`.

`EpisodeRunner` makes it without advantage; the engine adds that after `tuning_runner.groups` and writes the
line with `tuning_runner.episodes.journal`. Keys in JSON are camelCase, as everywhere in the contract.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuning_contract.outcomes import Outcome

SCHEMA = 1
TRAIN = "train"
EVALUATION_PREFIX = "eval:"
DRY = "dry"
"""Mode of the preflight's episodes."""


@dataclass(frozen=True)
class EpisodeError:
    """What went wrong, for a person."""

    where: str
    """One of workflow, judge, gateway, worker, runner."""
    type: str
    """Class of the exception, or the gateway's code."""
    text: str
    """The exception in one line, then the user's own traceback; at most 4,000 characters."""


@dataclass(frozen=True)
class TurnRecord:
    """One model turn without its ids."""

    prompt_tokens: int
    tokens: int
    """Sampled tokens."""
    seconds: float
    finish: str
    sampling: Mapping[str, float]
    """`{temperature, topP}`"""


@dataclass(frozen=True)
class EpisodeRecord:
    """How one episode went, after its last try."""

    mode: str
    """`train`, `eval:<set>` or `dry`."""
    episode: str
    """`<step>.<task>.<member>`; `task` is the number in the step's batch, or the row of an evaluation set."""
    group: str
    """`<step>.<task>`: all episodes of one task."""
    task_id: str
    """SHA-256 of the raw row, first 16 hex digits."""
    run_attempt: int
    tries: int
    """Number of the last try, from 1."""
    seed: int
    """Seed of the first turn of the last try; -1 when it never reached a worker."""
    policy_version: int
    outcome: Outcome
    turns: tuple[TurnRecord, ...] = ()
    rows: int = 0
    reward: float | None = None
    """Only for Completed and LimitReached, always finite."""
    advantage: float | None = None
    masked: str | None = None
    """Why the episode trains nothing (`tuning_runner.groups`)."""
    error: EpisodeError | None = None
    """Of the last try."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    judge_digest: str = ""
    seconds: float = 0.0
    """Wall time of the last try, workflow and judge."""
    schema: int = SCHEMA

    def assigned(self, advantage: float | None, masked: str | None) -> "EpisodeRecord":
        """The record with the advantage of its group."""
        return dataclasses.replace(self, advantage=advantage, masked=masked)

    def to_line(self) -> str:
        """One JSON line without its line end."""
        return json.dumps(_plain(self), ensure_ascii=False, separators=(",", ":"))


def task_id(row: Mapping[str, Any]) -> str:
    """Identity of a raw row: the first 16 hex digits of the SHA-256 of its canonical JSON."""
    text = json.dumps(row, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {_camel(item.name): _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
