"""Why pods do not run, in the kubelet's and the scheduler's own words.

KubeRay tells of a pod that the API server refuses, and of nothing else: a missing image is only seen in the pod. Used
by the policies `patience` and `trouble`, and for the evidence of a lost head.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tuning_contract.algorithms import ENGINES
from tuning_contract.causes import Cause
from tuning_operator.api import meta
from tuning_operator.api.conditions import Condition, ConditionStatus, Reason
from tuning_operator.desired.pods import SIDECAR_CONTAINER
from tuning_operator.engine.contribution import MARK
from tuning_operator.engine.world import ContainerState, ContainerView, PodView, World

_PULL_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_CRASH = "CrashLoopBackOff"
# Registries say it in many ways; a time-out or a refused connection is none of them and may pass.
_NOT_FOUND = re.compile(
    r"not found|manifest unknown|does not exist|name unknown|denied|unauthorized|InvalidImageName|ErrImageNeverPull"
    r"|couldn't parse|invalid reference",
    re.IGNORECASE,
)
# What the API server says of a pod that it will not have, and of what may pass by itself.
_NEVER = re.compile(r"\bis forbidden: |\bis invalid: |\bnot found\b|denied the request", re.IGNORECASE)
_FOR_NOW = re.compile(r"exceeded quota|failed calling webhook", re.IGNORECASE)
_CRASHES = 3
"""Crashes of a container that never ran well, after which it will not."""

CREATING = timedelta(seconds=600)
"""Volumes and network are ready within seconds, unless something is wrong with them; but before Kubernetes 1.36 the
kubelet says so only when the images are pulled, and a large one takes minutes."""

DRIVER_DUE = timedelta(seconds=60)
"""The Job controller makes the driver's pod at once; only its Events tell why it could not."""

_DISRUPTIONS = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.EVICTED,
    "TerminationByKubelet": Cause.EVICTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a pod from running."""

    cause: Cause | Reason
    place: str
    """Container or pod that has it."""
    message: str
    hopeless: bool
    """Waiting longer will not help unless somebody acts."""
    vital: bool = True
    """The training cannot go on without it."""

    @property
    def signature(self) -> str:
        """The same as long as it is the same trouble: the kubelet alternates its words for one."""
        return f"{self.cause}|{self.place}|{self.hopeless}"

    def is_told_by(self, shown: Condition | None) -> bool:
        """Whether a condition shows this very trouble: of the same place, and with no more hope than there is."""
        if shown is None or shown.status is not ConditionStatus.TRUE or shown.reason != self.cause:
            return False
        known = not self.hopeless or self.cause is not Cause.IMAGE_PULL_FAILED or _is_hopeless_pull(shown.message)
        # Within what is left of a long message: a place that is long is cut, too.
        place, cut_off, _ = shown.message.partition(":")[0].partition(MARK)
        own = self.message.partition(":")[0]
        return known and (own.startswith(place) if cut_off else own == place)


def trouble_of(world: World) -> Trouble | None:
    """The trouble of the pods: what is vital first, then the head's before the others', then of those never made."""
    pods = sorted(world.pods, key=lambda pod: (pod.component != meta.COMPONENT_HEAD, pod.name))
    found = [trouble for pod in pods if not pod.deleting for trouble in _of_pod(pod, world)]
    found += [*_of_refused(world), *_of_missing_driver(world)]
    return min(found, key=lambda trouble: not trouble.vital, default=None)


def next_look(world: World) -> datetime | None:
    """When a pod that is being made, or should be, will have taken too long; None while there is none."""
    begun = [pod.started_at for pod in world.pods if _is_being_made(pod) and pod.started_at is not None]
    due = [moment + CREATING for moment in begun]
    if world.job is not None and world.job.made_at is not None and not world.drivers:
        due.append(world.job.made_at + DRIVER_DUE)
    return min((moment for moment in due if moment > world.now), default=None)


def is_disrupted(pod: PodView) -> bool:
    """Whether the cluster itself takes the pod away: its node is lost, or it is evicted or preempted."""
    return _disruption(pod) is not None


def has_its_grace(pod: PodView) -> bool:
    """Whether a pod that is taken away may still use its grace: nobody has given up its node."""
    found = _disruption(pod)
    return pod.phase == "Running" and not pod.node_lost and found is not None and found[0] is not Cause.NODE_LOST


def words_on_workers(world: World) -> str:
    """Why a worker is not ready, in the words of its container or of the scheduler; empty when nothing is known."""
    pods = [pod for pod in world.workers if not pod.ready and not pod.deleting]
    for pod in pods:
        for trouble in _of_pod(pod, world):
            return trouble.message
    for trouble in _of_refused(world):
        return trouble.message
    waiting = (item for pod in pods for item in pod.containers if item.state is ContainerState.WAITING and item.reason)
    return next((f"{item.name}: {item.reason}" for item in waiting), "")


def ended_by(
    pods: Iterable[PodView], container: str, otherwise: Cause = Cause.HEAD_LOST, restarts: int = 0
) -> tuple[Cause, str]:
    """Why a pod, or its main container, ended: cause and words.

    Args:
        pods: views of it, oldest first.
        container: the main one.
        otherwise: the cause when nothing better is known.
        restarts: of the container that are no news, since they came before the training.
    """
    words = ""
    for pod in pods:
        found = _disruption(pod)
        if found is not None:
            return found
        main = pod.container(container)
        end = _end_of(main, restarts) if main is not None else None
        if main is None or end is None:
            continue
        reason, code, message = end
        if reason == "OOMKilled":
            return Cause.OUT_OF_MEMORY, _out_of_memory(main, main.name)
        exit_code = f" (exit code {code})" if code else ""
        words = f"{main.name}: {reason}{exit_code}: {message}".rstrip(": ")
    return otherwise, words


def _end_of(container: ContainerView, restarts: int) -> tuple[str, int | None, str] | None:
    """Reason, exit code and last words of a container's end, or of its last one if it was started again since."""
    if container.state is ContainerState.TERMINATED:
        return container.reason, container.exit_code, container.message
    if container.restarts > restarts:
        return container.last_reason, container.last_exit_code, container.last_message
    return None


def _disruption(pod: PodView) -> tuple[Cause, str] | None:
    if pod.disruption in _DISRUPTIONS:
        return _DISRUPTIONS[pod.disruption], f"pod {pod.name}: {pod.disruption}"
    if pod.reason == "Evicted":
        return Cause.EVICTED, f"pod {pod.name} was evicted: {pod.message}"
    if pod.reason in ("NodeLost", "NodeShutdown", "Terminated"):
        return Cause.NODE_LOST, f"pod {pod.name}: {pod.reason}: {pod.message}"
    if pod.node_lost:
        return Cause.NODE_LOST, f"the node of pod {pod.name} does not answer"
    return None


def _of_pod(pod: PodView, world: World) -> Iterator[Trouble]:
    place = f"{pod.component} {pod.group}".rstrip()
    if pod.unschedulable:
        message = f"pod {pod.name} is Unschedulable: {pod.unschedulable}"
        vital = _is_vital(pod.component, "", world)
        yield Trouble(Cause.UNSCHEDULABLE, place, message, hopeless=False, vital=vital)
    for container in pod.containers:
        if container.state is ContainerState.WAITING:
            found = _of_waiting(container, pod, _is_vital(pod.component, container.name, world))
            if found is not None:
                yield found
    if _is_being_made(pod) and pod.started_at is not None and world.now >= pod.started_at + CREATING:
        text = f"volumes, network or images of pod {pod.name} are not ready yet: see kubectl describe pod {pod.name}"
        vital = _is_vital(pod.component, "", world)
        yield Trouble(Reason.POD_NOT_CREATED, place, text, hopeless=False, vital=vital)


def _of_refused(world: World) -> Iterator[Trouble]:
    """A pod that the API server refuses is never seen: KubeRay's condition alone tells, and may be out of date."""
    cluster = world.cluster
    if cluster is None or cluster.deleting or not cluster.refused:
        return
    is_head = cluster.refused == meta.COMPONENT_HEAD
    there = [pod for pod in world.pods if pod.component == cluster.refused and pod.alive]
    if len(there) >= (1 if is_head else world.workers_wanted):
        return
    hopeless = _NEVER.search(cluster.refusal) is not None and _FOR_NOW.search(cluster.refusal) is None
    place = f"the API server refuses a {cluster.refused} pod"
    cause = Cause.CONFIG_INVALID if hopeless else Reason.POD_NOT_CREATED
    text = f"{place}: {cluster.refusal}"
    yield Trouble(cause, place, text, hopeless, _is_vital(cluster.refused, "", world))


def _of_missing_driver(world: World) -> Iterator[Trouble]:
    """A Job without a pod: refused by the API server, by a quota for example."""
    job = world.job
    if job is None or job.complete or job.failed or job.deleting or job.made_at is None or world.drivers:
        return
    if world.now >= job.made_at + DRIVER_DUE:
        text = f"Job {job.name} has no pod: see kubectl describe job {job.name}"
        yield Trouble(Reason.POD_NOT_CREATED, meta.COMPONENT_DRIVER, text, hopeless=False)


def _is_vital(component: str, container: str, world: World) -> bool:
    """Whether the training waits for the container, or cannot go on without it."""
    if not world.job_made:
        return True
    if component == meta.COMPONENT_WORKER:
        # Where workers only run episodes the others go on; the runner gives up when none is left.
        engine = ENGINES.get(world.run.spec.engine.type)
        return engine is None or engine.trains_on_workers
    # Without the sidecar only figures are missing.
    return container != SIDECAR_CONTAINER


def _is_being_made(pod: PodView) -> bool:
    """Whether a kubelet has accepted the pod and still works on what its containers need."""
    return pod.phase == "Pending" and not pod.deleting and not pod.has_sandbox


def _is_hopeless_pull(words: str) -> bool:
    return _NOT_FOUND.search(words) is not None


def _of_waiting(container: ContainerView, pod: PodView, vital: bool) -> Trouble | None:
    """The pods of a worker group are equal: its trouble is told once, whichever of them has it."""
    name = f"{container.name} of group {pod.group}" if pod.group else container.name
    words = f"{container.reason}: {container.message}" if container.message else container.reason
    if container.reason in _PULL_REASONS:
        return Trouble(Cause.IMAGE_PULL_FAILED, name, f"{name}: {words}", _is_hopeless_pull(words), vital)
    if container.reason in _CONFIG_REASONS:
        return Trouble(Cause.CONTAINER_CONFIG_ERROR, name, f"{name}: {words}", hopeless=True, vital=vital)
    if container.reason == _CRASH:
        hopeless = container.restarts >= _CRASHES
        if container.last_reason == "OOMKilled":
            return Trouble(Cause.OUT_OF_MEMORY, name, _out_of_memory(container, name), hopeless, vital)
        last = container.last_message or container.last_reason
        words = f"{name}: {_CRASH}, {container.restarts} restarts: {last}".rstrip(": ")
        lost = Cause.WORKER_LOST if pod.component == meta.COMPONENT_WORKER else Cause.HEAD_LOST
        return Trouble(lost, name, words, hopeless, vital)
    return None


def _out_of_memory(container: ContainerView, name: str) -> str:
    limit = f", limit {container.memory_limit}" if container.memory_limit else ""
    return f"{name}: OOMKilled{limit}"
