"""The part of `spec` that says on what the run runs: head and worker pods of the Ray cluster.

Part of `v1alpha1_spec`. What a platform offers (node pools) is not here: the chart's values name it, and the operator
looks it up.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from tuning_operator.api.model import (
    DNS_LABEL_PATTERN,
    ApiModel,
    FreeForm,
    LabelValue,
    ObjectName,
    Path,
    Quantity,
    Rule,
    exactly_one,
    list_map,
    rule,
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

NodeLabels = Annotated[dict[str, LabelValue], Field(max_length=16, examples=[{"kubernetes.io/arch": "amd64"}])]


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

    size_limit: Annotated[Quantity, Field(examples=["10Gi"])] = "10Gi"
    """Most that may be written into it, as a Kubernetes quantity; the pod is evicted when it is more."""


class VolumeSpec(ApiModel):
    """One more volume of the pod, seen by the Ray container."""

    rules: ClassVar[tuple[Rule, ...]] = (
        exactly_one("claimName", "configMap", "secret", "emptyDir"),
        rule(
            f"!{list(RESERVED_MOUNTS)!r}.exists("
            "place, self.mountPath == place || self.mountPath.startsWith(place + '/'))",
            "`mountPath` must not be in a folder of the operator's: mount it elsewhere, such as below /data",
            "mountPath",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=50, pattern=DNS_LABEL_PATTERN, examples=["corpus"])]
    """Name of the volume, unique in the pod."""
    mount_path: Annotated[Path, Field(examples=["/data/corpus"])]
    """Absolute path at which the Ray container sees it."""
    read_only: Annotated[bool, Field(examples=[False])] = True
    """Whether the container may only read it; an emptyDir is of use only when this is false."""
    claim_name: Annotated[ObjectName, Field(examples=["corpus"])] | None = None
    """PersistentVolumeClaim in the run's namespace."""
    config_map: VolumeConfigMap | None = None
    """ConfigMap whose keys are the files."""
    secret: VolumeSecret | None = None
    """Secret whose keys are the files."""
    empty_dir: VolumeScratch | None = None
    """Empty folder for scratch files, gone with the pod."""


class PodSpec(ApiModel):
    """What head and workers have in common: resources, nodes, volumes."""

    rules: ClassVar[tuple[Rule, ...]] = (
        # A default is judged before the defaults below it are filled in, hence has().
        rule(
            "!has(self.cpu) || quantity(string(self.cpu)).isGreaterThan(quantity('0'))",
            "`cpu` must be more than 0",
            "cpu",
        ),
        rule(
            "!has(self.memory) || quantity(string(self.memory)).compareTo(quantity('512Mi')) >= 0",
            "`memory` must be at least 512Mi: Ray alone needs that",
            "memory",
        ),
        rule(
            "!has(self.memory) || !has(self.sharedMemory) || "
            "quantity(string(self.sharedMemory)).isLessThan(quantity(string(self.memory)))",
            "`sharedMemory` must be less than `memory`: it is part of it",
            "sharedMemory",
        ),
    )

    cpu: Annotated[Quantity, Field(examples=["8"])] = "4"
    """CPU cores, as a Kubernetes quantity: requested and shown to Ray; not a limit."""
    memory: Annotated[Quantity, Field(examples=["32Gi"])] = "16Gi"
    """Memory, as a Kubernetes quantity: requested and limit."""
    shared_memory: Annotated[Quantity, Field(examples=["8Gi"])] = "1Gi"
    """Size of /dev/shm, where Ray keeps its objects, as a Kubernetes quantity; it counts against memory."""
    gpus: Annotated[int, Field(ge=0, le=16, examples=[1])] = 0
    """Number of GPUs, of the kind that the node pool offers, NVIDIA GPUs without a pool."""
    node_pool: (
        Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN, examples=["a100"])] | None
    ) = None
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
    volumes: Annotated[tuple[VolumeSpec, ...], Field(max_length=16, json_schema_extra=list_map("name"))] = ()
    """More volumes for the Ray container, such as data that the agent's tools read."""
    pod_template_patch: FreeForm = Field(default_factory=dict)
    """Free-form changes of the pod template, merged into what the operator builds: objects by key, lists of named
    things by name. It cannot take away the operator's own parts, nor ask for host access or privileges."""


class HeadSpec(PodSpec):
    """The pod of the Ray head, which trains."""


class WorkerSpec(PodSpec):
    """A group of equal worker pods."""

    rules: ClassVar[tuple[Rule, ...]] = (
        *PodSpec.rules,
        rule(
            "self.name != 'headgroup'",
            "`name` must not be headgroup: KubeRay calls the head so; choose another",
            "name",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=15, pattern=DNS_LABEL_PATTERN, examples=["agents"])]
    """Name of the group, unique in the run; it is part of the names of its pods."""
    replicas: Annotated[int, Field(ge=1, le=1000, examples=[2])] = 1
    """Number of pods in the group; training starts when all of them are ready."""


class ClusterSpec(ApiModel):
    """The Ray cluster of each attempt."""

    head: HeadSpec = HeadSpec()
    """The head pod, which trains with engine TRL."""
    workers: Annotated[tuple[WorkerSpec, ...], Field(max_length=8, json_schema_extra=list_map("name"))] = ()
    """Groups of worker pods. With engine TRL they run the episodes: agents, tools and environments. Without any: the
    head runs the episodes, too."""
