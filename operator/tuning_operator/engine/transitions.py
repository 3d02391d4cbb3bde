"""Which phase may follow which, and why: the state diagram as data.

Every plan of the tests is held against it, and the diagram in docs/concepts/life-cycle.md is made from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuning_operator.api.conditions import Phase


@dataclass(frozen=True, slots=True)
class Transition:
    """One arrow of the diagram."""

    before: Phase
    """A run without a status counts as Pending."""
    after: Phase
    why: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition(Phase.PENDING, Phase.REJECTED, "something that it needs is missing"),
    Transition(Phase.PENDING, Phase.STARTING, "its objects are made"),
    Transition(Phase.PENDING, Phase.RUNNING, "its cluster was ready before that was told"),
    Transition(Phase.PENDING, Phase.RETRYING, "its first attempt was lost before that was told"),
    Transition(Phase.PENDING, Phase.SUSPENDING, "suspended while its objects were made"),
    Transition(Phase.PENDING, Phase.SUSPENDED, "suspended before anything was made"),
    Transition(Phase.PENDING, Phase.SUCCEEDED, "it was done before anything was told"),
    Transition(Phase.PENDING, Phase.FAILED, "its objects cannot be made"),
    Transition(Phase.REJECTED, Phase.PENDING, "what was missing is there"),
    Transition(Phase.REJECTED, Phase.STARTING, "what was missing is there, its objects are made"),
    Transition(Phase.REJECTED, Phase.RUNNING, "its cluster was ready before that was told"),
    Transition(Phase.REJECTED, Phase.RETRYING, "its first attempt was lost before that was told"),
    Transition(Phase.REJECTED, Phase.SUSPENDING, "suspended while its objects were made"),
    Transition(Phase.REJECTED, Phase.SUSPENDED, "suspended before anything was made"),
    Transition(Phase.REJECTED, Phase.SUCCEEDED, "it was done before anything was told"),
    Transition(Phase.REJECTED, Phase.FAILED, "its objects cannot be made"),
    Transition(Phase.STARTING, Phase.RUNNING, "the cluster is ready, the Job is made"),
    Transition(Phase.STARTING, Phase.RETRYING, "the attempt failed, and another may help"),
    Transition(Phase.STARTING, Phase.SUSPENDING, "suspended: the cluster is given back"),
    Transition(Phase.STARTING, Phase.SUSPENDED, "suspended before anything of the attempt was made"),
    Transition(Phase.STARTING, Phase.SUCCEEDED, "every step was done already"),
    Transition(Phase.STARTING, Phase.FAILED, "the attempt failed, and another cannot help or is not allowed"),
    Transition(Phase.RUNNING, Phase.SUCCEEDED, "every step is done, evaluated and saved"),
    Transition(Phase.RUNNING, Phase.RETRYING, "the attempt failed, and another may help"),
    Transition(Phase.RUNNING, Phase.SUSPENDING, "suspended: the training is asked to save and to stop"),
    Transition(Phase.RUNNING, Phase.FAILED, "the attempt failed, and another cannot help or is not allowed"),
    Transition(Phase.RETRYING, Phase.STARTING, "the old pods are gone, the back-off is over: the next attempt begins"),
    Transition(Phase.RETRYING, Phase.SUSPENDING, "suspended while the old pods are on their way out"),
    Transition(Phase.RETRYING, Phase.SUSPENDED, "suspended, and the old pods are gone"),
    Transition(Phase.RETRYING, Phase.SUCCEEDED, "the lost attempt had finished after all"),
    Transition(Phase.RETRYING, Phase.FAILED, "no time is left for another attempt"),
    Transition(Phase.SUSPENDING, Phase.SUSPENDED, "the training has stopped, its pods are gone"),
    Transition(Phase.SUSPENDING, Phase.STARTING, "resumed meanwhile: the next attempt begins when the pods are gone"),
    Transition(Phase.SUSPENDING, Phase.RETRYING, "resumed meanwhile, and the attempt failed before it had stopped"),
    Transition(Phase.SUSPENDING, Phase.SUCCEEDED, "it was done before it could stop"),
    Transition(Phase.SUSPENDING, Phase.FAILED, "the attempt failed before it had stopped, and another cannot help"),
    Transition(Phase.SUSPENDED, Phase.STARTING, "resumed: the next attempt begins"),
    Transition(Phase.SUSPENDED, Phase.PENDING, "resumed before anything was made"),
    Transition(Phase.SUSPENDED, Phase.RUNNING, "resumed, and its cluster was ready before that was told"),
    Transition(Phase.SUSPENDED, Phase.RETRYING, "resumed, and the attempt was lost before that was told"),
    Transition(Phase.SUSPENDED, Phase.SUSPENDING, "resumed and suspended again at once"),
    Transition(Phase.SUSPENDED, Phase.REJECTED, "resumed before anything was made, and something is missing"),
    Transition(Phase.SUSPENDED, Phase.SUCCEEDED, "the last attempt had finished after all"),
    Transition(Phase.SUSPENDED, Phase.FAILED, "resumed, and no time is left for another attempt"),
)

_ALLOWED: Mapping[tuple[Phase, Phase], str] = {(row.before, row.after): row.why for row in TRANSITIONS}


def is_allowed(before: Phase | None, after: Phase | None) -> bool:
    """Whether a status may go from one phase to the other; to stay is always allowed."""
    before, after = before or Phase.PENDING, after or Phase.PENDING
    return before is after or (before, after) in _ALLOWED
