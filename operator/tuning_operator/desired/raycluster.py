"""The RayCluster of one attempt: a head that trains, with the metrics sidecar beside it.

KubeRay 1.6 accepts it and adds what is not set here: the command, `num-cpus` from the CPU request (Ray jobs run on
the head, so it keeps its CPUs), the liveness probe, the token's Secret and variables. Workers are not here yet.
"""

from tuning_contract import environment
from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import fragments, names
from tuning_operator.desired.fragments import Manifest
from tuning_operator.settings import Settings

RAY_CONTAINER = "ray-head"
SIDECAR_CONTAINER = "tuning-sidecar"
AGENT_PORT = 52365
"""Port of Ray's dashboard agent, which answers for the node's and the head's health since Ray 2.53."""
GRACE_SECONDS = 60
"""Time for the sidecar to push what it has when the pod is deleted."""

# A head that has trained is not made anew inside the attempt: Ray's state is gone with it. Before that, a failed
# head pod is replaced, since its restart policy is Never.
_CLUSTER_ANNOTATIONS = {"ray.io/disable-provisioned-head-restart": "true"}
_POD_ANNOTATIONS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}


def build(run: TuningRun, settings: Settings, attempt: int) -> Manifest:
    """The RayCluster of the attempt with this number."""
    return {
        "apiVersion": meta.RAY_API_VERSION,
        "kind": "RayCluster",
        "metadata": {
            "name": names.attempt(run, attempt),
            "namespace": run.namespace,
            "labels": fragments.labels(run, meta.COMPONENT_CLUSTER, attempt),
            "annotations": dict(_CLUSTER_ANNOTATIONS),
            "ownerReferences": [fragments.owner(run)],
        },
        "spec": {
            "rayVersion": run.spec.engine.ray_version,
            # Ray's API runs any code that it is sent.
            "authOptions": {"mode": "token"},
            "headGroupSpec": {
                "rayStartParams": {"dashboard-host": "0.0.0.0"},  # noqa: S104 - the Job's pod must reach it
                "template": _head(run, settings, attempt),
            },
        },
    }


def _head(run: TuningRun, settings: Settings, attempt: int) -> Manifest:
    mounts = _mounts(run)
    return {
        "metadata": {
            "labels": fragments.labels(run, meta.COMPONENT_HEAD, attempt),
            "annotations": dict(_POD_ANNOTATIONS),
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": fragments.pod_security(),
            "initContainers": [_sidecar(run, settings, attempt)],
            # KubeRay takes the first container for Ray's.
            "containers": [_ray(run, settings, mounts)],
            "volumes": fragments.volumes(mounts),
        },
    }


def _mounts(run: TuningRun) -> list[fragments.Mount]:
    return [
        fragments.run_document(run),
        fragments.checkpoints(run),
        fragments.shared_memory(run.spec.cluster.head.shared_memory),
        *fragments.user_files(run),
    ]


def _ray(run: TuningRun, settings: Settings, mounts: list[fragments.Mount]) -> Manifest:
    head = run.spec.cluster.head
    return {
        "name": RAY_CONTAINER,
        "image": run.spec.workflow.image or settings.runner_image,
        "imagePullPolicy": settings.image_pull_policy,
        "env": fragments.variables(_ray_variables(run)),
        "resources": fragments.resources(head.cpu, head.memory, head.gpus),
        "securityContext": fragments.container_security(read_only_root=False),
        # KubeRay's own probe asks the same from the tenth second on, which alone doubles the time to a ready head.
        "readinessProbe": {
            "httpGet": {"path": "/api/healthz", "port": AGENT_PORT},
            "initialDelaySeconds": 1,
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 10,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": fragments.volume_mounts(mounts),
    }


def _ray_variables(run: TuningRun) -> dict[str, str]:
    """Variables that the runner, the user's code and Ray see; the user's replace none of ours."""
    ours = {environment.RUN_DOCUMENT: environment.RUN_DOCUMENT_PATH, "RAY_USAGE_STATS_ENABLED": "0"}
    if run.spec.workflow.source:
        ours["PYTHONPATH"] = environment.SOURCE_MOUNT
    return {entry.name: entry.value for entry in run.spec.workflow.env if entry.name not in ours} | ours


def _sidecar(run: TuningRun, settings: Settings, attempt: int) -> Manifest:
    """A native sidecar: it starts before Ray and is stopped after it, so that it sees the last step."""
    mounts = [fragments.run_document(run), fragments.checkpoints(run)]
    values = {environment.RUN_DOCUMENT: environment.RUN_DOCUMENT_PATH, environment.ATTEMPT: str(attempt)}
    return {
        "name": SIDECAR_CONTAINER,
        "image": settings.operator_image,
        "imagePullPolicy": settings.image_pull_policy,
        "restartPolicy": "Always",
        "command": ["python", "-m", "tuning_sidecar"],
        "env": fragments.variables(values),
        "ports": [{"name": environment.SIDECAR_PORT_NAME, "containerPort": environment.SIDECAR_PORT}],
        "resources": fragments.resources("50m", "128Mi"),
        "securityContext": fragments.container_security(read_only_root=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": fragments.volume_mounts(mounts),
    }
