"""The conditions that a world deserves, before the policies lay theirs over them. Called by `status`."""

from tuning_operator.api.conditions import Condition, ConditionStatus, ConditionType, Phase, Reason, is_true
from tuning_operator.engine import diagnosis, evidence, figures
from tuning_operator.engine.contribution import NOTHING_WRONG, Verdict, condition
from tuning_operator.engine.world import ContainerState, Reachability, World


def conditions(world: World, phase: Phase, verdict: Verdict | None) -> list[Condition]:
    """All conditions; `verdict` is what ends the attempt now, if anything does."""
    final = verdict if phase.terminal else None
    outcome = final.message if final else "the run is in progress"
    over = "the run has ended" if final else outcome
    success = None if final is None else final.succeeded
    complaint = final.complaint if final else ""
    between = not phase.terminal and (verdict is not None or world.attempt_over or phase is Phase.SUSPENDED)
    return [
        condition(ConditionType.ACCEPTED, True, Reason.VALID, "the run can be executed here"),
        condition(ConditionType.ADMITTED, True, Reason.NO_QUEUE, "the run names no queue"),
        _rests(world, ConditionType.CLUSTER_READY, phase) if between else _cluster_ready(world, final),
        _rests(world, ConditionType.STARTED, phase) if between else _started_or_had(world, final),
        _metrics(world, final, between),
        condition(
            ConditionType.DEGRADED,
            bool(complaint),
            Reason.DRIVER_EXIT if complaint else Reason.AS_EXPECTED,
            complaint or NOTHING_WRONG,
        ),
        _suspended(phase),
        condition(ConditionType.FINISHED, final is not None, _result_reason(final), over),
        condition(ConditionType.SUCCEEDED, success, _result_reason(final), outcome),
    ]


def _rests(world: World, kind: ConditionType, phase: Phase) -> Condition:
    if phase is Phase.SUSPENDED:
        return condition(kind, False, Reason.SUSPENDED, "the run is suspended")
    return condition(kind, False, Reason.BACKING_OFF, f"attempt {world.attempt} has ended")


def _suspended(phase: Phase) -> Condition:
    kind = ConditionType.SUSPENDED
    if phase is Phase.SUSPENDED:
        return condition(kind, True, Reason.SUSPENDED, "the run holds no resources; it goes on when `suspend` is false")
    if phase is Phase.SUSPENDING:
        return condition(kind, False, Reason.SUSPENDING, "the run is on its way to rest")
    return condition(kind, False, Reason.NOT_SUSPENDED, "nobody has suspended the run")


def _started_or_had(world: World, final: Verdict | None) -> Condition:
    return started(world) if final is None else _had_started(world, final)


def _result_reason(verdict: Verdict | None) -> str:
    if verdict is None:
        return Reason.IN_PROGRESS
    return Reason.COMPLETED if verdict.cause is None else verdict.cause


def _cluster_ready(world: World, verdict: Verdict | None) -> Condition:
    if verdict is not None:
        seconds = world.run.spec.cleanup.cluster_ttl_seconds
        text = f"the run has ended; its cluster is kept for {seconds} s" if seconds else "the run has ended"
        return condition(ConditionType.CLUSTER_READY, False, Reason.RELEASED, text)
    # Before the Job is made readiness comes and goes; it is said once, with the Job.
    made = world.job is not None and world.cluster is not None
    if made and world.workers_ready >= world.workers_wanted:
        return condition(ConditionType.CLUSTER_READY, True, Reason.READY, "head and workers are ready")
    reason = Reason.WORKERS_MISSING if made else Reason.CREATING
    text = pods_ready(world) if world.workers_wanted else "the head is not ready yet"
    return condition(ConditionType.CLUSTER_READY, False, reason, text)


def pods_ready(world: World) -> str:
    """How many pods of a cluster with workers are ready, and why not all."""
    head = "the head is ready" if world.head is not None and world.head.serves_ray else "the head is not ready yet"
    count = f"{world.workers_ready} of {world.workers_wanted} worker pods ready"
    words = diagnosis.words_on_workers(world)
    return f"{head}, {count}: {words}" if words else f"{head}, {count}"


def started(world: World) -> Condition:
    """Whether the driver of the present attempt runs, or did."""
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
    seen = started(world).status is ConditionStatus.TRUE
    before = any(record.last_step for record in world.run.status.history)
    heard = verdict.succeeded or bool(verdict.step) or before or evidence.last_word(world) is not None
    if seen or heard:
        return condition(ConditionType.STARTED, True, Reason.RUN_ENDED, "the training had started when the run ended")
    return condition(ConditionType.STARTED, False, Reason.RUN_ENDED, "the run ended before the training had started")


def _metrics(world: World, verdict: Verdict | None, between: bool) -> Condition:
    kind, state = ConditionType.METRICS_AVAILABLE, world.notes.metrics
    if between:
        return condition(kind, None, Reason.NOT_STARTED, "no attempt runs now")
    if verdict is not None:
        return condition(kind, False, Reason.RUN_ENDED, "the head pod, and the sidecar in it, are given back")
    if state is Reachability.ANSWERED:
        return condition(kind, True, Reason.SIDECAR_ANSWERS, "progress is read from the head pod")
    if state is Reachability.UNREACHABLE:
        return condition(kind, None, Reason.SIDECAR_UNREACHABLE, "the sidecar did not answer; the run is not affected")
    return condition(kind, None, Reason.NOT_STARTED, "no progress was read yet")
