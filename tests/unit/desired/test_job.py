"""The Job of an attempt."""

from typing import Any

from tests.builders import UID, a_run, some_settings
from tuning_operator.desired import job

LABELS = {
    "app.kubernetes.io/managed-by": "agent-tuning-operator",
    "agenttuning.io/run": "math-agent",
    "agenttuning.io/run-uid": UID,
    "agenttuning.io/attempt": "1",
    "agenttuning.io/component": "driver",
}
HEAD = "math-agent-3f9a1c-1-head-svc.ml.svc"

SMALLEST: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "math-agent-3f9a1c-1",
        "namespace": "ml",
        "labels": LABELS,
        "ownerReferences": [
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "name": "math-agent-3f9a1c-1",
                "uid": "cluster-uid",
                "controller": True,
                "blockOwnerDeletion": False,
            },
            {
                "apiVersion": "agenttuning.io/v1alpha1",
                "kind": "TuningRun",
                "name": "math-agent",
                "uid": UID,
                "controller": False,
                "blockOwnerDeletion": False,
            },
        ],
    },
    "spec": {
        "backoffLimit": 20,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "driver", "operator": "In", "values": [10, 11, 12]},
                },
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {
            "metadata": {"labels": {**LABELS, "sidecar.istio.io/inject": "false"}},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 1000,
                    "runAsGroup": 1000,
                    "fsGroup": 1000,
                    "fsGroupChangePolicy": "OnRootMismatch",
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "driver",
                        "image": "agent-tuning/operator:0.1",
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["python", "-m", "tuning_driver"],
                        "env": [
                            {"name": "TUNING_ATTEMPT", "value": "1"},
                            {"name": "TUNING_RUN_DOCUMENT", "value": "/etc/agent-tuning/run/run.json"},
                            {"name": "TUNING_RAY_ADDRESS", "value": f"http://{HEAD}:8265"},
                            {"name": "TUNING_RAY_JOB_ID", "value": "math-agent-3f9a1c-1"},
                            {"name": "TUNING_SIDECAR_ADDRESS", "value": f"http://{HEAD}:8090"},
                            {"name": "TUNING_STOP_GRACE_SECONDS", "value": "120"},
                            {
                                "name": "RAY_AUTH_TOKEN",
                                "valueFrom": {"secretKeyRef": {"name": "math-agent-3f9a1c-1", "key": "auth_token"}},
                            },
                        ],
                        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}},
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]},
                            "readOnlyRootFilesystem": True,
                        },
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "volumeMounts": [{"name": "run", "mountPath": "/etc/agent-tuning/run", "readOnly": True}],
                    }
                ],
                "volumes": [{"name": "run", "configMap": {"name": "math-agent-3f9a1c"}}],
            },
        },
    },
}


def test_the_job_of_the_smallest_run() -> None:
    assert job.build(a_run(), some_settings(), 1, "cluster-uid") == SMALLEST


def test_another_attempt_has_another_job_for_another_ray_job() -> None:
    second = job.build(a_run(), some_settings(), 2, "other-uid")
    assert second["metadata"]["name"] == "math-agent-3f9a1c-2"
    assert second["metadata"]["ownerReferences"][0]["uid"] == "other-uid"
    environment = second["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "TUNING_RAY_JOB_ID", "value": "math-agent-3f9a1c-2"} in environment
    assert {"name": "TUNING_ATTEMPT", "value": "2"} in environment


def test_the_driver_is_told_how_long_the_training_may_stand_still_and_may_take_to_stop() -> None:
    run = a_run(deadlines={"stallSeconds": 900, "stopGraceSeconds": 60})
    environment = job.build(run, some_settings(), 1, "uid")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "TUNING_STALL_SECONDS", "value": "900"} in environment
    assert {"name": "TUNING_STOP_GRACE_SECONDS", "value": "60"} in environment


def test_kuberay_never_takes_the_drivers_pod_for_its_own() -> None:
    labels = job.build(a_run(), some_settings(), 1, "cluster-uid")["spec"]["template"]["metadata"]["labels"]
    assert not [label for label in labels if label.startswith("ray.io/")]


def test_what_a_run_wishes_for_all_its_pods_is_on_the_drivers_too() -> None:
    run = a_run(
        serviceAccountName="tuning",
        imagePullSecrets=[{"name": "registry"}],
        priorityClassName="high",
        podLabels={"team": "x", "sidecar.istio.io/inject": "true"},
        podAnnotations={"owner": "x"},
    )
    template = job.build(run, some_settings(), 1, "cluster-uid")["spec"]["template"]
    smallest = SMALLEST["spec"]["template"]
    assert template == {
        "metadata": {
            "labels": {"team": "x", **smallest["metadata"]["labels"]},
            "annotations": {"owner": "x"},
        },
        "spec": {
            "serviceAccountName": "tuning",
            "imagePullSecrets": [{"name": "registry"}],
            "priorityClassName": "high",
            **smallest["spec"],
        },
    }
