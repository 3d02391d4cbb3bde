"""podTemplatePatch: what it can change, what it may not, and that nonsense is told, never a traceback."""

import copy
import json
from typing import Any

import pytest

from tests.builders import a_run, a_run_object, some_settings
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import pod_template, pods
from tuning_operator.desired.patch import PatchRefused
from tuning_operator.settings import NodePool

HEAD = "spec.cluster.head.podTemplatePatch"


def with_patch(patch: Any, head: Any = None, **spec: Any) -> TuningRun:
    """A run whose head has this patch, in which null stays null."""
    document = a_run_object(cluster={"head": head or {}}, **spec)
    document["spec"]["cluster"]["head"]["podTemplatePatch"] = patch
    return TuningRun.from_object(document)


def made(patch: Any) -> Any:
    """The head's template with this patch."""
    return pod_template.head(with_patch(patch), some_settings(), 1, None)


def ray(patch: Any) -> Any:
    """The Ray container of the head with changes to it."""
    return made({"spec": {"containers": [{"name": "ray-head", **patch}]}})["spec"]["containers"][0]


def plain() -> Any:
    """The head's template without a patch."""
    return pods.head(a_run(), some_settings(), 1, None)


def test_an_empty_patch_changes_nothing() -> None:
    assert pod_template.head(a_run(), some_settings(), 1, None) == plain()


def test_objects_merge_by_key_and_null_removes_one() -> None:
    found = made(
        {
            "metadata": {"annotations": {"example.com/a": "1", "karpenter.sh/do-not-disrupt": None}},
            "spec": {"securityContext": {"runAsUser": None, "supplementalGroups": [5]}, "runtimeClassName": "nvidia"},
        }
    )
    expected = plain()
    expected["metadata"]["annotations"] = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "example.com/a": "1",
    }
    del expected["spec"]["securityContext"]["runAsUser"]
    expected["spec"]["securityContext"]["supplementalGroups"] = [5]
    expected["spec"]["runtimeClassName"] = "nvidia"
    assert found == expected


def test_containers_volumes_and_their_parts_merge_by_name_with_ours_first() -> None:
    found = made(
        {
            "spec": {
                "containers": [
                    {"name": "tools", "image": "tools:1"},
                    {
                        "name": "ray-head",
                        "env": [{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                        "ports": [{"name": "debug", "containerPort": 5678}],
                        "resources": {"limits": {"cpu": "8"}},
                    },
                ],
                "initContainers": [{"name": "fetch", "image": "fetch:1"}],
                "volumes": [{"name": "scratch", "emptyDir": {}}],
                "topologySpreadConstraints": [{"maxSkew": 1}],
            }
        }
    )
    expected = plain()
    own = expected["spec"]["containers"][0]
    own["env"][0] = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    own["env"].append({"name": "A", "value": "1"})
    own["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
    own["ports"] = [{"name": "debug", "containerPort": 5678}]
    own["resources"]["limits"]["cpu"] = "8"
    expected["spec"]["containers"].append({"name": "tools", "image": "tools:1"})
    expected["spec"]["initContainers"].append({"name": "fetch", "image": "fetch:1"})
    expected["spec"]["volumes"].append({"name": "scratch", "emptyDir": {}})
    expected["spec"]["topologySpreadConstraints"] = [{"maxSkew": 1}]
    assert found == expected


def test_tolerations_are_added_and_may_be_taken_away() -> None:
    run = a_run(
        cluster={
            "head": {
                "tolerations": [{"key": "a", "operator": "Exists"}],
                "podTemplatePatch": {"spec": {"tolerations": [{"key": "b", "operator": "Exists"}]}},
            }
        }
    )
    found = pod_template.head(run, some_settings(), 1, None)["spec"]["tolerations"]
    assert found == [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]
    run = with_patch({"spec": {"tolerations": None}}, head={"tolerations": [{"key": "a"}]})
    assert "tolerations" not in pod_template.head(run, some_settings(), 1, None)["spec"]


def test_a_variable_or_volume_of_the_runs_own_is_replaced_as_a_whole() -> None:
    run = a_run(
        workflow={"env": [{"name": "A", "value": "1"}]},
        cluster={
            "head": {
                "volumes": [{"name": "data", "mountPath": "/data", "claimName": "data"}],
                "podTemplatePatch": {
                    "spec": {
                        "containers": [
                            {
                                "name": "ray-head",
                                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                            }
                        ],
                        "volumes": [{"name": "user-data", "emptyDir": {}}],
                    }
                },
            }
        },
    )
    spec = pod_template.head(run, some_settings(), 1, None)["spec"]
    variable = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert [entry for entry in spec["containers"][0]["env"] if entry["name"] == "A"] == [variable]
    assert spec["volumes"][-1] == {"name": "user-data", "emptyDir": {}}


def test_neither_run_nor_patch_is_changed_or_shared() -> None:
    patch = {"spec": {"dnsConfig": {"nameservers": ["10.0.0.1"]}}}
    run = with_patch(copy.deepcopy(patch))
    pod_template.head(run, some_settings(), 1, None)["spec"]["dnsConfig"]["nameservers"].clear()
    assert run.spec.cluster.head.pod_template_patch == patch


def test_the_sidecar_may_get_variables_and_memory() -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    change = {"name": "tuning-sidecar", "env": [proxy], "resources": {"limits": {"memory": "256Mi"}}}
    sidecar = made({"spec": {"initContainers": [change]}})["spec"]["initContainers"][0]
    assert sidecar["env"][-1] == proxy
    assert sidecar["resources"]["limits"] == {"memory": "256Mi"}


def test_a_worker_group_has_a_patch_of_its_own() -> None:
    patch = {"spec": {"containers": [{"name": "ray-worker", "workingDir": "/work"}]}}
    run = a_run(cluster={"workers": [{"name": "a", "podTemplatePatch": patch}, {"name": "b"}]})
    first, second = run.spec.cluster.workers
    assert pod_template.worker(run, some_settings(), 1, first, None)["spec"]["containers"][0]["workingDir"] == "/work"
    assert pod_template.worker(run, some_settings(), 1, second, None) == pods.worker(
        run, some_settings(), 1, second, None
    )


RAY = {"name": "ray-head"}
SIDECAR = {"name": "tuning-sidecar"}
REFUSED: list[tuple[Any, str]] = [
    # The host.
    (
        {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
        "spec.volumes[x].hostPath` must not be used: mount a claim, a ConfigMap, a Secret or an emptyDir",
    ),
    (
        {"spec": {"hostNetwork": True}},
        "spec.hostNetwork` must not be true: pods keep to their own network; leave it out",
    ),
    ({"spec": {"hostPID": True}}, "spec.hostPID` must not be true: pods do not see the host's processes; leave it out"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC` must not be true: pods do not share the host's memory; leave it out"),
    (
        {"spec": {"containers": [RAY | {"ports": [{"name": "a", "containerPort": 1, "hostPort": 1}]}]}},
        "spec.containers[ray-head].ports[a].hostPort` must not be used: reach the pod through a Service; leave it out",
    ),
    (
        {"spec": {"securityContext": {"windowsOptions": {"hostProcess": True}}}},
        "spec.securityContext.windowsOptions.hostProcess` must not be true: pods do not run on the host; leave it out",
    ),
    # Privileges.
    (
        {"spec": {"containers": [{"name": "x", "securityContext": {"privileged": True}}]}},
        "spec.containers[x].securityContext.privileged` must not be true: leave it out",
    ),
    (
        {"spec": {"initContainers": [{"name": "x", "securityContext": {"allowPrivilegeEscalation": True}}]}},
        "spec.initContainers[x].securityContext.allowPrivilegeEscalation` must not be true: leave it out",
    ),
    (
        {"spec": {"containers": [{"name": "x", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}},
        "spec.containers[x].securityContext.capabilities.add` must be empty: containers get no capabilities; "
        "leave it out",
    ),
    (
        {"spec": {"containers": [RAY | {"securityContext": {"runAsNonRoot": False}}]}},
        "spec.containers[ray-head].securityContext.runAsNonRoot` must not be false: use an image with a user other "
        "than root",
    ),
    (
        {"spec": {"securityContext": {"runAsUser": 0}}},
        "spec.securityContext.runAsUser` must not be 0, which is root: use another user",
    ),
    (
        {"spec": {"containers": [{"name": "x", "securityContext": {"procMount": "Unmasked"}}]}},
        "spec.containers[x].securityContext.procMount` must be Default: leave it out",
    ),
    (
        {"spec": {"containers": [{"name": "x", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}]}},
        "spec.containers[x].securityContext.seccompProfile.type` must not be Unconfined: leave it out",
    ),
    # What is the operator's.
    ({"spec": None}, "spec` must stay as the operator sets it: leave it out"),
    ({"metadata": None}, "metadata` must stay as the operator sets it: leave it out"),
    ({"spec": {"containers": None}}, "spec.containers` must stay as the operator sets it: leave it out"),
    ({"spec": {"initContainers": None}}, "spec.initContainers` must stay as the operator sets it: leave it out"),
    ({"spec": {"volumes": None}}, "spec.volumes` must stay as the operator sets it: leave it out"),
    ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy` must stay as the operator sets it: leave it out"),
    (
        {"spec": {"automountServiceAccountToken": True}},
        "spec.automountServiceAccountToken` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"securityContext": {"runAsNonRoot": None}}},
        "spec.securityContext.runAsNonRoot` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"containers": [RAY | {"image": "x"}]}},
        "spec.containers[ray-head].image` must stay as the operator sets it: use `workflow.image`",
    ),
    (
        {"spec": {"containers": [RAY | {"resources": {"limits": {"memory": "1Ti"}}}]}},
        "spec.containers[ray-head].resources.limits.memory` must stay as the operator sets it: "
        "use `cpu`, `memory` and `gpus`",
    ),
    (
        {"spec": {"containers": [RAY | {"resources": {"limits": {"nvidia.com/gpu": 4}}}]}},
        "spec.containers[ray-head].resources.limits.nvidia.com/gpu` must not be added: use `gpus`, which Ray is told",
    ),
    (
        {"spec": {"containers": [RAY | {"securityContext": {"capabilities": {"drop": []}}}]}},
        "spec.containers[ray-head].securityContext.capabilities.drop` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"containers": [RAY | {"terminationMessagePolicy": "File"}]}},
        "spec.containers[ray-head].terminationMessagePolicy` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"containers": [RAY | {"env": [{"name": "TUNING_RUN_DOCUMENT", "value": "/x"}]}]}},
        "spec.containers[ray-head].env[TUNING_RUN_DOCUMENT]` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"containers": [RAY | {"env": None}]}},
        "spec.containers[ray-head].env` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"containers": [RAY | {"env": [{"name": "RAY_ADDRESS", "value": "x"}]}]}},
        "spec.containers[ray-head].env[RAY_ADDRESS]` is the operator's to set: choose another name",
    ),
    (
        {"spec": {"containers": [RAY | {"volumeMounts": [{"mountPath": "/mnt/agent-tuning", "subPath": "x"}]}]}},
        "spec.containers[ray-head].volumeMounts[/mnt/agent-tuning]` must stay as the operator sets it: leave it out",
    ),
    *(
        (
            {"spec": {"containers": [RAY | {"volumeMounts": [{"mountPath": path, "name": "run"}]}]}},
            f"spec.containers[ray-head].volumeMounts[{path}]` is in, or holds, a folder of the operator's: "
            "mount it below /data, say",
        )
        for path in ("/mnt/agent-tuning/checkpoints", "/mnt", "/mnt/agent-tuning/", "/data/../dev/shm", "/")
    ),
    (
        {"spec": {"volumes": [{"name": "checkpoints", "emptyDir": {}}]}},
        "spec.volumes[checkpoints]` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"volumes": [{"name": "shared-memory", "emptyDir": {}}]}},
        "spec.volumes[shared-memory]` must stay as the operator sets it: use `sharedMemory`",
    ),
    (
        {"spec": {"initContainers": [SIDECAR | {"image": "x"}]}},
        "spec.initContainers[tuning-sidecar].image` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"initContainers": [SIDECAR | {"args": ["x"]}]}},
        "spec.initContainers[tuning-sidecar].args` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"initContainers": [SIDECAR | {"env": [{"name": "TUNING_ATTEMPT", "value": "9"}]}]}},
        "spec.initContainers[tuning-sidecar].env[TUNING_ATTEMPT]` must stay as the operator sets it: leave it out",
    ),
    (
        {"spec": {"containers": [RAY | {"args": ["ray start --head"]}]}},
        "spec.containers[ray-head].args` must not start Ray: KubeRay does, after this; leave that part out",
    ),
    # Labels by which the operator and KubeRay find the pods.
    (
        {"metadata": {"labels": {"agenttuning.io/run-uid": "x"}}},
        "metadata.labels.agenttuning.io/run-uid` must stay as the operator sets it: leave it out",
    ),
    (
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}},
        "metadata.labels.app.kubernetes.io/managed-by` must stay as the operator sets it: leave it out",
    ),
    *(
        (
            {"metadata": {kind: {key: "x"}}},
            f"metadata.{kind}.{key}` must not be set: it steers the operator or KubeRay; leave it out",
        )
        for kind, key in (
            ("labels", "ray.io/identifier"),
            ("labels", "agenttuning.io/other"),
            ("labels", "app.kubernetes.io/created-by"),
            ("annotations", "ray.io/overwrite-container-cmd"),
        )
    ),
    (
        {"metadata": {"name": "x"}},
        "metadata.name` must not be set: only labels and annotations can be; leave it out",
    ),
    # Nonsense.
    ({"kind": "Pod"}, "kind` is no part of a pod template: put it below `metadata` or `spec`"),
    ({"metadata": {"labels": {"team": 3}}}, "metadata.labels.team` must be a text: put it in quotes"),
    ({"metadata": {"labels": "x"}}, "metadata.labels` must be an object, or null to remove it"),
    ({"spec": []}, "spec` must be an object, or null to remove it"),
    ({"spec": {"containers": {"ray-head": {}}}}, "spec.containers` must be a list of objects, or null to remove it"),
    ({"spec": {"containers": ["x"]}}, "spec.containers` must be a list of objects, or null to remove it"),
    (
        {"spec": {"containers": [{"image": "x"}]}},
        "spec.containers` each entry must have `name`, by which it is merged: add it",
    ),
    (
        {"spec": {"containers": [RAY | {"volumeMounts": [{"name": "x"}]}]}},
        "spec.containers[ray-head].volumeMounts` each entry must have `mountPath`, by which it is merged: add it",
    ),
    ({"spec": {"tolerations": "all"}}, "spec.tolerations` must be a list of objects, or null to remove it"),
    ({"spec": {"restartPolicy": {"a": 1}}}, "spec.restartPolicy` must not be an object"),
]


@pytest.mark.parametrize(("patch", "sentence"), REFUSED, ids=[json.dumps(patch)[:60] for patch, _ in REFUSED])
def test_a_patch_is_refused_with_its_place_and_what_to_change(patch: Any, sentence: str) -> None:
    run = with_patch(patch)
    assert pod_template.problems(run, some_settings()) == (f"`{HEAD}.{sentence}",)
    with pytest.raises(PatchRefused):
        pod_template.head(run, some_settings(), 1, None)


def test_the_sidecars_variables_cannot_be_removed_together() -> None:
    run = with_patch({"spec": {"initContainers": [SIDECAR | {"env": None}]}})
    places = [text.split("`")[1].rsplit(".", 1)[1] for text in pod_template.problems(run, some_settings())]
    assert places == ["env[TUNING_RUN_DOCUMENT]", "env[TUNING_ATTEMPT]"]


def test_a_head_may_have_a_container_called_like_a_workers() -> None:
    assert pod_template.problems(with_patch({"spec": {"containers": [{"name": "ray-worker"}]}}), some_settings()) == ()


def test_all_problems_of_head_and_workers_are_told() -> None:
    patch = {"spec": {"hostNetwork": True, "hostPID": True}}
    run = a_run(cluster={"head": {"podTemplatePatch": patch}, "workers": [{"name": "a", "podTemplatePatch": patch}]})
    places = [text.split("`")[1] for text in pod_template.problems(run, some_settings())]
    assert places == [
        f"{field}.podTemplatePatch.spec.{key}"
        for field in ("spec.cluster.head", "spec.cluster.workers[a]")
        for key in ("hostNetwork", "hostPID")
    ]


def test_a_patch_nested_without_end_is_a_problem_not_a_traceback() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    (text,) = pod_template.problems(with_patch({"spec": {"a": deep}}), some_settings())
    assert "must not be nested more than 32 levels deep" in text


def test_labels_of_nodes_and_pods_may_be_called_like_privileges() -> None:
    affinity = {"podAffinity": {"x": [{"labelSelector": {"matchLabels": {"privileged": "true"}}}]}}
    patch = {"metadata": {"labels": {"env": "prod"}}, "spec": {"nodeSelector": {"hostNetwork": "true"}}}
    patch["spec"] |= {"affinity": affinity}
    assert pod_template.problems(with_patch(patch), some_settings()) == ()


def test_a_pod_of_an_unknown_pool_is_left_to_whoever_complains_about_the_pool() -> None:
    patch = {"spec": {"hostNetwork": True}}
    run = a_run(cluster={"head": {"nodePool": "a100", "podTemplatePatch": patch}})
    assert pod_template.problems(run, some_settings()) == ()
    known = some_settings(node_pools={"a100": NodePool("a100")})
    assert len(pod_template.problems(run, known)) == 1


def test_a_run_with_a_model_of_another_run_is_judged_before_that_is_looked_up() -> None:
    run = with_patch({"spec": {"hostPID": True}}, model={"image": None, "run": {"name": "base"}})
    assert len(pod_template.problems(run, some_settings())) == 1
