"""The status that a world deserves: the facts, with what the policies contribute laid over them.

Called by `plan`, and by `reconcile` for an object that cannot be read (`unreadable`). Everything is computed anew
in every pass; `plan` decides whether the difference is worth a write.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from tuning_contract.result import FAILED, SUCCEEDED
from tuning_operator.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    Reason,
    is_true,
    merge,
    timestamp,
)
from tuning_operator.api.v1alpha1_status import AttemptRecord, AttemptStatus, ModelSourceStatus, TuningRunStatus
from tuning_operator.desired import names
from tuning_operator.engine import diagnosis, evidence, figures
from tuning_operator.engine.contribution import (
    HISTORY_BYTES,
    MESSAGE_BYTES,
    NOTHING_WRONG,
    Contribution,
    Verdict,
    condition,
    cut,
)
from tuning_operator.engine.policies.children import missing
from tuning_operator.engine.world import ContainerState, Reachability, World

HISTORY = 10
"""Attempts that are kept, as many as the CRD takes."""


def compose(world: World, contributions: Iterable[Contribution]) -> TuningRunStatus:
    """Build the whole status; usage is left as it was, since it changes with every second."""
    parts = tuple(contributions)
    old = world.run.status
    verdict = next((part.verdict for part in parts if part.verdict is not None), None)
    told = next((part for part in parts if part.reason), Contribution())
    phase = next((part.phase for part in parts if part.phase is not None), None) or _phase(world, verdict)
    known = {item.type: item for item in _conditions(world, verdict)}
    known |= {item.type: item for part in parts for item in part.conditions}
    new = old.model_copy(
        update={
            "phase": phase,
            "reason": told.reason or _reason(world, phase, verdict),
            "message": cut(told.message or _message(world, phase, verdict), MESSAGE_BYTES),
            "observed_generation": world.run.metadata.generation,
            "conditions": _merged(world, known.values()),
            "attempt": _attempt(world, phase),
            "model_source": _model_source(world, phase),
            "history": _history(world, verdict),
            "progress": figures.progress_of(world, verdict),
            "checkpoint": figures.checkpoint_of(world, verdict),
            "evaluation": figures.evaluation_of(world, verdict),
        }
    )
    return new.model_copy(update={"display": figures.display_of(world, new, verdict)})


def with_conditions(world: World, contributions: Iterable[Contribution]) -> TuningRunStatus:
    """The old status, which holds for the present spec as well, with only the contributed conditions laid over it."""
    old, generation = world.run.status, world.run.metadata.generation
    conditions = [item for part in contributions for item in part.conditions]
    if not conditions and old.observed_generation in (None, generation):
        return old
    conditions = [*old.conditions, *conditions]
    return old.model_copy(update={"observed_generation": generation, "conditions": _merged(world, conditions)})


def unreadable(status: Mapping[str, Any], generation: int, message: str, now: datetime) -> dict[str, Any]:
    """The status of an object whose spec cannot be read, as a merge patch; empty when it says so already."""
    accepted = condition(ConditionType.ACCEPTED, False, Reason.INVALID, message)
    old = [Condition.model_validate(item) for item in status.get("conditions", ())]
    generation_seen = accepted.model_copy(update={"observed_generation": generation})
    new = {
        "phase": str(Phase.REJECTED),
        "reason": str(Reason.INVALID),
        "message": cut(message, MESSAGE_BYTES),
        "observedGeneration": generation,
        "conditions": [item.to_object() for item in merge(old, [generation_seen], now)],
    }
    return {} if all(status.get(key) == value for key, value in new.items()) else new


def _phase(world: World, verdict: Verdict | None) -> Phase:
    if verdict is not None:
        return Phase.SUCCEEDED if verdict.succeeded else Phase.FAILED
    if world.job_made:
        return Phase.RUNNING
    return Phase.PENDING if missing(world) else Phase.STARTING


def _reason(world: World, phase: Phase, verdict: Verdict | None) -> str:
    if verdict is not None:
        return Reason.COMPLETED if verdict.cause is None else verdict.cause
    if phase is Phase.RUNNING:
        return _started(world).reason
    return Reason.CREATING if phase is Phase.STARTING else Reason.VALID


def _message(world: World, phase: Phase, verdict: Verdict | None) -> str:
    if verdict is not None:
        return verdict.message
    if phase is Phase.RUNNING:
        return _started(world).message
    if phase is Phase.STARTING:
        waiting = f"waiting for RayCluster {names.attempt(world.run, world.attempt)}"
        return f"{waiting}: {_pods_ready(world)}" if world.workers_wanted else waiting
    return "making the run's objects"


def _conditions(world: World, verdict: Verdict | None) -> list[Condition]:
    ended = verdict is not None
    outcome = verdict.message if verdict else "the run is in progress"
    over = "the run has ended" if ended else outcome
    finished = condition(ConditionType.FINISHED, ended, _result_reason(verdict), over)
    success = None if verdict is None else verdict.succeeded
    complaint = verdict.complaint if verdict else ""
    return [
        condition(ConditionType.ACCEPTED, True, Reason.VALID, "the run can be executed here"),
        condition(ConditionType.ADMITTED, True, Reason.NO_QUEUE, "the run names no queue"),
        _cluster_ready(world, verdict),
        _started(world) if verdict is None else _had_started(world, verdict),
        _metrics(world, verdict),
        condition(
            ConditionType.DEGRADED,
            bool(complaint),
            Reason.DRIVER_EXIT if complaint else Reason.AS_EXPECTED,
            complaint or NOTHING_WRONG,
        ),
        condition(ConditionType.SUSPENDED, False, Reason.NOT_SUSPENDED, "nobody has suspended the run"),
        finished,
        condition(ConditionType.SUCCEEDED, success, _result_reason(verdict), outcome),
    ]


def _result_reason(verdict: Verdict | None) -> str:
    if verdict is None:
        return Reason.IN_PROGRESS
    return Reason.COMPLETED if verdict.cause is None else verdict.cause


def _cluster_ready(world: World, verdict: Verdict | None) -> Condition:
    if verdict is not None:
        return condition(ConditionType.CLUSTER_READY, False, Reason.RELEASED, "the run has ended")
    # Before the Job is made readiness comes and goes; it is said once, with the Job.
    made = world.job is not None and world.cluster is not None
    if made and world.workers_ready >= world.workers_wanted:
        return condition(ConditionType.CLUSTER_READY, True, Reason.READY, "head and workers are ready")
    reason = Reason.WORKERS_MISSING if made else Reason.CREATING
    text = _pods_ready(world) if world.workers_wanted else "the head is not ready yet"
    return condition(ConditionType.CLUSTER_READY, False, reason, text)


def _pods_ready(world: World) -> str:
    """How many pods of a cluster with workers are ready, and why not all."""
    head = "the head is ready" if world.head is not None and world.head.serves_ray else "the head is not ready yet"
    count = f"{world.workers_ready} of {world.workers_wanted} worker pods ready"
    words = diagnosis.words_on_workers(world)
    return f"{head}, {count}: {words}" if words else f"{head}, {count}"


def _started(world: World) -> Condition:
    kind = ConditionType.STARTED
    if not world.job_made:
        return condition(kind, False, Reason.WAITING_FOR_CLUSTER, "the Job is made when the cluster is ready")
    if figures.fresh_progress(world) is not None or _driver_runs(world):
        return condition(kind, True, Reason.DRIVER_RUNNING, "the driver follows the training")
    if is_true(world.run.status.conditions, kind):
        return condition(kind, True, Reason.JOB_CREATED, "the training has started, its driver does not run now")
    return condition(kind, False, Reason.JOB_CREATED, "the Job is made, its driver has not started yet")


def _driver_runs(world: World) -> bool:
    containers = [pod.container(evidence.DRIVER) for pod in world.drivers]
    return any(item is not None and item.state is ContainerState.RUNNING for item in containers)


def _had_started(world: World, verdict: Verdict) -> Condition:
    """Of an ended run: what was, by any trace of a driver that ran or of a training that came on."""
    seen = _started(world).status is ConditionStatus.TRUE
    heard = verdict.succeeded or bool(verdict.step) or evidence.last_word(world) is not None
    if seen or heard:
        return condition(ConditionType.STARTED, True, Reason.RUN_ENDED, "the training had started when the run ended")
    return condition(ConditionType.STARTED, False, Reason.RUN_ENDED, "the run ended before the training had started")


def _metrics(world: World, verdict: Verdict | None) -> Condition:
    kind, state = ConditionType.METRICS_AVAILABLE, world.notes.metrics
    if verdict is not None:
        return condition(kind, False, Reason.RUN_ENDED, "the head pod, and the sidecar in it, are given back")
    if state is Reachability.ANSWERED:
        return condition(kind, True, Reason.SIDECAR_ANSWERS, "progress is read from the head pod")
    if state is Reachability.UNREACHABLE:
        return condition(kind, None, Reason.SIDECAR_UNREACHABLE, "the sidecar did not answer; the run is not affected")
    return condition(kind, None, Reason.NOT_STARTED, "no progress was read yet")


def _merged(world: World, new: Iterable[Condition]) -> tuple[Condition, ...]:
    generation = world.run.metadata.generation
    seen = [item.model_copy(update={"observed_generation": generation}) for item in new]
    return merge(world.run.status.conditions, seen, world.now)


def _attempt(world: World, phase: Phase) -> AttemptStatus:
    """Intent by number and names, observation by UIDs; what was observed once stays."""
    old, number = world.run.status.attempt, world.attempt
    if phase is Phase.REJECTED or missing(world):
        return old
    name = names.attempt(world.run, number)
    cluster_uid = old.ray_cluster_uid or (world.cluster.uid if world.cluster else None)
    job_uid, head_uid, restarts = old.job_uid, old.head_pod_uid, old.head_restart_count
    if world.job is not None:
        job_uid = world.job.uid
        head_uid = head_uid or world.job.head_pod_uid or None
        restarts = restarts if restarts is not None else world.job.head_restarts
    return AttemptStatus(
        number=number,
        ray_cluster_name=name,
        ray_cluster_uid=cluster_uid,
        job_name=name,
        job_uid=job_uid,
        ray_job_id=name,
        head_pod_uid=head_uid,
        head_restart_count=restarts,
        start_time=old.start_time or timestamp(world.now),
    )


def _model_source(world: World, phase: Phase) -> ModelSourceStatus:
    """Where another run's model lies, recorded with the attempt: that run may be deleted from then on."""
    source = world.model_source
    if source is None or phase is Phase.REJECTED or missing(world):
        return world.run.status.model_source
    return ModelSourceStatus(run_uid=source.run_uid, claim_name=source.claim_name)


def _history(world: World, verdict: Verdict | None) -> tuple[AttemptRecord, ...]:
    old = world.run.status.history
    if verdict is None:
        return old
    record = AttemptRecord(
        number=world.attempt,
        outcome=SUCCEEDED if verdict.succeeded else FAILED,
        cause=verdict.cause,
        message=cut(verdict.message, HISTORY_BYTES),
        last_step=figures.progress_of(world, verdict).step,
        start_time=world.run.status.attempt.start_time,
        end_time=timestamp(world.now),
    )
    return (*(item for item in old if item.number != record.number), record)[-HISTORY:]
