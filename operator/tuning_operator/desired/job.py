"""The Job of one attempt: its driver submits the training to Ray, follows it and tells how it ended.

Made when the RayCluster is ready; kept, with its log, when the run has ended. A lost driver pod is not a lost run: the
next pod attaches to the same Ray job.
"""

from tuning_contract import environment, termination
from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import environment_variables, fragments, mounts, names
from tuning_operator.desired.fragments import Manifest
from tuning_operator.settings import Settings

DRIVER_CONTAINER = "driver"
BACKOFF_LIMIT = 20
"""Driver pods that may fail by themselves; a verdict ends the Job at once."""


def build(run: TuningRun, settings: Settings, attempt: int, ray_cluster_uid: str) -> Manifest:
    """The Job of the attempt with this number, for the RayCluster with this UID."""
    name = names.attempt(run, attempt)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": run.namespace,
            "labels": fragments.labels(run, meta.COMPONENT_DRIVER, attempt),
            "ownerReferences": [_cluster(name, ray_cluster_uid), fragments.owner(run, controller=False)],
        },
        "spec": {
            "backoffLimit": BACKOFF_LIMIT,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": DRIVER_CONTAINER,
                            "operator": "In",
                            "values": list(termination.VERDICT_CODES),
                        },
                    },
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": _pod(run, settings, attempt),
        },
    }


def _cluster(name: str, uid: str) -> Manifest:
    """The RayCluster as the controlling owner: a queue then counts the Job as part of it.

    It is deleted before the Job; the run, the other owner, keeps the Job alive.
    """
    return {
        "apiVersion": meta.RAY_API_VERSION,
        "kind": "RayCluster",
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _pod(run: TuningRun, settings: Settings, attempt: int) -> Manifest:
    seen = [mounts.run_document(run)]
    # No label of KubeRay's: it would count the pod as its own and delete it. No proxy of a mesh: it would keep the
    # Job from ending.
    labels = fragments.labels(run, meta.COMPONENT_DRIVER, attempt) | {"sidecar.istio.io/inject": "false"}
    rank = run.spec.priority_class_name
    return {
        "metadata": fragments.pod_metadata(run, labels),
        "spec": {
            **fragments.identity(run),
            **({"priorityClassName": rank} if rank else {}),
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": fragments.pod_security(),
            "containers": [
                {
                    "name": DRIVER_CONTAINER,
                    "image": settings.operator_image,
                    "imagePullPolicy": settings.image_pull_policy,
                    "command": ["python", "-m", "tuning_driver"],
                    "env": _variables(run, attempt),
                    "resources": fragments.resources("50m", "128Mi"),
                    "securityContext": fragments.container_security(read_only_root=True),
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": mounts.volume_mounts(seen),
                }
            ],
            "volumes": mounts.volumes(seen),
        },
    }


def _variables(run: TuningRun, attempt: int) -> list[Manifest]:
    name = names.attempt(run, attempt)
    host = f"{names.head_service(name)}.{run.namespace}.svc"
    token = {"name": names.token_secret(name), "key": names.TOKEN_KEY}
    plain = {
        environment.ATTEMPT: str(attempt),
        environment.RUN_DOCUMENT: environment.RUN_DOCUMENT_PATH,
        environment.RAY_ADDRESS: f"http://{host}:{environment.DASHBOARD_PORT}",
        environment.RAY_JOB_ID: name,
        environment.SIDECAR_ADDRESS: f"http://{host}:{environment.SIDECAR_PORT}",
        environment.STOP_GRACE_SECONDS: str(run.spec.deadlines.stop_grace_seconds),
    }
    if run.spec.deadlines.stall_seconds:
        plain[environment.STALL_SECONDS] = str(run.spec.deadlines.stall_seconds)
    return [*environment_variables.plain(plain), {"name": environment.RAY_TOKEN, "valueFrom": {"secretKeyRef": token}}]
