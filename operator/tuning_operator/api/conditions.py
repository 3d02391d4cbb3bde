"""Conditions, reasons and phases of a TuningRun, and how new conditions join old ones.

Types and reasons are the contract for machines, the phase is a summary for people. The engine decides the values;
nothing here reads a clock: `now` is a parameter.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tuning_operator.api.model import ApiModel


class Phase(StrEnum):
    """One word for the column STATUS. Only Succeeded and Failed are terminal."""

    PENDING = "Pending"
    """Accepted, nothing made yet."""
    STARTING = "Starting"
    """Cluster or job are on their way."""
    RUNNING = "Running"
    """The Job is made; its driver submits the training and follows it."""
    RETRYING = "Retrying"
    """An attempt has failed; the next one begins when the old cluster is gone and the back-off is over."""
    SUSPENDING = "Suspending"
    """Asked to stop: the training saves, then its cluster is given back."""
    SUSPENDED = "Suspended"
    """Stopped on request: it holds no resources, and goes on when `suspend` becomes false."""
    SUCCEEDED = "Succeeded"
    """Every step is done, evaluated and saved."""
    FAILED = "Failed"
    """It ended otherwise; reason and message tell."""
    REJECTED = "Rejected"
    """Something it needs is missing; it goes on by itself when that appears."""

    @property
    def terminal(self) -> bool:
        """Whether the run has ended for good."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


class ConditionType(StrEnum):
    """Types of conditions, in the order in which they are listed. Never Ready, Reconciling or Stalled."""

    ACCEPTED = "Accepted"
    """The spec can be executed here and now. Never goes back once a child exists."""
    ADMITTED = "Admitted"
    """The run may take its resources; at once where there is no queue."""
    CLUSTER_READY = "ClusterReady"
    """The Ray head and all required workers are ready."""
    STARTED = "Started"
    """The driver runs, and the training with it, or did so before in this attempt."""
    METRICS_AVAILABLE = "MetricsAvailable"
    """The sidecar answers; Unknown when it does not, which says nothing about the run. False when the run has ended."""
    DEGRADED = "Degraded"
    """Something beside the training needs a person."""
    SUSPENDED = "Suspended"
    """The run is stopped on request and holds no resources."""
    FINISHED = "Finished"
    """The run has ended, well or not."""
    SUCCEEDED = "Succeeded"
    """The result; Unknown while the run is active."""


class ConditionStatus(StrEnum):
    """The three values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Reasons beside the failure causes of `tuning_contract.causes`, which are reasons too."""

    VALID = "Valid"
    """Accepted: everything the spec needs is there."""
    NOT_AVAILABLE = "NotAvailable"
    """Accepted: a known engine or algorithm that this version does not have."""
    IMAGE_NOT_SET = "ImageNotSet"
    """Accepted: neither the run nor the installation names an image for the Ray containers."""
    KUBERAY_MISSING = "KubeRayMissing"
    """Accepted: the API server does not serve RayClusters."""
    KUBERAY_TOO_OLD = "KubeRayTooOld"
    """Accepted: the API server serves RayClusters that lack fields which the operator sets; the message names them."""
    NODE_POOL_UNKNOWN = "NodePoolUnknown"
    """Accepted: the installation has no node pool of that name; the message names those that it has."""
    NODE_POOL_TOO_SMALL = "NodePoolTooSmall"
    """Accepted: a pod asks for more GPUs than a node of its pool has."""
    REFERENCE_NOT_FOUND = "ReferenceNotFound"
    """Accepted: a ConfigMap, a key in it, a PersistentVolumeClaim or a TuningRun that the run needs is missing."""
    RUN_NOT_FINISHED = "RunNotFinished"
    """Accepted: the run whose final model is wanted has not succeeded, or has failed."""
    CLAIM_UNFIT = "ClaimUnfit"
    """Accepted: a claim has no access mode that lets the pods of the run use it as they must."""
    INVALID = "Invalid"
    """Accepted: the object cannot be read, or what would be made of it is refused."""
    NAME_CONFLICT = "NameConflict"
    """Accepted or Degraded: an object of the child's name belongs to somebody else."""
    NO_QUEUE = "NoQueue"
    """Admitted: the run names no queue, so it waits for nobody."""
    CREATING = "Creating"
    """ClusterReady: the RayCluster is made, its pods are not ready yet."""
    READY = "Ready"
    """ClusterReady: head and workers are ready."""
    WORKERS_MISSING = "WorkersMissing"
    """ClusterReady: the training has begun, and some of its workers are not ready now."""
    RELEASED = "Released"
    """ClusterReady: the run has ended and its cluster is given back."""
    WAITING_FOR_CLUSTER = "WaitingForCluster"
    """Started: the Job is made when the cluster is ready."""
    JOB_CREATED = "JobCreated"
    """Started: the Job is there; its driver does not run yet, or not now."""
    DRIVER_RUNNING = "DriverRunning"
    """Started: the driver follows the training."""
    RUN_ENDED = "RunEnded"
    """Started, MetricsAvailable: the run has ended; the message tells what was."""
    NOT_STARTED = "NotStarted"
    """MetricsAvailable: no head pod yet."""
    SIDECAR_ANSWERS = "SidecarAnswers"
    """MetricsAvailable: progress was read."""
    SIDECAR_UNREACHABLE = "SidecarUnreachable"
    """MetricsAvailable: the last poll got no answer."""
    AS_EXPECTED = "AsExpected"
    """Degraded: nothing to report."""
    FORBIDDEN = "Forbidden"
    """Accepted (Unknown) or Degraded: the operator lacks a permission; the message names verb and resource."""
    DRIVER_EXIT = "DriverExit"
    """Degraded: the run succeeded although its driver ended badly."""
    POD_NOT_CREATED = "PodNotCreated"
    """Degraded: a pod is refused for now or does not come, or its volumes or network are not ready."""
    SUSPENDING = "Suspending"
    """Suspended: it was asked for; the training saves, or its pods are on their way out."""
    SUSPENDED = "Suspended"
    """Suspended: the run holds no resources."""
    BACKING_OFF = "BackingOff"
    """ClusterReady, Started: an attempt has failed, and the next one has not begun."""
    NOT_SUSPENDED = "NotSuspended"
    """Suspended: nobody asked for it."""
    IN_PROGRESS = "InProgress"
    """Finished, Succeeded: the run is active."""
    COMPLETED = "Completed"
    """Finished, Succeeded: all steps done, evaluated and saved."""


REASONS_OF_REJECTION = (
    Reason.NOT_AVAILABLE,
    Reason.IMAGE_NOT_SET,
    Reason.KUBERAY_MISSING,
    Reason.KUBERAY_TOO_OLD,
    Reason.NODE_POOL_UNKNOWN,
    Reason.NODE_POOL_TOO_SMALL,
    Reason.REFERENCE_NOT_FOUND,
    Reason.RUN_NOT_FINISHED,
    Reason.CLAIM_UNFIT,
    Reason.INVALID,
    Reason.NAME_CONFLICT,
)
"""All reasons of Accepted=False."""


class Condition(ApiModel):
    """One observation of the operator."""

    type: Annotated[str, Field(max_length=316, min_length=1)]
    """Name of the condition, such as Accepted or Succeeded."""
    status: ConditionStatus
    """True, False, or Unknown where nothing is known yet."""
    reason: Annotated[str, Field(max_length=128, min_length=1)]
    """Why it is so, in one word for machines."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """Why it is so, in a sentence for people."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """metadata.generation that was judged."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When the status last changed, RFC 3339; of Degraded, when what it shows began to be shown."""


def timestamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds of UTC, as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merge(old: Iterable[Condition], new: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
    """Put new conditions over old ones.

    Args:
        old: what the status holds.
        new: what is true now, without transition times; types that are not named stay as they were.
        now: becomes the transition time of a condition that is new or whose status changed. Degraded, where each
            text is another matter, changes with every reason and message: so the time is that of what it shows.

    Returns:
        All conditions in the order of ConditionType, unknown types last; equal to `old` when nothing changed.
    """
    merged = {condition.type: condition for condition in old}
    for condition in new:
        before = merged.get(condition.type)
        same = before is not None and _subject(before) == _subject(condition)
        moment = before.last_transition_time if before is not None and same else timestamp(now)
        merged[condition.type] = condition.model_copy(update={"last_transition_time": moment})
    order = {str(kind): place for place, kind in enumerate(ConditionType)}
    return tuple(sorted(merged.values(), key=lambda condition: (order.get(condition.type, len(order)), condition.type)))


def _subject(condition: Condition) -> tuple[str, ...]:
    words = (condition.reason, condition.message) if condition.type == ConditionType.DEGRADED else ()
    return (condition.status, *words)


def find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The condition of this type, if there is one."""
    return next((condition for condition in conditions if condition.type == kind), None)


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether the condition is there and True."""
    condition = find(conditions, kind)
    return condition is not None and condition.status is ConditionStatus.TRUE
