"""The RayCluster of an attempt."""

from typing import Any

from tests.builders import UID, a_model_source, a_run, some_settings
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import raycluster
from tuning_operator.settings import NodePool, RunDefaults, Settings

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
        {"name": "HF_HUB_OFFLINE", "value": "1"},
        {"name": "HF_DATASETS_OFFLINE", "value": "1"},
        {"name": "TUNING_RUN_DOCUMENT", "value": "/etc/agent-tuning/run/run.json"},
        {"name": "TUNING_ATTEMPT", "value": "1"},
        {"name": "TUNING_STOP_GRACE_SECONDS", "value": "120"},
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
    "livenessProbe": {
        "httpGet": {"path": "/api/healthz", "port": 52365},
        "initialDelaySeconds": 30,
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": 120,
    },
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "volumeMounts": [RUN_MOUNT, CHECKPOINT_MOUNT, {"name": "shared-memory", "mountPath": "/dev/shm"}],
}
HOOK = {"preStop": {"exec": {"command": ["python", "-m", "tuning_runner.stop_hook"]}}}
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
                    "terminationGracePeriodSeconds": 150,
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
                    "containers": [RAY | {"lifecycle": HOOK}],
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


def names(entries: Any) -> list[str]:
    """The names of named entries."""
    return [entry["name"] for entry in entries]


def worker(run: TuningRun, settings: Settings | None = None) -> Any:
    """The only worker group."""
    (group,) = raycluster.build(run, settings or some_settings(), 1)["spec"]["workerGroupSpecs"]
    return group


def test_the_cluster_of_the_smallest_run() -> None:
    assert raycluster.build(a_run(), some_settings(), 1) == SMALLEST


def test_another_attempt_changes_name_labels_and_a_variable() -> None:
    second = raycluster.build(a_run(), some_settings(), 2)
    assert second["metadata"]["name"] == "math-agent-3f9a1c-2"
    assert second["metadata"]["labels"]["agenttuning.io/attempt"] == "2"
    template = second["spec"]["headGroupSpec"]["template"]
    assert template["metadata"]["labels"]["agenttuning.io/attempt"] == "2"
    for container in (template["spec"]["initContainers"][0], template["spec"]["containers"][0]):
        assert {"name": "TUNING_ATTEMPT", "value": "2"} in container["env"]


def test_a_run_without_an_image_gets_the_installations_runner() -> None:
    assert ray(a_run(workflow={"image": None}))["image"] == "agent-tuning/runner-trl:0.1"


def test_the_pull_policy_is_the_installations() -> None:
    cluster = raycluster.build(a_run(), some_settings(image_pull_policy="Always"), 1)
    spec = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    containers = [*spec["containers"], *spec["initContainers"]]
    assert {container["imagePullPolicy"] for container in containers} == {"Always"}


def test_gpus_are_requested_and_limited_alike_and_told_to_ray_and_cpus_are_not_limited() -> None:
    run = a_run(cluster={"head": {"cpu": "8", "memory": "32Gi", "gpus": 1}})
    assert ray(run)["resources"] == {
        "requests": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "32Gi", "nvidia.com/gpu": "1"},
    }
    group = raycluster.build(run, some_settings(), 1)["spec"]["headGroupSpec"]
    assert group["rayStartParams"] == {"dashboard-host": "0.0.0.0", "num-gpus": "1"}


def test_only_a_pod_that_asks_for_gpus_sees_those_of_its_node() -> None:
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert hidden in ray(a_run())["env"]
    assert "NVIDIA_VISIBLE_DEVICES" not in names(ray(a_run(cluster={"head": {"gpus": 1}}))["env"])
    own = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    assert own in ray(a_run(workflow={"env": [own]}))["env"]


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


def test_workers_are_the_head_without_what_only_a_head_has() -> None:
    smallest = head(a_run())
    expected = {key: value for key, value in smallest.items() if key not in HEAD_ONLY}
    expected["containers"] = [RAY | {"name": "ray-worker"}]
    assert worker(a_run(cluster={"workers": [{"name": "agents", "replicas": 2}]})) == {
        "groupName": "agents",
        "replicas": 2,
        "minReplicas": 2,
        "maxReplicas": 2,
        "rayStartParams": {},
        "template": {
            "metadata": {
                "labels": {**LABELS, "agenttuning.io/component": "worker"},
                "annotations": {
                    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                    "karpenter.sh/do-not-disrupt": "true",
                },
            },
            "spec": expected,
        },
    }


HEAD_ONLY = ("initContainers", "terminationGracePeriodSeconds")


def test_the_claim_with_another_runs_checkpoints_is_mounted_read_only() -> None:
    run = a_run(checkpoint={"resumeFrom": {"claimName": "old", "path": "ml/base-b1946a"}})
    assert {"name": "source-0", "mountPath": "/mnt/claims/old", "readOnly": True} in ray(run)["volumeMounts"]
    assert {"name": "source-0", "persistentVolumeClaim": {"claimName": "old"}} in head(run)["volumes"]
    # On the run's own claim it is the same volume, seen a second time.
    results = {"volume": {"claimTemplate": None, "claimName": "old"}}
    run = a_run(checkpoint=results | {"resumeFrom": {"claimName": "old", "path": "ml/base-b1946a"}})
    assert {"name": "checkpoints", "mountPath": "/mnt/claims/old", "readOnly": True} in ray(run)["volumeMounts"]
    assert names(head(run)["volumes"]) == ["run", "checkpoints", "shared-memory"]


def test_with_workers_ray_plans_nothing_of_an_agents_own_on_the_head() -> None:
    group = raycluster.build(a_run(cluster={"workers": [{"name": "a"}]}), some_settings(), 1)["spec"]["headGroupSpec"]
    assert group["rayStartParams"] == {"dashboard-host": "0.0.0.0", "num-cpus": "0"}


def test_a_pool_brings_its_nodes_tolerations_and_kind_of_gpu_and_the_runs_own_come_on_top() -> None:
    pool = NodePool(
        "slices",
        node_selector={"gpu": "h100", "zone": "a"},
        tolerations=({"key": "gpu", "operator": "Exists"},),
        resource_name="nvidia.com/mig-1g.10gb",
    )
    wanted = {
        "gpus": 1,
        "nodePool": "slices",
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "team", "value": "x"}],
    }
    run, settings = a_run(cluster={"head": wanted}), some_settings(node_pools={"slices": pool})
    built = raycluster.build(run, settings, 1)["spec"]["headGroupSpec"]["template"]["spec"]
    assert built["nodeSelector"] == {"gpu": "h100", "zone": "b"}
    assert built["tolerations"] == [{"key": "gpu", "operator": "Exists"}, {"key": "team", "value": "x"}]
    assert built["containers"][0]["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/mig-1g.10gb": "1"}


def test_an_empty_selector_of_an_affinity_stays_for_it_means_all_pods() -> None:
    term = {"labelSelector": {}, "topologyKey": "zone"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert head(a_run(cluster={"head": {"affinity": affinity}}))["affinity"] == affinity


def test_a_group_may_have_a_rank_of_its_own() -> None:
    run = a_run(priorityClassName="high", cluster={"workers": [{"name": "a", "priorityClassName": "low"}]})
    assert head(run)["priorityClassName"] == "high"
    assert worker(run)["template"]["spec"]["priorityClassName"] == "low"


def test_each_pod_has_the_container_runtime_that_it_names() -> None:
    run = a_run(cluster={"head": {"runtimeClassName": "nvidia"}, "workers": [{"name": "a"}]})
    assert head(run)["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in worker(run)["template"]["spec"]


def test_a_claim_is_one_volume_however_often_it_is_mounted() -> None:
    run = a_run(
        model={"image": None, "volume": {"claimName": "shared", "path": "model"}},
        dataset={
            "train": {"image": None, "volume": {"claimName": "data", "path": "train.jsonl"}},
            "evaluation": [{"name": "x", "volume": {"claimName": "data", "path": "test.jsonl"}}],
        },
        cluster={"head": {"volumes": [{"name": "all", "mountPath": "/data", "claimName": "data"}]}},
        checkpoint={"volume": {"claimTemplate": None, "claimName": "shared"}},
    )
    claims = [item for item in head(run)["volumes"] if "persistentVolumeClaim" in item]
    assert claims == [
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": "shared"}},
        {"name": "source-1", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    assert ray(run)["volumeMounts"][1:] == [
        CHECKPOINT_MOUNT,
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        {"name": "checkpoints", "mountPath": "/mnt/claims/shared", "readOnly": True},
        {"name": "source-1", "mountPath": "/mnt/claims/data", "readOnly": True},
        {"name": "source-1", "mountPath": "/data", "readOnly": True},
    ]


def test_the_claim_of_another_runs_model_is_mounted_read_only() -> None:
    run = a_run(model={"image": None, "run": {"name": "base"}})
    built = raycluster.build(run, some_settings(), 1, a_model_source())["spec"]["headGroupSpec"]["template"]["spec"]
    mount = {"name": "source-0", "mountPath": "/mnt/claims/base-b1946a", "readOnly": True}
    assert mount in built["containers"][0]["volumeMounts"]
    assert {"name": "source-0", "persistentVolumeClaim": {"claimName": "base-b1946a"}} in built["volumes"]


FROM_HUB: dict[str, Any] = {
    "model": {"image": None, "huggingFace": {"repo": "a/b", "tokenSecretRef": {"name": "hub", "key": "t"}}}
}


def test_what_is_downloaded_is_kept_on_the_runs_claim_or_in_the_shared_cache() -> None:
    assert {"name": "HF_HOME", "value": "/mnt/agent-tuning/.huggingface"} in ray(a_run(**FROM_HUB))["env"]
    settings = some_settings(defaults=RunDefaults(hub_cache_claim="cache"))
    built = raycluster.build(a_run(**FROM_HUB), settings, 1)["spec"]["headGroupSpec"]["template"]["spec"]
    assert {"name": "HF_HOME", "value": "/mnt/huggingface"} in built["containers"][0]["env"]
    assert {"name": "hub-cache", "mountPath": "/mnt/huggingface"} in built["containers"][0]["volumeMounts"]
    assert {"name": "hub-cache", "persistentVolumeClaim": {"claimName": "cache"}} in built["volumes"]


def test_a_run_that_downloads_nothing_needs_no_cache() -> None:
    settings = some_settings(defaults=RunDefaults(hub_cache_claim="cache"))
    assert raycluster.build(a_run(), settings, 1) == SMALLEST


def test_tokens_are_given_to_the_head_alone() -> None:
    run = a_run(**FROM_HUB, cluster={"workers": [{"name": "a"}]})
    assert "TUNING_TOKEN_MODEL" in names(ray(run)["env"])
    assert "TUNING_TOKEN_MODEL" not in names(worker(run)["template"]["spec"]["containers"][0]["env"])


def test_what_a_run_wishes_for_all_its_pods_is_on_head_and_workers_but_replaces_nothing_of_ours() -> None:
    run = a_run(
        serviceAccountName="tuning",
        imagePullSecrets=[{"name": "registry"}],
        podLabels={"team": "x", "agenttuning.io/component": "evil"},
        podAnnotations={"owner": "x"},
        cluster={"workers": [{"name": "a"}]},
    )
    built = raycluster.build(run, some_settings(), 1)["spec"]
    templates = {"head": built["headGroupSpec"]["template"], "worker": built["workerGroupSpecs"][0]["template"]}
    for component, template in templates.items():
        assert template["metadata"]["labels"] == {**LABELS, "team": "x", "agenttuning.io/component": component}
        assert template["metadata"]["annotations"]["owner"] == "x"
        assert template["spec"]["serviceAccountName"] == "tuning"
        assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_builders_share_no_part_that_a_reader_could_change() -> None:
    first = raycluster.build(a_run(), some_settings(), 1)
    first["metadata"]["annotations"].clear()
    first["spec"]["headGroupSpec"]["template"]["metadata"]["annotations"].clear()
    assert raycluster.build(a_run(), some_settings(), 1) == SMALLEST
