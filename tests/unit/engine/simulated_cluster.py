"""KubeRay, kubelets, the Job controller, the garbage collector, drivers and trainings on a simulated API server.

Nothing happens by itself: `moves` lists what could happen next in a world where all is well, and the model chooses;
what goes wrong are methods of their own. Controllers see the truth; how late the operator sees it is the API's matter.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from tests.unit.engine.simulated_api import Raw, SimulatedApi
from tests.unit.engine.simulated_training import Move, SimulatedPod, Training, Volume
from tuning_contract.progress import Progress
from tuning_contract.result import RunResult
from tuning_contract.stopping import stop_token
from tuning_operator.api import meta
from tuning_operator.api.conditions import timestamp
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.cluster.resources import CLAIMS, CONFIG_MAPS, JOBS, PODS, RAY_CLUSTERS, TUNING_RUNS, Resource
from tuning_operator.desired import names
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import StopAnswer

GRACE = timedelta(seconds=150)
TOLERATION = timedelta(seconds=300)
"""After which the pods of a silent node are taken away."""
TAINTED = "DeletionByTaintManager"
BACKOFF_LIMIT = 20
HEAD, WORKER, DRIVER = meta.COMPONENT_HEAD, meta.COMPONENT_WORKER, meta.COMPONENT_DRIVER


@dataclass
class SimulatedCluster:
    """All that runs for one TuningRun."""

    api: SimulatedApi
    now: Callable[[], datetime]
    run: TuningRun
    """As it was made; only its names and its size are read."""
    stop_key: str = ""
    remakes_heads: bool = False
    """KubeRay 1.5 makes a lost head again even when the cluster was complete."""
    pods: dict[str, SimulatedPod] = field(default_factory=dict)
    """Those that exist, by name."""
    trainings: dict[str, Training] = field(default_factory=dict)
    """By the life of a head container."""
    has_room: bool = True
    """Whether the scheduler finds a node."""
    has_images: bool = True
    sidecars_answer: bool = True
    made: int = 0

    def __post_init__(self) -> None:
        self.volume = Volume(self.run)

    # What the operator asks.

    def sidecar(self, address: str) -> "Sidecar | None":
        """The sidecar that listens at an address, if it answers."""
        found = (pod for pod in self.pods.values() if pod.component == HEAD and pod.ip == address)
        pod = next((pod for pod in found if pod.phase == "Running" and not pod.node_lost), None)
        return Sidecar(self, pod) if pod is not None and self.sidecars_answer else None

    # What happens when all is well.

    def moves(self) -> list[Move]:
        """All that could happen next, in a fixed order."""
        return [*self._of_kuberay(), *self._of_kubelets(), *self._of_jobs(), *self._of_collector(), *self._of_drivers()]

    def _of_kuberay(self) -> Iterator[Move]:
        for raw in self.api.all(RAY_CLUSTERS):
            if "deletionTimestamp" in raw["metadata"]:
                continue
            pods = [pod for pod in self.pods.values() if pod.owner == raw["metadata"]["uid"]]
            for pod in pods:
                if pod.phase in ("Failed", "Succeeded") and not pod.deleting:
                    yield f"KubeRay deletes {pod.name}", partial(self.delete_pod, pod)
            heads = [pod for pod in pods if pod.component == HEAD]
            may_make = self.remakes_heads or not _holds(raw, "RayClusterProvisioned")
            if not heads and may_make:
                yield "KubeRay makes a head", partial(self._make_pod, raw, HEAD)
            workers = [pod for pod in pods if pod.component == WORKER and not pod.deleting]
            if len(workers) < self._workers and heads:
                yield "KubeRay makes a worker", partial(self._make_pod, raw, WORKER)
            status = self._status_of(raw, pods)
            if status != raw.get("status"):
                put = {**raw, "status": status}
                yield "KubeRay writes a status", partial(self._put, RAY_CLUSTERS, put)

    def _of_kubelets(self) -> Iterator[Move]:
        for pod in list(self.pods.values()):
            if pod.node_lost:
                yield from self._of_silent_node(pod)
            elif pod.deleting:
                if pod.component == HEAD and pod.attempt not in self.volume.stops:
                    yield f"preStop hook of {pod.name}", partial(self.volume.stops.add, pod.attempt)
                yield f"{pod.name} is gone", partial(self.vanish, pod)
            elif pod.phase == "Pending":
                yield from self._of_pending(pod)
            elif pod.phase == "Running" and not pod.ready:
                yield f"{pod.name} is ready", partial(self.change, pod, ready=True)

    def _of_pending(self, pod: SimulatedPod) -> Iterator[Move]:
        if not self.has_room:
            words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
            if not pod.unschedulable and pod.started_at is None:
                yield f"no room for {pod.name}", partial(self.change, pod, unschedulable=words)
                return
        if pod.started_at is None and self.has_room:
            accepted = {"unschedulable": "", "started_at": self.now(), "waiting": ("ContainerCreating", "")}
            yield f"{pod.name} is scheduled", partial(self.change, pod, **accepted)
        elif pod.started_at is not None:
            waiting = self._waits_for(pod)
            running = {"phase": "Running", "waiting": ("", ""), "ip": f"10.0.0.{pod.number}"}
            if waiting[0] and waiting != pod.waiting:
                yield f"{pod.name} waits", partial(self.change, pod, waiting=waiting)
            elif not waiting[0]:
                yield f"{pod.name} runs", partial(self.change, pod, **running)

    def _waits_for(self, pod: SimulatedPod) -> tuple[str, str]:
        """What keeps the container from running: reason and message of its state."""
        child = names.child(self.run)
        if not self.has_images and pod.component != DRIVER:
            return "ImagePullBackOff", 'Back-off pulling image "x": not found'
        if self.api.find(CONFIG_MAPS, self.run.namespace, child) is None:
            return "ContainerCreating", ""
        if self.api.find(CLAIMS, self.run.namespace, names.claim(self.run)) is None and pod.component != DRIVER:
            return "ContainerCreating", ""
        token = self.api.find(RAY_CLUSTERS, self.run.namespace, names.attempt(self.run, pod.attempt))
        if pod.component == DRIVER and token is None:
            return "CreateContainerConfigError", "secret not found"
        return "", ""

    def _of_silent_node(self, pod: SimulatedPod) -> Iterator[Move]:
        """Its pods are given up after a while, and stay so for ever."""
        if pod.disruption == TAINTED or pod.lost_at is None or self.now() < pod.lost_at + TOLERATION:
            return
        yield f"{pod.name} is given up", partial(self.disrupt, pod, TAINTED)

    def _of_jobs(self) -> Iterator[Move]:
        for raw in self.api.all(JOBS):
            uid, name = raw["metadata"]["uid"], raw["metadata"]["name"]
            pods = [pod for pod in self.pods.values() if pod.owner == uid]
            if has_ended(raw):
                for pod in pods:
                    if pod.phase in ("Pending", "Running") and not pod.deleting:
                        yield f"Job deletes {pod.name}", partial(self.delete_pod, pod)
                continue
            verdict = self._verdict_on(raw, pods)
            if verdict is not None:
                put = {**raw, "status": verdict}
                yield f"Job {name} ends", partial(self._put, JOBS, put)
            elif all(pod.phase in ("Failed", "Succeeded") for pod in pods):
                yield "Job makes a driver", partial(self._make_pod, raw, DRIVER)

    def _verdict_on(self, raw: Raw, pods: list[SimulatedPod]) -> Raw | None:
        """The Job's last status, when its pods or its deadline end it."""
        made = from_text(raw["metadata"]["creationTimestamp"]) or self.now()
        limit = raw["spec"].get("activeDeadlineSeconds")
        if any(pod.phase == "Succeeded" for pod in pods):
            return {"conditions": [{"type": "Complete", "status": "True"}]}
        failed = [pod for pod in pods if pod.phase == "Failed"]
        if any(pod.exit_code in (10, 11, 12) for pod in failed):
            return _failed("PodFailurePolicy", "a driver has given its verdict")
        if len([pod for pod in failed if not pod.disruption]) > BACKOFF_LIMIT:
            return _failed("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        if limit is not None and self.now() >= made + timedelta(seconds=limit):
            return _failed("DeadlineExceeded", "Job was active longer than specified deadline")
        return None

    def _of_collector(self) -> Iterator[Move]:
        runs = {raw["metadata"]["uid"] for raw in self.api.all(TUNING_RUNS)}
        clusters = {raw["metadata"]["uid"] for raw in self.api.all(RAY_CLUSTERS)}
        jobs = {raw["metadata"]["uid"] for raw in self.api.all(JOBS)}
        for raw in self.api.all(RAY_CLUSTERS):
            if self.run.uid not in runs or ("deletionTimestamp" in raw["metadata"]):
                yield "RayCluster is gone", partial(self.api.remove, RAY_CLUSTERS, raw)
        for raw in self.api.all(JOBS):
            owners = raw["metadata"]["ownerReferences"]
            left = [owner for owner in owners if owner["uid"] in runs | clusters]
            if not left:
                yield "Job is collected", partial(self.api.remove, JOBS, raw)
            elif left != owners:
                put = {**raw, "metadata": {**raw["metadata"], "ownerReferences": left}}
                yield "Job loses an owner", partial(self._put, JOBS, put)
        for pod in list(self.pods.values()):
            if pod.owner not in clusters | jobs and not pod.deleting:
                yield f"{pod.name} is collected", partial(self.delete_pod, pod)

    def _of_drivers(self) -> Iterator[Move]:
        for training in list(self.trainings.values()):
            yield from training.moves()
        for pod in list(self.pods.values()):
            if pod.component != DRIVER or pod.phase != "Running" or pod.node_lost:
                continue
            head = self._serving_head(pod.attempt)
            if head is None:
                yield f"{pod.name} hears nothing", partial(self.end_pod, pod, 20, "no head answers")
            elif head.life not in self.trainings and not pod.follows:
                yield f"{pod.name} submits", partial(self._submit, pod, head)
            elif not pod.follows:
                yield f"{pod.name} attaches", partial(self.change, pod, follows=head.life)
            elif pod.follows != head.life or self.trainings[head.life].ended:
                followed = self.trainings.get(pod.follows)
                lost = "" if pod.follows == head.life else "the head was replaced: Ray no longer knows the job"
                code, text = self.volume.driver_says(pod.attempt, followed, lost)
                yield f"{pod.name} speaks", partial(self.end_pod, pod, code, text)

    # What goes wrong, or is done by hand.

    def delete_pod(self, pod: SimulatedPod) -> None:
        """Ask for its end; the kubelet sees to it."""
        self.change(pod, deleted_at=self.now().replace(microsecond=0) + GRACE)

    def vanish(self, pod: SimulatedPod) -> None:
        """It is gone, and what ran in it; the last state goes with the event."""
        if pod.phase == "Running":
            self.end_pod(pod, 143, "")
        del self.pods[pod.name]
        self.api.remove(PODS, pod.raw())

    def end_pod(self, pod: SimulatedPod, code: int, message: str, reason: str = "Error") -> None:
        """Its main container ends, and so does the pod."""
        self.api.note(f"{pod.name} ends with {code}: {message}")
        ended = {"exit_code": code, "words": message, "ready": False, "ended_for": "Completed" if code == 0 else reason}
        self.change(pod, phase="Succeeded" if code == 0 else "Failed", **ended)
        self._end_training(pod)

    def restart_container(self, pod: SimulatedPod) -> None:
        """The Ray container begins anew in its pod."""
        self.api.note(f"the container of {pod.name} restarts")
        self._end_training(pod)
        self.change(pod, restarts=pod.restarts + 1)

    def disrupt(self, pod: SimulatedPod, reason: str) -> None:
        """The cluster takes the pod away, with its grace; a later reason replaces the first, whose time stays."""
        self.api.note(f"{pod.name}: {reason}")
        # The API keeps whole seconds.
        now = self.now().replace(microsecond=0)
        times = {"disrupted_at": pod.disrupted_at or now, "deleted_at": pod.deleted_at or now + GRACE}
        self.change(pod, disruption=reason, **times)

    def lose_node(self, pod: SimulatedPod) -> None:
        """Its kubelet is silent from now on, and nobody sees what it does."""
        self.api.note(f"the node of {pod.name} is silent")
        self.change(pod, node_lost=True, lost_at=self.now())

    def delete_cluster(self, raw: Raw, slowly: bool) -> None:
        """Somebody deletes the RayCluster; slowly: it stays until its pods are gone."""
        self.api.note(f"somebody deletes RayCluster {raw['metadata']['name']}")
        if slowly:
            gone = {**raw["metadata"], "deletionTimestamp": timestamp(self.now())}
            self._put(RAY_CLUSTERS, {**raw, "metadata": gone})
        else:
            self.api.remove(RAY_CLUSTERS, raw)

    def change(self, pod: SimulatedPod, **changes: Any) -> None:
        """Change a pod and tell the API server."""
        for name, value in changes.items():
            setattr(pod, name, value)
        self.api.put(PODS, pod.raw())

    # Details.

    @property
    def _workers(self) -> int:
        return sum(group.replicas for group in self.run.spec.cluster.workers)

    def _serving_head(self, attempt: int) -> SimulatedPod | None:
        heads = (pod for pod in self.pods.values() if pod.component == HEAD and pod.attempt == attempt)
        return next((pod for pod in heads if pod.phase == "Running" and pod.ready and not pod.node_lost), None)

    def _make_pod(self, owner: Raw, component: str) -> None:
        self.made += 1
        attempt = int(owner["metadata"]["labels"][meta.ATTEMPT_LABEL])
        name = f"{owner['metadata']['name']}-{component}-{self.made}"
        pod = SimulatedPod(name, component, attempt, owner["metadata"]["uid"], self.made, self.run)
        self.pods[name] = pod
        self.api.put(PODS, pod.raw())

    def _submit(self, driver: SimulatedPod, head: SimulatedPod) -> None:
        self.trainings[head.life] = self.volume.begin(head.attempt)
        self.change(driver, follows=head.life)

    def _end_training(self, pod: SimulatedPod) -> None:
        training = self.trainings.get(pod.life)
        if training is not None and not training.ended:
            training.kill()

    def _status_of(self, raw: Raw, pods: list[SimulatedPod]) -> Raw:
        """What KubeRay says of a cluster; that it was complete once, it never takes back."""
        head = any(pod.component == HEAD and pod.serves for pod in pods)
        workers = sum(pod.component == WORKER and pod.serves for pod in pods)
        complete = (head and workers >= self._workers) or _holds(raw, "RayClusterProvisioned")
        flags = {"HeadPodReady": head, "RayClusterProvisioned": complete}
        conditions = [{"type": kind, "status": "True" if value else "False"} for kind, value in flags.items()]
        return {"conditions": conditions, "readyWorkerReplicas": workers, "desiredWorkerReplicas": self._workers}

    def _put(self, resource: Resource, raw: Raw) -> None:
        self.api.put(resource, raw)


@dataclass(frozen=True)
class Sidecar:
    """What the sidecar in a head pod answers."""

    cluster: SimulatedCluster
    pod: SimulatedPod

    def progress(self) -> Progress:
        """How far the training of this head's attempt is."""
        training = self.cluster.trainings.get(self.pod.life)
        return self.cluster.volume.progress(training, self.pod.attempt, self.cluster.now().timestamp())

    def result(self) -> RunResult | None:
        """The result, if it speaks for this attempt."""
        return self.cluster.volume.result_for(self.pod.attempt)

    def stop(self, token: str) -> StopAnswer:
        """Take the request down, if the token is right."""
        key = self.cluster.stop_key
        if not key or token != stop_token(key, self.cluster.run.uid, self.pod.attempt):
            return StopAnswer.REFUSED
        self.cluster.volume.stops.add(self.pod.attempt)
        return StopAnswer.TAKEN


def has_ended(job: Raw) -> bool:
    """Whether a Job is complete or has failed."""
    return any(item["status"] == "True" for item in (job.get("status") or {}).get("conditions") or ())


def _failed(reason: str, message: str) -> Raw:
    return {"conditions": [{"type": "Failed", "status": "True", "reason": reason, "message": message}]}


def _holds(raw: Raw, kind: str) -> bool:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)
