"""Parts that several manifests share: labels, owners, security contexts, variables, mounts.

Used by the builders of this package only. Every function returns new values, so that no two manifests share a part.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuning_contract import environment
from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import names

Manifest = dict[str, Any]

USER_ID = 1000
"""The numeric user of our images; also the group of the files on the volume."""


@dataclass(frozen=True)
class Mount:
    """A volume of a pod and where a container sees it."""

    name: str
    source: Mapping[str, Any]
    """The volume's source, such as `{"emptyDir": {}}`."""
    path: str
    read_only: bool = True

    def volume(self) -> Manifest:
        """Entry of `spec.volumes`."""
        return {"name": self.name, **self.source}

    def volume_mount(self) -> Manifest:
        """Entry of `volumeMounts`."""
        mount: Manifest = {"name": self.name, "mountPath": self.path}
        return mount | ({"readOnly": True} if self.read_only else {})


def labels(run: TuningRun, component: str, attempt: int | None = None) -> dict[str, str]:
    """Labels of a child, and of its pods: the operator watches nothing that lacks them."""
    common = {
        meta.MANAGED_BY_LABEL: meta.MANAGED_BY,
        meta.RUN_LABEL: run.name,
        meta.RUN_UID_LABEL: run.uid,
        meta.COMPONENT_LABEL: component,
    }
    return common if attempt is None else common | {meta.ATTEMPT_LABEL: str(attempt)}


def owner(run: TuningRun, *, controller: bool = True) -> Manifest:
    """The run as an owner. It never blocks a foreground deletion, which would need a right on finalizers."""
    return {
        "apiVersion": meta.API_VERSION,
        "kind": meta.KIND,
        "name": run.name,
        "uid": run.uid,
        "controller": controller,
        "blockOwnerDeletion": False,
    }


def pod_security() -> Manifest:
    """Pod security context: nothing that the restricted profile forbids, and a group that may write the volume."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(*, read_only_root: bool) -> Manifest:
    """Container security context. Ray and user code write to /tmp and home, ours writes nothing."""
    context: Manifest = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return context | ({"readOnlyRootFilesystem": True} if read_only_root else {})


def resources(cpu: str, memory: str, gpus: int = 0) -> Manifest:
    """CPU as a request only (a limit would throttle what is idle elsewhere), memory and GPUs as both."""
    fixed: Manifest = {"memory": memory} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {"requests": {"cpu": cpu} | fixed, "limits": dict(fixed)}


def variables(values: Mapping[str, str]) -> list[Manifest]:
    """A container's `env` in the order given."""
    return [{"name": name, "value": value} for name, value in values.items()]


def volumes(mounts: Iterable[Mount]) -> list[Manifest]:
    """A pod's `volumes`."""
    return [mount.volume() for mount in mounts]


def volume_mounts(mounts: Iterable[Mount]) -> list[Manifest]:
    """A container's `volumeMounts`."""
    return [mount.volume_mount() for mount in mounts]


def run_document(run: TuningRun) -> Mount:
    """run.json."""
    return Mount("run", {"configMap": {"name": names.child(run)}}, environment.CONFIG_MOUNT)


def checkpoints(run: TuningRun) -> Mount:
    """The volume with checkpoints, logs and result."""
    source = {"persistentVolumeClaim": {"claimName": names.claim(run)}}
    return Mount("checkpoints", source, environment.VOLUME_MOUNT, read_only=False)


def shared_memory(size: str) -> Mount:
    """Memory for Ray's object store: a container's own has 64 MiB."""
    return Mount("shared-memory", {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, "/dev/shm", read_only=False)  # noqa: S108


def user_files(run: TuningRun) -> list[Mount]:
    """The ConfigMaps that the spec names: source, chat template, datasets."""
    found = []
    if run.spec.workflow.source:
        found.append(_config_map("source", run.spec.workflow.source.config_map.name, environment.SOURCE_MOUNT))
    if run.spec.model.chat_template:
        name = run.spec.model.chat_template.config_map.name
        found.append(_config_map("chat-template", name, environment.TEMPLATE_MOUNT))
    if run.spec.dataset.train.config_map:
        path = f"{environment.DATASETS_MOUNT}/train"
        found.append(_config_map("dataset-train", run.spec.dataset.train.config_map.name, path))
    for place, evaluation in enumerate(run.spec.dataset.evaluation):
        if evaluation.config_map:
            path = f"{environment.DATASETS_MOUNT}/{evaluation.name}"
            # By place, since the name of a set may be as long as that of a volume.
            found.append(_config_map(f"dataset-evaluation-{place}", evaluation.config_map.name, path))
    return found


def _config_map(name: str, config_map: str, path: str) -> Mount:
    return Mount(name, {"configMap": {"name": config_map}}, path)
