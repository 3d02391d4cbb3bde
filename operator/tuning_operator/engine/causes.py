"""What each failure cause means: who has to act, what becomes of the run, and how long a trouble may last.

One row a cause. `ending` decides by it after every failed attempt, `policies.patience` and `policies.deadlines` while
pods do not start; the table in docs/concepts/life-cycle.md is made from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tuning_contract.causes import Cause
from tuning_operator.api.v1alpha1_lifecycle import RetryAction, RetrySpec

UNCOUNTED_LIMIT = 20
"""Failures that do not count, such as lost nodes, without a new checkpoint between them, after which a run fails."""
LONGEST_BACKOFF = timedelta(minutes=15)
"""To which the wait between two attempts grows."""


class Kind(StrEnum):
    """Who has to act."""

    USER = "User"
    """Whoever wrote the run: its code, data or spec."""
    TRAINING = "Training"
    """It came out of the training itself, or of what it talks to."""
    LIMIT = "Limit"
    """The run has used up what it may."""
    INFRASTRUCTURE = "Infrastructure"
    """The cluster: trying again helps, as a rule."""


class Patience(StrEnum):
    """How long what keeps a pod from starting is waited out before the attempt fails."""

    NONE = "at once"
    STARTUP = "startupPatienceSeconds"
    """Of the installation: a missing image may be pushed, a missing key be added."""
    START_DEADLINE = "deadlines.startSeconds"
    """Of the run: a node may become free."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cause."""

    kind: Kind
    action: RetryAction
    """Unless `spec.retry.rules` names the cause."""
    advice: str
    """The reader's next step, in an Event."""
    patience: Patience = Patience.NONE

    @property
    def counted(self) -> bool:
        """Whether it counts for `spec.retry.maxAttempts`, unless a rule says otherwise."""
        return self.action is not RetryAction.RETRY_UNCOUNTED


_LOG = "read the end of the Job's log"
_PODS = "look at the nodes and at the Events of the run's pods"
_NEW_RUN = "correct it and create the run anew"

CAUSES: Mapping[Cause, Row] = {
    # The user's input or code: it would fail in the same way again.
    Cause.CONFIG_INVALID: Row(Kind.USER, RetryAction.FAIL, _NEW_RUN, Patience.STARTUP),
    Cause.WORKFLOW_ERROR: Row(Kind.USER, RetryAction.FAIL, f"{_LOG} for the traceback; {_NEW_RUN}"),
    Cause.DATASET_INVALID: Row(Kind.USER, RetryAction.FAIL, f"look at the named rows of the dataset; {_NEW_RUN}"),
    Cause.NON_FINITE_LOSS: Row(
        Kind.USER, RetryAction.FAIL, "check the rewards, or lower `algorithm.learningRate`, in a new run"
    ),
    Cause.OUT_OF_MEMORY: Row(
        Kind.USER,
        RetryAction.FAIL,
        "raise the memory in `cluster`, or lower `algorithm.batchSize`, in a new run",
        Patience.STARTUP,
    ),
    # The training itself, and the services that it uses.
    Cause.ENGINE_ERROR: Row(Kind.TRAINING, RetryAction.RETRY, _LOG),
    Cause.INCOMPLETE_STEPS: Row(Kind.TRAINING, RetryAction.FAIL, _LOG),
    Cause.EPISODE_FAILURES: Row(Kind.TRAINING, RetryAction.RETRY, f"{_LOG} for why episodes fail"),
    Cause.JUDGE_UNAVAILABLE: Row(Kind.TRAINING, RetryAction.RETRY, "see whether the judge's service answers"),
    Cause.ENVIRONMENT_UNAVAILABLE: Row(Kind.TRAINING, RetryAction.RETRY, "see whether the environment answers"),
    Cause.EVALUATION_FAILED: Row(Kind.TRAINING, RetryAction.FAIL, _LOG),
    Cause.STALLED: Row(
        Kind.TRAINING, RetryAction.RETRY, f"{_LOG}; if steps just take that long, raise `deadlines.stallSeconds`"
    ),
    Cause.UNKNOWN: Row(Kind.TRAINING, RetryAction.RETRY, _LOG),
    # Limits of the run.
    Cause.START_DEADLINE_EXCEEDED: Row(
        Kind.LIMIT, RetryAction.FAIL, "remove what holds the pods back, or raise `deadlines.startSeconds`, in a new run"
    ),
    Cause.DEADLINE_EXCEEDED: Row(
        Kind.LIMIT, RetryAction.FAIL, "go on in a new run with `checkpoint.resumeFrom` and a longer deadline"
    ),
    # The cluster.
    Cause.UNSCHEDULABLE: Row(
        Kind.INFRASTRUCTURE, RetryAction.FAIL, "ask for less in `cluster`, or for more nodes", Patience.START_DEADLINE
    ),
    Cause.IMAGE_PULL_FAILED: Row(
        Kind.INFRASTRUCTURE,
        RetryAction.FAIL,
        "correct the image, or `imagePullSecrets`, in a new run",
        Patience.STARTUP,
    ),
    Cause.CONTAINER_CONFIG_ERROR: Row(
        Kind.INFRASTRUCTURE,
        RetryAction.FAIL,
        "create the Secret or ConfigMap that is named, then create the run anew",
        Patience.STARTUP,
    ),
    Cause.HUB_UNREACHABLE: Row(Kind.INFRASTRUCTURE, RetryAction.RETRY, "see whether the pods reach the hub"),
    Cause.HEAD_LOST: Row(Kind.INFRASTRUCTURE, RetryAction.RETRY, _PODS, Patience.STARTUP),
    Cause.WORKER_LOST: Row(Kind.INFRASTRUCTURE, RetryAction.RETRY, _PODS, Patience.STARTUP),
    Cause.DRIVER_LOST: Row(Kind.INFRASTRUCTURE, RetryAction.RETRY, _PODS),
    Cause.STORAGE_FAILED: Row(
        Kind.INFRASTRUCTURE, RetryAction.RETRY, "make room on the claim, or see why it cannot be written"
    ),
    Cause.NODE_LOST: Row(Kind.INFRASTRUCTURE, RetryAction.RETRY_UNCOUNTED, "look at the node"),
    Cause.EVICTED: Row(Kind.INFRASTRUCTURE, RetryAction.RETRY_UNCOUNTED, "nothing needs to be done"),
    Cause.PREEMPTED: Row(Kind.INFRASTRUCTURE, RetryAction.RETRY_UNCOUNTED, "nothing needs to be done"),
}


def action_for(cause: Cause, retry: RetrySpec) -> RetryAction:
    """What the run wants done after a failure of this cause: its first rule that names it, else the table's action."""
    return next((rule.action for rule in retry.rules if cause in rule.causes), CAUSES[cause].action)


def backoff(retry: RetrySpec, counted_failures: int) -> timedelta:
    """How long to wait before the next attempt.

    Args:
        retry: of the run.
        counted_failures: since the last new checkpoint, the present one among them; 0 or 1: no doubling.
    """
    first = timedelta(seconds=retry.backoff_seconds)
    longest = max(first, LONGEST_BACKOFF)
    doublings: int = 2 ** max(0, counted_failures - 1)
    return min(first * doublings, longest)
