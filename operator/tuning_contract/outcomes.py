"""How one episode ended.

An infrastructure failure is never a reward: it is retried and then masked out of its group. Workers of the
runner assign these, groups and metrics read them, and the journal stores them.
"""

from enum import StrEnum


class Outcome(StrEnum):
    """End of one episode."""

    COMPLETED = "Completed"
    LIMIT_REACHED = "LimitReached"
    """A limit after at least one finished model turn, with healthy services: graded as it stands."""
    AGENT_ERROR = "AgentError"
    """The workflow raised: the agent's own fault."""
    JUDGE_ERROR = "JudgeError"
    """The judge's service failed (transport, 429, 5xx, its own time-out)."""
    ENVIRONMENT_ERROR = "EnvironmentError"
    """A tool's or environment's service failed."""
    MODEL_ERROR = "ModelError"
    """The gateway answered with its own typed error."""
    TIMED_OUT = "TimedOut"
    """The limit passed before one model turn had finished."""
    LOST = "Lost"
    """The worker process died, or the step was abandoned."""
    LATE = "Late"
    """It ended after its step was closed."""


INFRASTRUCTURE = frozenset(
    {Outcome.JUDGE_ERROR, Outcome.ENVIRONMENT_ERROR, Outcome.MODEL_ERROR, Outcome.TIMED_OUT, Outcome.LOST}
)
"""Retried up to `rollout.maxAttempts`, then masked; they count in `rollout.maxFailedRatio`."""

SCORED = frozenset({Outcome.COMPLETED, Outcome.LIMIT_REACHED})
"""Only these may carry a reward."""
