"""What pods and Job prove about the attempt: the driver's last word, and whether the cluster is still the same.

Used by the verdict policies. An exit code alone is never evidence of success.
"""

from dataclasses import dataclass

from tuning_contract.causes import Cause
from tuning_contract.result import FAILED, STOPPED, SUCCEEDED, RunResult
from tuning_contract.termination import EXIT_SUCCEEDED, VERDICT_CODES, TerminationMessage
from tuning_operator.api import meta
from tuning_operator.api.conditions import ConditionType, Reason, is_true
from tuning_operator.desired.pods import RAY_CONTAINER
from tuning_operator.engine import diagnosis, figures
from tuning_operator.engine.contribution import Verdict
from tuning_operator.engine.world import ContainerState, ContainerView, PodView, World

DRIVER = "driver"
RAY_HEAD = RAY_CONTAINER


@dataclass(frozen=True, slots=True)
class LastWord:
    """A driver's termination message with its exit code."""

    message: TerminationMessage
    exit_code: int


def last_word(world: World) -> LastWord | None:
    """The driver's verdict. One that ended with another code is replaced by the Job, so its words count for nothing."""
    for container in ended_drivers(world):
        message = TerminationMessage.from_text(container.message)
        if message is not None and message.outcome in (SUCCEEDED, FAILED, STOPPED):
            return LastWord(message, container.exit_code or 0)
    return None


def late_word(world: World) -> Verdict | None:
    """What the driver of an attempt that is over has told after its end, as far as that is news; for the figures."""
    word, status = last_word(world) if world.attempt_over else None, world.run.status
    path = word.message.checkpoint if word else ""
    if word is None or not figures.is_path(path) or path == status.checkpoint.path:
        return None
    message = word.message
    return Verdict(None, "", message.step, message.target_steps, message.checkpoint, message.metrics)


def ended_drivers(world: World) -> list[ContainerView]:
    """Driver containers that ended with the intent to end the run, with or without a message."""
    codes = (EXIT_SUCCEEDED, *VERDICT_CODES)
    departed = (pod for pod in world.notes.departed if pod.component == DRIVER and pod.attempt == world.attempt)
    found = [pod.container(DRIVER) for pod in (*world.drivers, *departed)]
    return [
        container
        for container in found
        if container is not None and container.state is ContainerState.TERMINATED and container.exit_code in codes
    ]


def driver_is_alive(world: World) -> bool:
    """Whether a driver may still have something to say."""
    return any(pod.phase in ("", "Pending", "Running") and not pod.deleting for pod in world.drivers)


def driver_ever_ran(world: World) -> bool:
    """Whether a driver of the attempt ran, now or before, as far as pods and status tell: then there is a log."""
    departed = (pod for pod in world.notes.departed if pod.component == DRIVER and pod.attempt == world.attempt)
    told = is_true(world.run.status.conditions, ConditionType.STARTED)
    return told or any(_has_run(pod) for pod in (*world.drivers, *departed))


def _has_run(driver: PodView) -> bool:
    container = driver.container(DRIVER)
    states = (ContainerState.RUNNING, ContainerState.TERMINATED)
    return driver.phase not in ("", "Pending") or (container is not None and container.state in states)


def job_ended_in_silence(world: World) -> bool:
    """Whether no driver will come, and none left a message."""
    ended = bool(ended_drivers(world)) or (world.job is not None and (world.job.failed or world.job.complete))
    return ended and last_word(world) is None


def loss_of(world: World) -> str:
    """What of the attempt's cluster is lost, as a sentence; empty while it is the one that was observed.

    A lost cluster or head is never made again: whatever KubeRay puts in its place is another attempt. While the API
    server does not serve RayClusters none can be seen, so none is lost.
    """
    if not world.kuberay_served:
        return ""
    attempt = world.run.status.attempt
    if lost_before_the_job(world):
        return "the head pod was lost before the training began"
    if not attempt.ray_cluster_uid and not (world.job and world.job.head_pod_uid):
        return ""
    if attempt.ray_cluster_uid and (world.cluster is None or world.cluster.uid != attempt.ray_cluster_uid):
        return f"RayCluster {attempt.ray_cluster_name} was deleted"
    if world.cluster is not None and world.cluster.deleting:
        return f"RayCluster {world.cluster.name} is being deleted"
    uid = recorded_head(world)
    return _loss_of_head(world, uid, recorded_restarts(world)) if uid else ""


def lost_before_the_job(world: World) -> bool:
    """Whether the head went after the cluster was complete, but before the Job was made.

    KubeRay 1.6 makes no other, as the RayCluster's annotation asks. 1.5 does not know that and makes one: should it be
    there before the loss is told the run goes on with it, since nothing was trained yet; else the run fails alike.
    """
    cluster, recorded = world.cluster, world.run.status.attempt.ray_cluster_uid
    if cluster is None or cluster.deleting or (recorded and recorded != cluster.uid):
        return False
    return cluster.provisioned and not world.job_made and not (world.head is not None and world.head.alive)


def recorded_head(world: World) -> str:
    """UID of the head for which the Job was made; empty before."""
    return (world.job.head_pod_uid if world.job else "") or world.run.status.attempt.head_pod_uid or ""


def recorded_restarts(world: World) -> int:
    """Restarts of that head's Ray container when the Job was made."""
    job, attempt = world.job, world.run.status.attempt
    return (job.head_restarts if job is not None and job.head_pod_uid else attempt.head_restart_count) or 0


def _loss_of_head(world: World, uid: str, restarts: int) -> str:
    head = next((pod for pod in world.pods if pod.uid == uid), None)
    if head is None:
        return "the head pod is gone" if world.head is None else f"the head pod was replaced by {world.head.name}"
    if head.deleting and diagnosis.is_disrupted(head):
        # On a dead node it stays so for ever: no kubelet is left that would end it.
        return f"pod {head.name} is being taken away"
    ray = head.container(RAY_HEAD)
    if ray is not None and ray.restarts > restarts:
        return f"the Ray container of pod {head.name} was restarted"
    if ray is not None and ray.state is ContainerState.TERMINATED and head.phase in ("Failed", "Succeeded"):
        return f"the Ray container of pod {head.name} ended"
    return ""


def is_complete(message: TerminationMessage) -> bool:
    """Whether the driver reports a result that reached its target."""
    return message.outcome == SUCCEEDED and message.step == message.target_steps > 0


def heads(world: World) -> list[PodView]:
    """Every view of the head on which training began; of all heads if none of that one is left."""
    departed = [pod for pod in world.notes.departed if pod.attempt == world.attempt]
    found = [pod for pod in (*departed, *world.pods) if pod.component == meta.COMPONENT_HEAD]
    recorded = recorded_head(world)
    return [pod for pod in found if pod.uid == recorded] or found


def end_of_head(world: World) -> tuple[Cause, str]:
    """Why the head on which training began has ended, or ends: cause and words."""
    return diagnosis.ended_by(heads(world), RAY_HEAD, restarts=recorded_restarts(world))


def stopped(world: World, how: str, word: TerminationMessage | None = None) -> Verdict:
    """The verdict on a training that has stopped: it was asked to by us, or by somebody who takes its pods away.

    Args:
        world: with the attempt.
        how: how it came to its end, as a sentence about it.
        word: the runner's own, if it has left one.
    """
    told = TerminationMessage(STOPPED) if word is None else word
    step = told.step if word else None
    why = world.run.status.attempt.stop_reason
    if why == Reason.SUSPENDED:
        text = f"the run was suspended: {how}"
        return Verdict(None, text, step, told.target_steps, told.checkpoint, told.metrics, stopped=True)
    if why:
        limit = world.run.spec.deadlines.active_seconds
        text = f"the run has trained for as long as `deadlines.activeSeconds` allows, {limit} s: {how}"
        cause = Cause.DEADLINE_EXCEEDED
    else:
        cause, words = end_of_head(world)
        text = f"the training was stopped from outside: {how}" + (f"; {words}" if words else "")
    return Verdict(cause, text, step, told.target_steps, told.checkpoint, told.metrics, fatal=bool(why))


def cause_of(name: str) -> Cause:
    """The cause of that name; Unknown for one that this version does not know."""
    try:
        return Cause(name)
    except ValueError:
        return Cause.UNKNOWN


def verdict_of(result: RunResult, cause: Cause | None, complaint: str = "") -> Verdict:
    """A verdict from the runner's own result document."""
    metrics = dict(result.metrics)
    for entry in result.evaluation:
        side = "baseline" if entry.step == 0 else "last"
        metrics[f"eval/{entry.dataset}/{side}"] = entry.mean
    return Verdict(cause, result.summary, result.step, result.target_steps, result.checkpoint, metrics, complaint)
