"""What a user's own code may import: outputs of workflow and judge, and the exception for a broken environment.

The contract is duck-typed, so AgentScope's classes of the same names serve as well. Nothing here is needed
to write a workflow but an object with the attributes below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class EnvironmentFailure(Exception):  # noqa: N818 - the API's word: the environment failed, not the agent
    """Raise it from a workflow when a tool's or environment's service failed: the episode is retried, never scored."""


@dataclass(frozen=True)
class WorkflowOutput:
    """What `async run(task, model)` returns."""

    reward: float | None = None
    """Finite; only read when the run has no judge."""
    response: Any = None
    """What the judge gets."""
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True)
class JudgeOutput:
    """What `async judge(task, response)` returns."""

    reward: float
    """Finite."""
    metrics: Mapping[str, float] | None = None
