"""Why pods do not run, in the kubelet's and the scheduler's own words.

KubeRay never tells: a missing image is only seen in the pod. Used by the policies `patience` and `trouble`, and for
the evidence of a lost head.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tuning_contract.causes import Cause
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
_CRASHES = 3
"""Crashes of a container that never ran well, after which it will not."""

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

    cause: Cause
    place: str
    """Container or pod that has it."""
    message: str
    hopeless: bool
    """Waiting longer will not help unless somebody acts."""

    @property
    def signature(self) -> str:
        """The same as long as it is the same trouble: the kubelet alternates its words for one."""
        return f"{self.cause}|{self.place}|{self.hopeless}"


def trouble_of(world: World) -> Trouble | None:
    """The trouble of the pods; the head's before the driver's."""
    for pod in sorted(world.pods, key=lambda pod: (pod.component != "head", pod.name)):
        if pod.deleting:
            continue
        found = _of_pod(pod)
        if found is not None:
            return found
    return None


def ended_by(pods: Iterable[PodView], container: str) -> tuple[Cause, str]:
    """Why a pod, or its main container, ended: cause and words; HeadLost when nothing better is known."""
    for pod in pods:
        if pod.disruption in _DISRUPTIONS:
            return _DISRUPTIONS[pod.disruption], f"pod {pod.name}: {pod.disruption}"
        if pod.reason == "Evicted":
            return Cause.EVICTED, f"pod {pod.name} was evicted: {pod.message}"
        if pod.reason in ("NodeLost", "NodeShutdown", "Terminated"):
            return Cause.NODE_LOST, f"pod {pod.name}: {pod.reason}: {pod.message}"
        main = pod.container(container)
        if main is not None and "OOMKilled" in (main.reason, main.last_reason):
            return Cause.OUT_OF_MEMORY, _out_of_memory(main)
    return Cause.HEAD_LOST, ""


def _of_pod(pod: PodView) -> Trouble | None:
    if pod.unschedulable:
        message = f"pod {pod.name} is Unschedulable: {pod.unschedulable}"
        return Trouble(Cause.UNSCHEDULABLE, pod.component, message, hopeless=False)
    for container in pod.containers:
        if container.state is ContainerState.WAITING:
            found = _of_waiting(container)
            if found is not None:
                return found
    return None


def _of_waiting(container: ContainerView) -> Trouble | None:
    words = f"{container.reason}: {container.message}" if container.message else container.reason
    if container.reason in _PULL_REASONS:
        hopeless = bool(_NOT_FOUND.search(words))
        return Trouble(Cause.IMAGE_PULL_FAILED, container.name, f"{container.name}: {words}", hopeless)
    if container.reason in _CONFIG_REASONS:
        return Trouble(Cause.CONTAINER_CONFIG_ERROR, container.name, f"{container.name}: {words}", hopeless=True)
    if container.reason == _CRASH:
        hopeless = container.restarts >= _CRASHES
        if container.last_reason == "OOMKilled":
            return Trouble(Cause.OUT_OF_MEMORY, container.name, _out_of_memory(container), hopeless)
        last = container.last_message or container.last_reason
        words = f"{container.name}: {_CRASH}, {container.restarts} restarts: {last}".rstrip(": ")
        return Trouble(Cause.HEAD_LOST, container.name, words, hopeless)
    return None


def _out_of_memory(container: ContainerView) -> str:
    limit = f", limit {container.memory_limit}" if container.memory_limit else ""
    return f"{container.name}: OOMKilled{limit}"
