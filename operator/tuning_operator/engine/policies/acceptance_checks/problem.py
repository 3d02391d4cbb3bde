"""What a check finds wrong."""

from dataclasses import dataclass

from tuning_operator.api.conditions import Reason


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing for which a run cannot be accepted here and now."""

    reason: Reason
    message: str
    """A sentence that says what to change."""
