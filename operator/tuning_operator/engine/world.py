"""Everything that a decision about one run depends on, as one frozen value.

Made by `cluster.observe` in every pass, read by the policies. The views hold only what a policy reads; times are
aware datetimes. What this process alone knows (refused writes, answers of sidecars, since when a fact holds) is in
`Notes`: a restart loses it, and every policy is right without it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tuning_contract.progress import Progress
from tuning_contract.result import RunResult
from tuning_operator.api import meta
from tuning_operator.api.conditions import Phase
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import names
from tuning_operator.desired.model_source import ModelSource
from tuning_operator.desired.pods import RAY_CONTAINER


class Child(StrEnum):
    """Kinds of objects that are made for a run."""

    CLUSTER = "RayCluster"
    CONFIG = "ConfigMap"
    CLAIM = "PersistentVolumeClaim"
    JOB = "Job"


class ContainerState(StrEnum):
    """What a container is doing."""

    UNKNOWN = ""
    WAITING = "waiting"
    RUNNING = "running"
    TERMINATED = "terminated"


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container of a pod as the kubelet sees it."""

    name: str
    state: ContainerState = ContainerState.UNKNOWN
    reason: str = ""
    """Why it waits or ended: ImagePullBackOff, OOMKilled, Completed."""
    message: str = ""
    """The kubelet's words, or the termination message."""
    exit_code: int | None = None
    ready: bool = False
    restarts: int = 0
    last_reason: str = ""
    """Why its previous life ended."""
    last_message: str = ""
    last_exit_code: int | None = None
    """Of its previous life."""
    memory_limit: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a run."""

    name: str
    uid: str
    component: str
    """head, worker, driver, or what else the label says."""
    attempt: int
    namespace: str = ""
    owner: str = ""
    """UID of its controller."""
    phase: str = ""
    reason: str = ""
    """Of the pod itself: Evicted, NodeLost."""
    message: str = ""
    ip: str = ""
    deleting: bool = False
    started_at: datetime | None = None
    """When the kubelet accepted it."""
    unschedulable: str = ""
    """The scheduler's words while it finds no node."""
    disruption: str = ""
    """Reason of the condition DisruptionTarget: PreemptionByScheduler, DeletionByTaintManager."""
    disrupted_at: datetime | None = None
    """Since when that condition is True."""
    deleted_at: datetime | None = None
    """Its deletionTimestamp: when the grace of its deletion is, or was, over."""
    node_lost: bool = False
    """Its kubelet is silent: the cluster, not the kubelet, has said that it is not ready."""
    containers: tuple[ContainerView, ...] = ()
    """Init containers first, then the others, as in the spec."""
    has_sandbox: bool = False
    """Volumes and network are ready (condition PodReadyToStartContainers); before Kubernetes 1.36 images are, too."""
    group: str = ""
    """Of a worker: the group that it belongs to, as KubeRay's label says."""
    ready: bool = False
    """Condition Ready: all of its containers are."""

    def container(self, name: str) -> ContainerView | None:
        """The container of that name."""
        return next((item for item in self.containers if item.name == name), None)

    @property
    def alive(self) -> bool:
        """Whether it has neither ended nor is on its way out."""
        return not self.deleting and self.phase not in ("Failed", "Succeeded")

    @property
    def serves_ray(self) -> bool:
        """Whether Ray's head runs in it and answers."""
        ray = self.container(RAY_CONTAINER)
        return self.alive and self.phase == "Running" and ray is not None and ray.ready


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The RayCluster of the attempt."""

    name: str
    uid: str
    namespace: str = ""
    owner: str = ""
    """UID of its controller."""
    deleting: bool = False
    head_ready: bool = False
    """The condition HeadPodReady. `status.state` latches and is never read."""
    provisioned: bool = False
    """The condition RayClusterProvisioned: all pods were ready once. It latches; from then on KubeRay 1.6 makes no head
    anew, since the cluster is made so; 1.5 does."""
    ready_workers: int = 0
    desired_workers: int = 0
    refused: str = ""
    """Component, head or worker, of which KubeRay could not make a pod; empty when it could, or did not try."""
    refusal: str = ""
    """Why not, in the API server's words."""

    @property
    def ready(self) -> bool:
        """Whether head and all required workers are ready now."""
        return self.head_ready and self.ready_workers >= self.desired_workers and not self.deleting


@dataclass(frozen=True, slots=True)
class JobView:
    """The Job of the attempt."""

    name: str
    uid: str
    namespace: str = ""
    owners: tuple[str, ...] = ()
    """UIDs of all owners: the garbage collector takes the RayCluster's away, the run's stays."""
    attempt: int = 1
    made_at: datetime | None = None
    end_asked: bool = False
    """Its activeDeadlineSeconds is set, which we do to end it."""
    deleting: bool = False
    complete: bool = False
    failed: bool = False
    reason: str = ""
    message: str = ""
    head_pod_uid: str = ""
    """The head pod that was there when the Job was made, from the Job's annotation."""
    head_restarts: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A claim: whose it is, and what may be done with it."""

    run_uid: str = ""
    """UID of the run for which it was made, by its label; empty for everybody else's."""
    access_modes: frozenset[str] = frozenset()
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class SourceRun:
    """The run whose final model is wanted."""

    name: str
    uid: str
    phase: str
    """As its status says; empty before its first status."""
    claim_name: str
    """Claim on which its final model lies, or will."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A ConfigMap that the run refers to, as it was read; `keys` is None when it does not exist."""

    name: str
    keys: frozenset[str] | None
    read_at: datetime


class RefusalKind(StrEnum):
    """Why the API server refused to make a child."""

    FORBIDDEN = "Forbidden"
    INVALID = "Invalid"
    NAME_CONFLICT = "NameConflict"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write that the API server refused, and that trying at once again cannot help."""

    kind: RefusalKind
    message: str
    at: datetime


class Reachability(StrEnum):
    """What a sidecar answered last."""

    NOT_ASKED = "NotAsked"
    ANSWERED = "Answered"
    UNREACHABLE = "Unreachable"


class StopAnswer(StrEnum):
    """What became of the request to stop the present attempt."""

    NOT_ASKED = "NotAsked"
    TAKEN = "Taken"
    """The sidecar has written it down: the runner will see it."""
    REFUSED = "Refused"
    """The sidecar knows no such token (401, 404): asking again is of no use, the preStop hook must do."""
    UNREACHABLE = "Unreachable"
    """No answer; it is asked again."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What this process alone knows of a run."""

    first_seen: datetime
    status_written: datetime | None = None
    """When this process last wrote the status."""
    config_made: bool = False
    """The run's ConfigMap was made, or found, by this process; ConfigMaps are not watched."""
    references: tuple[Reference, ...] = ()
    patch_problems: tuple[str, ...] | None = None
    """What is wrong with the run's patches, which takes long to find out; None: nobody has looked yet."""
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    """By kind of child, or `Status`."""
    since: Mapping[str, datetime] = field(default_factory=dict)
    """Since when each signature of `facts.signatures` has its present value."""
    progress: Progress | None = None
    metrics: Reachability = Reachability.NOT_ASKED
    result: RunResult | None = None
    result_asked: Reachability = Reachability.NOT_ASKED
    departed: tuple[PodView, ...] = ()
    """Last views of pods that went while we watched: KubeRay deletes failed pods at once."""
    stop: StopAnswer = StopAnswer.NOT_ASKED
    stop_asked_at: datetime | None = None
    """When the sidecar was last asked to stop."""
    looked_at: datetime | None = None
    """When this process last listed the run's RayClusters and pods from the API server itself (`Plan.look`)."""


@dataclass(frozen=True, slots=True)
class World:
    """One run and all that belongs to it, at one moment."""

    now: datetime
    run: TuningRun
    notes: Notes
    kuberay_served: bool = True
    """Whether the API server knows RayClusters."""
    kuberay_lacks: tuple[str, ...] = ()
    """Fields that its RayClusters lack and that would be set."""
    cluster: ClusterView | None = None
    job: JobView | None = None
    pods: tuple[PodView, ...] = ()
    """Pods of the present attempt."""
    earlier_clusters: tuple[ClusterView, ...] = ()
    """RayClusters of attempts before the present one. There should be none."""
    earlier_jobs: tuple[JobView, ...] = ()
    """Jobs of attempts before the present one, kept for their log."""
    claims: Mapping[str, ClaimView] = field(default_factory=dict)
    """Those that the run needs and that are there, by name: its own, and all that it names."""
    source_run: SourceRun | None = None
    """The run of which this one takes the model; None when it takes none, or none of that name is there."""

    @property
    def attempt(self) -> int:
        """Number of the present attempt; the first needs no record, since names follow from it."""
        return self.run.status.attempt.number or 1

    @property
    def claim_found(self) -> bool:
        """Whether the claim for the run's results exists: its own, or the one it names."""
        return names.claim(self.run) in self.claims

    @property
    def claim_is_foreign(self) -> bool:
        """Whether the claim that would be made has our name and somebody else's label."""
        found = self.claims.get(names.claim(self.run))
        ours = self.run.spec.checkpoint.volume.claim_name is None
        return ours and found is not None and found.run_uid != self.run.uid

    @property
    def model_source(self) -> ModelSource | None:
        """Where another run's model lies: as it was recorded, else as it is seen once that run has succeeded."""
        wanted, known = self.run.spec.model.run, self.run.status.model_source
        if wanted is None:
            return None
        if known.run_uid and known.claim_name:
            return ModelSource(wanted.name, known.run_uid, known.claim_name)
        seen = self.source_run
        if seen is None or seen.phase != Phase.SUCCEEDED:
            return None
        return ModelSource(seen.name, seen.uid, seen.claim_name)

    @property
    def has_children(self) -> bool:
        """Whether anything was made for the run: from then on it is accepted for good."""
        status = self.run.status
        recorded = bool(status.attempt.ray_cluster_uid) or self.attempt > 1 or bool(status.history)
        return self.cluster is not None or self.job is not None or recorded

    @property
    def attempt_over(self) -> bool:
        """Whether the present attempt has ended: it is in the history, and never comes back."""
        return any(record.number == self.attempt for record in self.run.status.history)

    @property
    def head(self) -> PodView | None:
        """The head pod that serves; while none does, one that lives, and at last any."""
        heads = [pod for pod in self.pods if pod.component == meta.COMPONENT_HEAD]
        return max(heads, key=lambda pod: (pod.serves_ray, pod.alive, pod.name), default=None)

    @property
    def workers(self) -> tuple[PodView, ...]:
        """All worker pods, dead ones included."""
        return tuple(pod for pod in self.pods if pod.component == meta.COMPONENT_WORKER)

    @property
    def workers_wanted(self) -> int:
        """Worker pods that the run asks for."""
        return sum(group.replicas for group in self.run.spec.cluster.workers)

    @property
    def workers_ready(self) -> int:
        """Worker pods that are ready."""
        return sum(pod.alive and pod.ready for pod in self.workers)

    @property
    def job_made(self) -> bool:
        """Whether the attempt's Job is there, or once was."""
        return self.job is not None or bool(self.run.status.attempt.job_uid)

    @property
    def drivers(self) -> tuple[PodView, ...]:
        """All driver pods, dead ones included."""
        return tuple(pod for pod in self.pods if pod.component == meta.COMPONENT_DRIVER)
