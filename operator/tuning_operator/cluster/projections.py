"""What is kept of each watched object: as little as the policies read. Called by the informers.

Tolerant: an object that lacks what it should have becomes a view that says so; nothing here raises on content.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tuning_operator.api import meta
from tuning_operator.engine.plan import HEAD_RESTARTS_ANNOTATION, HEAD_UID_ANNOTATION
from tuning_operator.engine.times import from_text
from tuning_operator.engine.world import ClaimView, ClusterView, ContainerState, ContainerView, JobView, PodView

_GROUP_LABEL = "ray.io/group"
"""On the pods that KubeRay makes: the name of the worker group."""
_NOT_CREATED = {"FailedCreateHeadPod": meta.COMPONENT_HEAD, "FailedCreateWorkerPod": meta.COMPONENT_WORKER}
"""Reasons of KubeRay's condition ReplicaFailure, with the component that they are about."""
_KEPT_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)

_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunView:
    """A TuningRun as text: parsed only when it is looked at, since thousands of finished ones lie still."""

    namespace: str
    name: str
    uid: str
    phase: str
    document: bytes
    """metadata, spec and status."""

    def parsed(self) -> dict[str, Any]:
        """The object."""
        document: dict[str, Any] = orjson.loads(self.document)
        return document


def run(raw: Raw) -> RunView:
    """Keep spec, status and the necessary metadata."""
    metadata = {key: raw["metadata"][key] for key in _KEPT_METADATA if key in raw["metadata"]}
    status = raw.get("status") or {}
    document = {"metadata": metadata, "spec": raw.get("spec") or {}, "status": status}
    return RunView(
        metadata.get("namespace", ""),
        metadata["name"],
        metadata["uid"],
        status.get("phase", ""),
        orjson.dumps(document),
    )


def cluster(raw: Raw) -> ClusterView:
    """Keep readiness of head and workers, and which pods are refused; `status.state` latches and is not looked at."""
    status = raw.get("status") or {}
    failure = _condition(status, "ReplicaFailure")
    reason = failure.get("reason") or ""
    refused = _NOT_CREATED.get(reason, "") if failure.get("status") == "True" else ""
    # KubeRay puts its reason on a line before the server's words.
    words = " ".join((failure.get("message") or "").removeprefix(reason).split())
    return ClusterView(
        name=raw["metadata"]["name"],
        uid=raw["metadata"]["uid"],
        namespace=raw["metadata"].get("namespace", ""),
        owner=controller_of(raw),
        deleting="deletionTimestamp" in raw["metadata"],
        head_ready=_holds(status, "HeadPodReady"),
        provisioned=_holds(status, "RayClusterProvisioned"),
        ready_workers=status.get("readyWorkerReplicas") or 0,
        desired_workers=status.get("desiredWorkerReplicas") or 0,
        refused=refused,
        refusal=words if refused else "",
    )


def job(raw: Raw) -> JobView:
    """Keep whether it has ended, and for which head it was made."""
    status = raw.get("status") or {}
    failed = _condition(status, "Failed")
    annotations = raw["metadata"].get("annotations") or {}
    restarts = annotations.get(HEAD_RESTARTS_ANNOTATION, "")
    return JobView(
        name=raw["metadata"]["name"],
        uid=raw["metadata"]["uid"],
        namespace=raw["metadata"].get("namespace", ""),
        owners=owners_of(raw),
        attempt=_attempt(raw),
        made_at=from_text(raw["metadata"].get("creationTimestamp")),
        end_asked=(raw.get("spec") or {}).get("activeDeadlineSeconds") is not None,
        deleting="deletionTimestamp" in raw["metadata"],
        complete=_holds(status, "Complete"),
        failed=failed.get("status") == "True",
        reason=failed.get("reason") or "",
        message=failed.get("message") or "",
        head_pod_uid=annotations.get(HEAD_UID_ANNOTATION, ""),
        head_restarts=int(restarts) if restarts.isdecimal() else None,
    )


def pod(raw: Raw) -> PodView:
    """Keep what a person would look for with `kubectl describe pod`."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    scheduled = _condition(status, "PodScheduled")
    waits = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    disrupted = _condition(status, "DisruptionTarget")
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        component=labels.get(meta.COMPONENT_LABEL, ""),
        attempt=_attempt(raw),
        namespace=metadata.get("namespace", ""),
        owner=controller_of(raw),
        phase=status.get("phase") or "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        ip=status.get("podIP") or "",
        deleting="deletionTimestamp" in metadata,
        deleted_at=from_text(metadata.get("deletionTimestamp")),
        started_at=from_text(status.get("startTime")),
        unschedulable=scheduled.get("message") or "" if waits else "",
        disruption=disrupted.get("reason") or "" if disrupted.get("status") == "True" else "",
        disrupted_at=from_text(disrupted.get("lastTransitionTime")) if disrupted.get("status") == "True" else None,
        node_lost=_node_is_lost(status),
        containers=_containers(spec, status),
        has_sandbox=_holds(status, "PodReadyToStartContainers"),
        group=labels.get(_GROUP_LABEL, "") if labels.get(meta.COMPONENT_LABEL) == meta.COMPONENT_WORKER else "",
        ready=_holds(status, "Ready"),
    )


def claim(raw: Raw) -> ClaimView:
    """Keep the owner's label and the access modes."""
    modes = (raw.get("spec") or {}).get("accessModes") or ()
    return ClaimView(label_of_run(raw), frozenset(modes), "deletionTimestamp" in raw["metadata"])


def label_of_run(raw: Raw) -> str:
    """UID of the run to which an object says that it belongs; empty for others'. Anybody may write a label."""
    uid: str = (raw["metadata"].get("labels") or {}).get(meta.RUN_UID_LABEL, "")
    return uid


def controller_of(raw: Raw) -> str:
    """UID of the owner that controls an object; empty when there is none."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), "")


def owners_of(raw: Raw) -> tuple[str, ...]:
    """UIDs of all owners of an object."""
    return tuple(owner["uid"] for owner in raw["metadata"].get("ownerReferences") or ())


def _attempt(raw: Raw) -> int:
    """Number of the attempt by the label; 0 where there is none."""
    label = (raw["metadata"].get("labels") or {}).get(meta.ATTEMPT_LABEL, "")
    return int(label) if label.isdecimal() else 0


def _node_is_lost(status: Raw) -> bool:
    """Whether the node's controller took the condition Ready away, since the kubelet is silent.

    It changes nothing else, so the kubelet's last word stands beside it: that every container is ready. A kubelet that
    takes Ready away says why.
    """
    if status.get("reason") == "NodeLost":
        return True
    ready = _condition(status, "Ready")
    return ready.get("status") in ("False", "Unknown") and not ready.get("reason") and _holds(status, "ContainersReady")


def _containers(spec: Raw, status: Raw) -> tuple[ContainerView, ...]:
    limits = {
        item["name"]: ((item.get("resources") or {}).get("limits") or {}).get("memory", "")
        for kind in ("initContainers", "containers")
        for item in spec.get(kind) or ()
    }
    reports = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return tuple(_container(report, limits.get(report["name"], "")) for report in reports)


def _container(report: Raw, memory_limit: str) -> ContainerView:
    # A state is an object with the one key that names it.
    states: Mapping[str, Raw] = report.get("state") or {}
    state = next(iter(states), "")
    details: Raw = states.get(state) or {}
    last: Raw = (report.get("lastState") or {}).get("terminated") or {}
    return ContainerView(
        name=report["name"],
        state=ContainerState(state) if state in set(ContainerState) else ContainerState.UNKNOWN,
        reason=details.get("reason") or "",
        message=_words(details),
        exit_code=details.get("exitCode"),
        ready=report.get("ready") is True,
        restarts=report.get("restartCount") or 0,
        last_reason=last.get("reason") or "",
        last_message=_words(last),
        last_exit_code=last.get("exitCode"),
        memory_limit=memory_limit,
    )


def _words(state: Raw) -> str:
    """What a container said at its end: its last lines as a rule, without the colours of a terminal."""
    return _TERMINAL.sub("", state.get("message") or "")


def _holds(status: Raw, kind: str) -> bool:
    return _condition(status, kind).get("status") == "True"


def _condition(status: Raw, kind: str) -> Raw:
    return next((item for item in status.get("conditions") or () if item.get("type") == kind), {})
