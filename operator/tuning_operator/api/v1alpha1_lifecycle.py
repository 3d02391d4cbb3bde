"""The part of `spec` that says how long a run may take, when it is tried again, and what is cleaned up.

Part of `v1alpha1_spec`; executed by `engine.policies`. What each cause means is in `engine.causes`.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from tuning_contract.causes import Cause
from tuning_operator.api.model import ApiModel, Rule, list_set, rule

YEAR = 31_536_000
"""Seconds; no duration here is longer."""


class RetryAction(StrEnum):
    """What becomes of a run when an attempt has failed."""

    RETRY = "Retry"
    """Another attempt begins from the newest checkpoint; it counts."""
    RETRY_UNCOUNTED = "RetryUncounted"
    """Another attempt begins from the newest checkpoint; it does not count for `maxAttempts`."""
    FAIL = "Fail"
    """The run fails at once."""


class RetryRule(ApiModel):
    """What is done when an attempt failed for one of some causes."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            "self.action == 'Fail' || !('DeadlineExceeded' in self.causes)",
            "`causes` must not have DeadlineExceeded with this `action`: no time is left for another attempt; raise "
            "`deadlines.activeSeconds`, which can be changed at any time",
            "causes",
        ),
    )

    causes: Annotated[
        tuple[Cause, ...],
        Field(min_length=1, max_length=32, json_schema_extra=list_set, examples=[["OutOfMemory", "EngineError"]]),
    ]
    """Causes to which the rule applies, as `status.history` shows them."""
    action: Annotated[RetryAction, Field(examples=["RetryUncounted"])]
    """Retry, RetryUncounted (does not count for `maxAttempts`) or Fail."""


class RetrySpec(ApiModel):
    """When a failed attempt is followed by another one, which goes on from the newest complete checkpoint."""

    max_attempts: Annotated[int, Field(ge=1, le=100, examples=[5])] = 3
    """Attempts that may fail before the run does; a new complete checkpoint sets the count back to 0. Lost nodes,
    evictions and preemptions do not count, but end the run after 20 without a new checkpoint. 1: no retry."""
    backoff_seconds: Annotated[int, Field(ge=0, le=3600, examples=[10])] = 30
    """Seconds to wait before the second attempt; the wait doubles with each counted failure, up to 15 minutes."""
    rules: Annotated[tuple[RetryRule, ...], Field(max_length=16)] = ()
    """What to do for causes that need something else than the default; the first rule that names the cause wins."""


class DeadlinesSpec(ApiModel):
    """How long things may take."""

    start_seconds: Annotated[int, Field(ge=1, le=YEAR, examples=[600])] = 3600
    """Seconds that an attempt may take until its Ray cluster is ready, such as to wait for a GPU; then the run fails
    as StartDeadlineExceeded or Unschedulable."""
    active_seconds: Annotated[int, Field(ge=1, le=YEAR, examples=[86400])] | None = None
    """Seconds that the run may train, all attempts together, waiting and suspension not counted; then it saves a
    checkpoint and fails as DeadlineExceeded. Without it: no limit."""
    stall_seconds: Annotated[int, Field(ge=1, le=YEAR, examples=[1800])] | None = None
    """Seconds without a new step, evaluation or checkpoint after which an attempt fails as Stalled. Without it: learned
    from the run's own steps and evaluations. A change holds from the next attempt on."""
    final_evaluation_seconds: Annotated[int, Field(ge=1, le=YEAR, examples=[3600])] | None = None
    """Seconds that the evaluation of the tuned model may take, all sets together. Then the episodes that still run are
    given up, the run succeeds, and its status names the sets that have no figure. Set it below `stallSeconds`, which
    holds for each set. Without it: no limit but that one. A change holds from the next attempt on."""
    stop_grace_seconds: Annotated[int, Field(ge=1, le=3600, examples=[300])] = 120
    """Seconds that the training may take to save and to stop when it is suspended, evicted or too late. A change holds
    from the next attempt on."""


class CleanupSpec(ApiModel):
    """What is removed after the end."""

    cluster_ttl_seconds: Annotated[int, Field(ge=0, le=604_800, alias="clusterTTLSeconds", examples=[600])] = 0
    """Seconds that the Ray cluster, and its GPUs, are kept after the run has ended, to look into its pods. 0: it is
    given back at once."""
    run_ttl_seconds: Annotated[int | None, Field(ge=1, le=YEAR, alias="runTTLSeconds", examples=[604800])] = None
    """Seconds after its end after which the run itself is deleted, with its Job and log. Without it: it stays; set it
    not where a tool such as Argo CD would create the run again."""
