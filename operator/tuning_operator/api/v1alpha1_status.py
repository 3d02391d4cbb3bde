"""`status` of a TuningRun: what the operator reports. Fixed in size, below 8 KiB.

Written by the operator alone, computed by `engine`. Fractions are strings, since the API holds no floats that
clients could read differently; the strings of `display` are for the printer columns.
"""

from typing import Annotated

from pydantic import Field

from tuning_operator.api.conditions import Condition, Phase
from tuning_operator.api.model import ApiModel, list_map

Name = Annotated[str, Field(max_length=253)]
Text = Annotated[str, Field(max_length=1024)]
Word = Annotated[str, Field(max_length=128)]
Figure = Annotated[str, Field(max_length=32)]
Moment = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]


class AttemptStatus(ApiModel):
    """The current attempt: one RayCluster and one Job."""

    number: Count = 0
    """Number of the attempt, from 1; the intent, written before any child of a second or later attempt is made."""
    ray_cluster_name: Name | None = None
    """Name of the attempt's RayCluster."""
    ray_cluster_uid: Annotated[Word | None, Field(alias="rayClusterUID")] = None
    """UID of the RayCluster that was observed; without it none was seen yet."""
    job_name: Name | None = None
    """Name of the attempt's Job; its log is the training log."""
    job_uid: Annotated[Word | None, Field(alias="jobUID")] = None
    """UID of the Job that was observed."""
    ray_job_id: Name | None = None
    """Submission id of the training in Ray."""
    head_pod_uid: Annotated[Word | None, Field(alias="headPodUID")] = None
    """UID of the head pod on which the training was started."""
    head_restart_count: Count | None = None
    """Restarts of the Ray container in that pod when the training was started."""
    start_time: Moment | None = None
    """When the attempt began, RFC 3339."""
    running_time: Moment | None = None
    """When its Job was made, from which `deadlines.activeSeconds` counts, RFC 3339."""
    first_step: Count | None = None
    """Step of the newest complete checkpoint when the attempt began."""
    counted_failures: Count | None = None
    """Failures since the last new checkpoint that count for `retry.maxAttempts`."""
    uncounted_failures: Count | None = None
    """Failures since the last new checkpoint that do not count, such as lost nodes."""
    retry_time: Moment | None = None
    """When the next attempt may begin, RFC 3339; it also waits until the pods of this one are gone."""
    stop_time: Moment | None = None
    """When the training was asked to stop, RFC 3339."""
    stop_reason: Word | None = None
    """Why it was asked to stop: Suspended or DeadlineExceeded."""
    earlier_gpu_seconds: Annotated[Count | None, Field(alias="earlierGPUSeconds")] = None
    """Seconds times GPUs of the pods of all attempts before this one."""
    earlier_pod_seconds: Count | None = None
    """Seconds that the pods of all attempts before this one have run, added up."""


class DisplayStatus(ApiModel):
    """Texts for the printer columns."""

    model: Word | None = None
    """The model that is tuned, shortened."""
    gpus: Word | None = None
    """GPUs that the run holds, or asked for."""
    evaluation: Word | None = None
    """Held-out reward before and after."""
    eta: Word | None = None
    """Time that is left, such as 4m or 3h."""


class ModelSourceStatus(ApiModel):
    """The finished run whose final model this run starts from, as it was when this run was accepted."""

    run_uid: Annotated[Word | None, Field(alias="runUID")] = None
    """UID of that run; another run of its name is another model."""
    claim_name: Name | None = None
    """PersistentVolumeClaim that holds the model."""


class AttemptRecord(ApiModel):
    """One attempt that has ended, and how."""

    number: Count
    """Number of the attempt, from 1."""
    outcome: Word
    """How it ended: Succeeded, Failed, or Stopped on request."""
    cause: Word | None = None
    """Why it failed, as one of the causes."""
    message: Annotated[str, Field(max_length=256)] | None = None
    """The cause in words, cut to its two ends."""
    counted: bool | None = None
    """Whether it counts for `retry.maxAttempts`; absent when it succeeded."""
    last_step: Count | None = None
    """Last step that it finished, of the whole run."""
    start_time: Moment | None = None
    """When the attempt began, RFC 3339."""
    end_time: Moment | None = None
    """When the attempt ended, RFC 3339."""


class ProgressStatus(ApiModel):
    """How far the training is, and its last figures."""

    step: Count = 0
    """Finished steps of the whole run."""
    target_steps: Count = 0
    """Steps of the whole run; 0 while unknown."""
    percent: Annotated[int, Field(ge=0, le=100)] = 0
    """Finished share of all steps, in percent."""
    summary: Figure | None = None
    """Finished and all steps, such as 120/500."""
    reward: Figure | None = None
    """Mean reward of the last step; - before the first."""
    loss: Figure | None = None
    """Objective of the last step; it hovers near 0 and does not fall."""
    kl: Figure | None = None
    """Divergence from the base model in the last step."""
    eta_seconds: Count | None = None
    """Seconds that are left, as estimated from past steps."""
    updated_at: Moment | None = None
    """Time of the newest figure, RFC 3339."""


class CheckpointStatus(ApiModel):
    """The newest complete checkpoint."""

    step: Count | None = None
    """Finished steps that the checkpoint holds."""
    path: Text | None = None
    """Folder below the root of the volume."""
    claim_name: Name | None = None
    """PersistentVolumeClaim that holds it."""
    saved_at: Moment | None = None
    """When it was complete, RFC 3339."""


class EvaluationFigure(ApiModel):
    """The result of one evaluation."""

    step: Count
    """Finished steps of the model that was evaluated; 0 is the base model."""
    mean: Figure
    """Mean reward over all episodes of the set."""


class EvaluationStatus(ApiModel):
    """One held-out set, before and now."""

    dataset: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the held-out set, as in the spec."""
    baseline: EvaluationFigure | None = None
    """Figures of the base model, before the first step."""
    last: EvaluationFigure | None = None
    """Figures of the newest evaluation."""


class UsageStatus(ApiModel):
    """What the run has cost so far, all attempts together."""

    gpu_seconds: Count | None = None
    """Seconds times GPUs of its pods."""
    pod_seconds: Count | None = None
    """Seconds that its pods have run, added up."""
    active_seconds: Count | None = None
    """Seconds in which attempts that have ended were running, for `deadlines.activeSeconds`."""


class TuningRunStatus(ApiModel):
    """Observed state of the training."""

    phase: Phase | None = None
    """Summary for people; machines read the conditions."""
    reason: Word | None = None
    """Why the phase is what it is, in one word."""
    message: Text | None = None
    """Why the phase is what it is, in a sentence."""
    observed_generation: Count | None = None
    """metadata.generation that this status speaks of."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra=list_map("type"))] = ()
    """What is known of the run, one entry for each type."""
    attempt: AttemptStatus = AttemptStatus()
    """The current attempt: its children, and when it began."""
    model_source: ModelSourceStatus = ModelSourceStatus()
    """Where the model of another run lies, for a run that starts from one."""
    display: DisplayStatus = DisplayStatus()
    """Texts for the printer columns."""
    history: Annotated[tuple[AttemptRecord, ...], Field(max_length=10)] = ()
    """The last attempts that have ended, oldest first."""
    progress: ProgressStatus = ProgressStatus()
    """How far the training is, and its last figures."""
    checkpoint: CheckpointStatus = CheckpointStatus()
    """The newest complete checkpoint."""
    evaluation: Annotated[tuple[EvaluationStatus, ...], Field(max_length=8, json_schema_extra=list_map("dataset"))] = ()
    """Figures of the held-out sets, one entry for each."""
    usage: UsageStatus = UsageStatus()
    """What the run has cost so far, all attempts together."""
