"""Why an attempt ended badly.

The runner and the driver name the cause they saw; the engine of the operator adds those that only the
cluster shows. Values go into status.reason, history and messages, so they are part of the API.
"""

from enum import StrEnum


class Cause(StrEnum):
    """Failure causes, grouped by who has to act."""

    # The user's input or code: trying again cannot help.
    CONFIG_INVALID = "ConfigInvalid"
    WORKFLOW_ERROR = "WorkflowError"
    DATASET_INVALID = "DatasetInvalid"
    NON_FINITE_LOSS = "NonFiniteLoss"
    OUT_OF_MEMORY = "OutOfMemory"
    # The training itself.
    ENGINE_ERROR = "EngineError"
    INCOMPLETE_STEPS = "IncompleteSteps"
    EPISODE_FAILURES = "EpisodeFailures"
    JUDGE_UNAVAILABLE = "JudgeUnavailable"
    ENVIRONMENT_UNAVAILABLE = "EnvironmentUnavailable"
    EVALUATION_FAILED = "EvaluationFailed"
    STALLED = "Stalled"
    # Limits of the run.
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    # What lies outside the cluster: trying again may help.
    HUB_UNREACHABLE = "HubUnreachable"
    # The cluster.
    IMAGE_PULL_FAILED = "ImagePullFailed"
    UNSCHEDULABLE = "Unschedulable"
    CONTAINER_CONFIG_ERROR = "ContainerConfigError"
    HEAD_LOST = "HeadLost"
    WORKER_LOST = "WorkerLost"
    DRIVER_LOST = "DriverLost"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    STORAGE_FAILED = "StorageFailed"
    UNKNOWN = "Unknown"
