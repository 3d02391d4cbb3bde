"""The part of `spec` that says on what the run runs: head and worker pods of the Ray cluster.

Part of `v1alpha1_spec`. What a platform offers (node pools) is not here: the chart's values name it, and the operator
looks it up.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from tuning_operator.api.model import (
    DNS_LABEL_PATTERN,
    LABEL_WORDS,
    MOUNT_PATH_PATTERN,
    ApiModel,
    DnsLabel,
    FreeForm,
    LabelKey,
    LabelValue,
    ObjectName,
    Quantity,
    Rule,
    exactly_one,
    in_words,
    list_map,
    more_than_zero,
    rule,
    valid_keys,
)
from tuning_operator.api.v1alpha1_scheduling import Affinity, Toleration

RESERVED_MOUNTS = (
    "/dev/shm",  # noqa: S108 - names a mount, makes no file
    "/etc/agent-tuning",
    "/mnt/agent-tuning",
    "/mnt/claims",
    "/mnt/huggingface",
    "/opt/agent-tuning",
)
"""Folders of the pods that the operator mounts, or where the images have our code."""

MOST_WORKERS = 1000
"""Worker pods of a run, all groups together."""

MountPath = Annotated[
    str,
    Field(
        min_length=2,
        max_length=1024,
        pattern=MOUNT_PATH_PATTERN,
        json_schema_extra=in_words(
            "must be an absolute path, such as /data, without : // . or .. in it and / at its end"
        ),
    ),
]
VolumeName = Annotated[
    str, Field(min_length=1, max_length=50, pattern=DNS_LABEL_PATTERN, json_schema_extra=in_words(LABEL_WORDS))
]
GroupName = Annotated[
    str, Field(min_length=1, max_length=15, pattern=DNS_LABEL_PATTERN, json_schema_extra=in_words(LABEL_WORDS))
]
NodeLabels = Annotated[dict[LabelKey, LabelValue], Field(max_length=16, examples=[{"kubernetes.io/arch": "amd64"}])]


class VolumeConfigMap(ApiModel):
    """A ConfigMap as a folder of files."""

    name: Annotated[ObjectName, Field(examples=["tool-settings"])]
    """Name of the ConfigMap, in the run's namespace; each key is a file."""


class VolumeSecret(ApiModel):
    """A Secret as a folder of files."""

    secret_name: Annotated[ObjectName, Field(examples=["tool-credentials"])]
    """Name of the Secret, in the run's namespace; each key is a file."""


class VolumeScratch(ApiModel):
    """An empty folder that lasts as long as the pod."""

    validations: ClassVar[tuple[Rule, ...]] = (more_than_zero("sizeLimit"),)

    size_limit: Annotated[Quantity, Field(examples=["10Gi"])] = "10Gi"
    """Most that may be written into it, as a Kubernetes quantity; the pod is evicted when it is more."""


class VolumeSpec(ApiModel):
    """One more volume of the pod, seen by the Ray container."""

    validations: ClassVar[tuple[Rule, ...]] = (
        exactly_one("claimName", "configMap", "secret", "emptyDir"),
        rule(
            f"!{list(RESERVED_MOUNTS)!r}.exists(place, (self.mountPath + '/').startsWith(place + '/') || "
            "place.startsWith(self.mountPath + '/'))",
            "`mountPath` must not be, be in or hold a folder of the operator's, which are "
            f"{', '.join(RESERVED_MOUNTS)}: mount it elsewhere, such as below /data",
            "mountPath",
        ),
        rule(
            "!has(self.emptyDir) || !has(self.readOnly) || !self.readOnly",
            "`readOnly` must not be true with `emptyDir`, which would stay empty: leave it out",
            "readOnly",
        ),
        rule(
            "!(has(self.configMap) || has(self.secret)) || !has(self.readOnly) || self.readOnly",
            "`readOnly` must not be false with `configMap` or `secret`, which a pod cannot write: leave it out",
            "readOnly",
        ),
    )

    name: Annotated[VolumeName, Field(examples=["corpus"])]
    """Name of the volume, unique in the pod."""
    mount_path: Annotated[MountPath, Field(examples=["/data/corpus"])]
    """Absolute path at which the Ray container sees it, unique in the pod."""
    read_only: Annotated[bool, Field(examples=[False])] | None = None
    """Whether the container may only read it. Without it: true, but for an emptyDir, which is there to be written."""
    claim_name: Annotated[ObjectName, Field(examples=["corpus"])] | None = None
    """PersistentVolumeClaim in the run's namespace."""
    config_map: VolumeConfigMap | None = None
    """ConfigMap whose keys are the files."""
    secret: VolumeSecret | None = None
    """Secret whose keys are the files."""
    empty_dir: VolumeScratch | None = None
    """Empty folder for scratch files, gone with the pod."""

    @property
    def mounted_read_only(self) -> bool:
        """`readOnly` resolved: what is not said depends on the kind of volume."""
        return self.empty_dir is None if self.read_only is None else self.read_only


class PodSpec(ApiModel):
    """What head and workers have in common: resources, nodes, volumes."""

    validations: ClassVar[tuple[Rule, ...]] = (
        valid_keys("nodeSelector"),
        # A default is judged before the defaults below it are filled in, hence has().
        more_than_zero("cpu"),
        rule(
            "!has(self.memory) || !isQuantity(string(self.memory)) || "
            "quantity(string(self.memory)).compareTo(quantity('512Mi')) >= 0",
            "`memory` must be at least 512Mi: Ray alone needs that",
            "memory",
        ),
        more_than_zero("sharedMemory"),
        rule(
            "!has(self.memory) || !has(self.sharedMemory) || "
            "!isQuantity(string(self.memory)) || !isQuantity(string(self.sharedMemory)) || "
            "quantity(string(self.sharedMemory)).isLessThan(quantity(string(self.memory)))",
            "`sharedMemory` must be less than `memory`: it is part of it",
            "sharedMemory",
        ),
        rule(
            "!has(self.volumes) || self.volumes.all(one, "
            "self.volumes.exists_one(other, other.mountPath == one.mountPath))",
            "`volumes[].mountPath` must differ from each other: a path shows one volume only",
            "volumes",
        ),
    )

    cpu: Annotated[Quantity, Field(examples=["8"])] = "4"
    """CPU cores, as a Kubernetes quantity: requested and shown to Ray; not a limit."""
    memory: Annotated[Quantity, Field(examples=["32Gi"])] = "16Gi"
    """Memory, as a Kubernetes quantity: requested and limit."""
    shared_memory: Annotated[Quantity, Field(examples=["8Gi"])] = "1Gi"
    """Size of /dev/shm, where Ray keeps its objects, as a Kubernetes quantity; it counts against `memory`."""
    gpus: Annotated[int, Field(ge=0, le=16, examples=[1])] = 0
    """Number of GPUs, of the kind that the node pool offers, NVIDIA GPUs without a pool."""
    node_pool: Annotated[DnsLabel, Field(examples=["a100"])] | None = None
    """Node pool of the installation on whose nodes the pod runs; it brings node selector, tolerations and the kind of
    GPU. Without it: any node."""
    node_selector: NodeLabels = Field(default_factory=dict)
    """Labels that the node must have, beside those of the node pool."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints that the pod does not mind, beside those of the node pool."""
    affinity: Affinity | None = None
    """Where the pod may or should run, as in the affinity of a pod."""
    priority_class_name: Annotated[ObjectName, Field(examples=["research"])] | None = None
    """PriorityClass of the pod. Without it: priorityClassName of the run."""
    runtime_class_name: Annotated[ObjectName, Field(examples=["nvidia"])] | None = None
    """RuntimeClass of the pod, where GPUs need one. Without it: the container runtime of the node's own choice."""
    volumes: Annotated[tuple[VolumeSpec, ...], Field(max_length=16, json_schema_extra=list_map("name"))] = ()
    """More volumes for the Ray container, such as data that the agent's tools read."""
    pod_template_patch: FreeForm = Field(default_factory=dict)
    """Free-form changes of the pod template, merged into what the operator builds: objects by key, lists of named
    things by name. It cannot take away the operator's own parts, nor ask for host access or privileges."""


class HeadSpec(PodSpec):
    """The pod of the Ray head, which trains."""


class WorkerSpec(PodSpec):
    """A group of equal worker pods of the Ray cluster."""

    validations: ClassVar[tuple[Rule, ...]] = (
        *PodSpec.validations,
        rule(
            "self.name != 'head' && self.name != 'headgroup'",
            "`name` must not be head or headgroup: KubeRay and Kueue call the head so; choose another",
            "name",
        ),
    )

    name: Annotated[GroupName, Field(examples=["agents"])]
    """Name of the group, unique in the run; it is part of the names of its pods."""
    replicas: Annotated[int, Field(ge=1, le=1000, examples=[2])] = 1
    """Number of pods in the group; training starts when all of them are ready."""


class ClusterSpec(ApiModel):
    """The Ray cluster of each attempt."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            f"!has(self.workers) || self.workers.map(worker, worker.replicas).sum() <= {MOST_WORKERS}",
            f"`workers[].replicas` must be at most {MOST_WORKERS} in sum: use fewer, larger pods",
            "workers",
        ),
    )

    head: HeadSpec = HeadSpec()
    """The head pod, which trains with engine TRL."""
    workers: Annotated[tuple[WorkerSpec, ...], Field(max_length=8, json_schema_extra=list_map("name"))] = ()
    """Groups of worker pods. With engine TRL they run the episodes: agents, tools and environments. Without any: the
    head runs the episodes, too."""
