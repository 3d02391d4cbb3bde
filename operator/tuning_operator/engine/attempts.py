"""The attempt as the status shows it: intent, observation, what has ended, and what comes next. Called by `status`."""

from dataclasses import replace

from tuning_operator.api.conditions import Phase, timestamp
from tuning_operator.api.v1alpha1_status import AttemptRecord, AttemptStatus, UsageStatus
from tuning_operator.desired import names
from tuning_operator.engine import evidence, figures
from tuning_operator.engine.contribution import HISTORY_BYTES, cut
from tuning_operator.engine.ending import Ending
from tuning_operator.engine.policies.children import missing
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import World

HISTORY = 10
"""Attempts that are kept, as many as the CRD takes."""


def attempt_status(world: World, phase: Phase, ended: Ending | None, stop: str) -> AttemptStatus:
    """Intent by number and names, observation by UIDs; what was observed once stays.

    Args:
        world: of the attempt.
        phase: of the run, from now on.
        ended: how the attempt ends, if it ends now.
        stop: why its training is to stop, if it is.
    """
    old = _observed(world, phase, ended is not None)
    if stop and old.stop_time is None:
        old = old.model_copy(update={"stop_time": timestamp(world.now), "stop_reason": stop})
    if ended is None or ended.phase.terminal:
        return old
    due = timestamp(ended.retry_time) if ended.retry_time is not None else None
    counts = {"counted_failures": ended.counted_failures, "uncounted_failures": ended.uncounted_failures}
    return old.model_copy(update={**counts, "retry_time": due})


def _observed(world: World, phase: Phase, ends: bool) -> AttemptStatus:
    old, number = world.run.status.attempt, world.attempt
    if phase is Phase.SUSPENDED and not world.attempt_over:
        # Its time to start counts from when the run goes on.
        return old.model_copy(update={"start_time": None})
    # The RayCluster of an attempt that ends is named even if the rest was never made: its pods are known by it.
    if phase is Phase.REJECTED or (missing(world) and not (ends and world.cluster is not None)):
        begins = number > 1 and old.start_time is None
        return old.model_copy(update={"start_time": timestamp(world.now)}) if begins else old
    name = names.attempt(world.run, number)
    job_uid, head_uid, restarts, running = old.job_uid, old.head_pod_uid, old.head_restart_count, old.running_time
    if world.job is not None:
        job_uid = world.job.uid
        head_uid = head_uid or world.job.head_pod_uid or None
        restarts = restarts if restarts is not None else world.job.head_restarts
        running = running or timestamp(world.job.made_at or world.now)
    seen = {
        "number": number,
        "ray_cluster_name": name,
        "ray_cluster_uid": old.ray_cluster_uid or (world.cluster.uid if world.cluster else None),
        "job_name": name,
        "job_uid": job_uid,
        "ray_job_id": name,
        "head_pod_uid": head_uid,
        "head_restart_count": restarts,
        "start_time": old.start_time or timestamp(world.now),
        "running_time": running,
    }
    return old.model_copy(update=seen)


def with_next(world: World) -> World:
    """The world at the beginning of the next attempt: nothing of it is there, and nothing of the last one counts."""
    status = world.run.status
    old, usage = status.attempt, figures.usage_of(world)
    checkpoint = figures.checkpoint_of(world, evidence.late_word(world))
    attempt = AttemptStatus(
        number=world.attempt + 1,
        start_time=timestamp(world.now),
        first_step=checkpoint.step or 0,
        counted_failures=old.counted_failures,
        uncounted_failures=old.uncounted_failures,
        earlier_gpu_seconds=usage.gpu_seconds,
        earlier_pod_seconds=usage.pod_seconds,
    )
    run = world.run.model_copy(
        update={"status": status.model_copy(update={"attempt": attempt, "checkpoint": checkpoint, "usage": usage})}
    )
    return replace(world, run=run, cluster=None, job=None, pods=())


def history(world: World, ended: Ending | None) -> tuple[AttemptRecord, ...]:
    """The attempts that have ended, with the one that ends now."""
    old = world.run.status.history
    if ended is None or (world.attempt_over and not ended.verdict.succeeded):
        return old
    record = AttemptRecord(
        number=world.attempt,
        outcome=ended.outcome,
        cause=ended.verdict.cause,
        message=cut(ended.verdict.message, HISTORY_BYTES),
        counted=ended.counted,
        last_step=figures.progress_of(world, ended.verdict).step,
        start_time=world.run.status.attempt.start_time,
        end_time=timestamp(world.now),
    )
    return (*(item for item in old if item.number != record.number), record)[-HISTORY:]


def usage(world: World, ended: Ending | None) -> UsageStatus:
    """What was used, with the running time of an attempt that ends now."""
    old, began = world.run.status.usage, from_text(world.run.status.attempt.running_time)
    if ended is None or began is None or world.attempt_over:
        return old
    seconds = max(0, round((world.now - began).total_seconds()))
    return old.model_copy(update={"active_seconds": (old.active_seconds or 0) + seconds})
