"""The RayCluster of an attempt."""

from typing import Any

from tests.builders import UID, a_run, some_settings
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import raycluster

LABELS = {
    "app.kubernetes.io/managed-by": "agent-tuning-operator",
    "agenttuning.io/run": "math-agent",
    "agenttuning.io/run-uid": UID,
    "agenttuning.io/attempt": "1",
}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
RUN_MOUNT = {"name": "run", "mountPath": "/etc/agent-tuning/run", "readOnly": True}
CHECKPOINT_MOUNT = {"name": "checkpoints", "mountPath": "/mnt/agent-tuning"}

SIDECAR = {
    "name": "tuning-sidecar",
    "image": "agent-tuning/operator:0.1",
    "imagePullPolicy": "IfNotPresent",
    "restartPolicy": "Always",
    "command": ["python", "-m", "tuning_sidecar"],
    "env": [
        {"name": "TUNING_RUN_DOCUMENT", "value": "/etc/agent-tuning/run/run.json"},
        {"name": "TUNING_ATTEMPT", "value": "1"},
    ],
    "ports": [{"name": "tuning-metrics", "containerPort": 8090}],
    "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}},
    "securityContext": {**CONTAINER_SECURITY, "readOnlyRootFilesystem": True},
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "volumeMounts": [RUN_MOUNT, CHECKPOINT_MOUNT],
}
RAY = {
    "name": "ray-head",
    "image": "agent-tuning/tiny:0.1",
    "imagePullPolicy": "IfNotPresent",
    "env": [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
        {"name": "TUNING_RUN_DOCUMENT", "value": "/etc/agent-tuning/run/run.json"},
        {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
    ],
    "resources": {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "16Gi"}},
    "securityContext": CONTAINER_SECURITY,
    "readinessProbe": {
        "httpGet": {"path": "/api/healthz", "port": 52365},
        "initialDelaySeconds": 1,
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 10,
    },
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "volumeMounts": [RUN_MOUNT, CHECKPOINT_MOUNT, {"name": "shared-memory", "mountPath": "/dev/shm"}],
}
SMALLEST = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {
        "name": "math-agent-3f9a1c-1",
        "namespace": "ml",
        "labels": {**LABELS, "agenttuning.io/component": "cluster"},
        "annotations": {"ray.io/disable-provisioned-head-restart": "true"},
        "ownerReferences": [
            {
                "apiVersion": "agenttuning.io/v1alpha1",
                "kind": "TuningRun",
                "name": "math-agent",
                "uid": UID,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    },
    "spec": {
        "rayVersion": "2.60.0",
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0"},
            "template": {
                "metadata": {
                    "labels": {**LABELS, "agenttuning.io/component": "head"},
                    "annotations": {
                        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                        "karpenter.sh/do-not-disrupt": "true",
                    },
                },
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 60,
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
                    "initContainers": [SIDECAR],
                    "containers": [RAY],
                    "volumes": [
                        {"name": "run", "configMap": {"name": "math-agent-3f9a1c"}},
                        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "math-agent-3f9a1c"}},
                        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
                    ],
                },
            },
        },
    },
}


def head(run: TuningRun) -> Any:
    """The head pod's spec."""
    return raycluster.build(run, some_settings(), 1)["spec"]["headGroupSpec"]["template"]["spec"]


def ray(run: TuningRun) -> Any:
    """The Ray container."""
    return head(run)["containers"][0]


def test_the_cluster_of_the_smallest_run() -> None:
    assert raycluster.build(a_run(), some_settings(), 1) == SMALLEST


def test_another_attempt_changes_name_labels_and_the_sidecars_variable() -> None:
    second = raycluster.build(a_run(), some_settings(), 2)
    assert second["metadata"]["name"] == "math-agent-3f9a1c-2"
    assert second["metadata"]["labels"]["agenttuning.io/attempt"] == "2"
    template = second["spec"]["headGroupSpec"]["template"]
    assert template["metadata"]["labels"]["agenttuning.io/attempt"] == "2"
    assert {"name": "TUNING_ATTEMPT", "value": "2"} in template["spec"]["initContainers"][0]["env"]


def test_a_run_without_an_image_gets_the_installations_runner() -> None:
    assert ray(a_run(workflow={"image": None}))["image"] == "agent-tuning/runner-trl:0.1"


def test_the_pull_policy_is_the_installations() -> None:
    cluster = raycluster.build(a_run(), some_settings(image_pull_policy="Always"), 1)
    spec = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    containers = [*spec["containers"], *spec["initContainers"]]
    assert {container["imagePullPolicy"] for container in containers} == {"Always"}


def test_gpus_are_requested_and_limited_alike_and_cpus_are_not_limited() -> None:
    run = a_run(cluster={"head": {"cpu": "8", "memory": "32Gi", "gpus": 1}})
    assert ray(run)["resources"] == {
        "requests": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "32Gi", "nvidia.com/gpu": "1"},
    }


def test_code_from_a_config_map_is_mounted_and_put_on_the_path() -> None:
    run = a_run(workflow={"source": {"configMap": {"name": "code"}}})
    assert {"name": "source", "configMap": {"name": "code"}} in head(run)["volumes"]
    assert {"name": "source", "mountPath": "/opt/agent-tuning/source", "readOnly": True} in ray(run)["volumeMounts"]
    assert {"name": "PYTHONPATH", "value": "/opt/agent-tuning/source"} in ray(run)["env"]


def test_datasets_and_template_of_config_maps_are_mounted() -> None:
    run = a_run(
        model={"chatTemplate": {"configMap": {"name": "template"}}},
        dataset={
            "train": {"image": None, "configMap": {"name": "tasks"}},
            "evaluation": [
                {"name": "inside", "image": {"path": "/opt/data/inside.jsonl"}},
                {"name": "heldout", "configMap": {"name": "tests"}},
            ],
        },
    )
    assert head(run)["volumes"][3:] == [
        {"name": "chat-template", "configMap": {"name": "template"}},
        {"name": "dataset-train", "configMap": {"name": "tasks"}},
        {"name": "dataset-evaluation-1", "configMap": {"name": "tests"}},
    ]
    assert ray(run)["volumeMounts"][3:] == [
        {"name": "chat-template", "mountPath": "/etc/agent-tuning/chat-template", "readOnly": True},
        {"name": "dataset-train", "mountPath": "/etc/agent-tuning/datasets/train", "readOnly": True},
        {"name": "dataset-evaluation-1", "mountPath": "/etc/agent-tuning/datasets/heldout", "readOnly": True},
    ]


def test_the_users_variables_are_set_but_replace_none_of_ours() -> None:
    run = a_run(
        workflow={"env": [{"name": "TOOLS", "value": "http://t"}, {"name": "TUNING_RUN_DOCUMENT", "value": "/evil"}]}
    )
    given = {entry["name"]: entry["value"] for entry in ray(run)["env"]}
    assert given == {"TOOLS": "http://t", **{entry["name"]: entry["value"] for entry in RAY["env"]}}


def test_a_claim_of_the_users_own_is_mounted() -> None:
    run = a_run(checkpoint={"volume": {"claimTemplate": None, "claimName": "results"}})
    assert head(run)["volumes"][1] == {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "results"}}


def test_builders_share_no_part_that_a_reader_could_change() -> None:
    first = raycluster.build(a_run(), some_settings(), 1)
    first["metadata"]["annotations"].clear()
    first["spec"]["headGroupSpec"]["template"]["metadata"]["annotations"].clear()
    assert raycluster.build(a_run(), some_settings(), 1) == SMALLEST
