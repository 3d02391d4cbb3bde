"""Parts that several manifests share: labels, owners, security contexts, what a run asks of all its pods.

Used by the builders of this package only. Every function returns new values, so that no two manifests share a part.
"""

from collections.abc import Mapping
from typing import Any

from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun

Manifest = dict[str, Any]

USER_ID = 1000
"""The numeric user of our images; also the group of the files on the volume."""


def labels(run: TuningRun, component: str, attempt: int | None = None) -> dict[str, str]:
    """Labels of a child, and of its pods: the operator watches nothing that lacks them."""
    common = {
        meta.MANAGED_BY_LABEL: meta.MANAGED_BY,
        meta.RUN_LABEL: run.name,
        meta.RUN_UID_LABEL: run.uid,
        meta.COMPONENT_LABEL: component,
    }
    return common if attempt is None else common | {meta.ATTEMPT_LABEL: str(attempt)}


def pod_metadata(run: TuningRun, ours: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Manifest:
    """Metadata of a pod: what the run wishes for all its pods, over which ours wins.

    Args:
        run: the run.
        ours: labels that we need.
        annotations: those that we need.
    """
    metadata: Manifest = {"labels": {**run.spec.pod_labels, **ours}}
    noted = {**run.spec.pod_annotations, **(annotations or {})}
    return metadata | ({"annotations": noted} if noted else {})


def identity(run: TuningRun) -> Manifest:
    """The parts of every pod's spec that say as whom it runs and pulls its images."""
    pull = [{"name": secret.name} for secret in run.spec.image_pull_secrets]
    account = run.spec.service_account_name
    return ({"serviceAccountName": account} if account else {}) | ({"imagePullSecrets": pull} if pull else {})


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


def resources(cpu: str, memory: str, devices: Mapping[str, int] | None = None) -> Manifest:
    """CPU as a request only (a limit would throttle what is idle elsewhere), memory and devices as both.

    Args:
        cpu: cores, as a quantity.
        memory: as a quantity.
        devices: how many of each extended resource; none of which there are 0.
    """
    fixed = {"memory": memory} | {name: str(count) for name, count in (devices or {}).items() if count}
    return {"requests": {"cpu": cpu} | fixed, "limits": dict(fixed)}
