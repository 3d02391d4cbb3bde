"""podTemplatePatch: what it can change, and whose problems are told."""

import copy
from typing import Any

from tests.builders import a_run, some_settings
from tests.unit.desired.patches import with_patch
from tuning_operator.desired import pod_template, pods
from tuning_operator.settings import NodePool


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
            "spec": {"securityContext": {"runAsUser": None, "supplementalGroups": [5]}, "schedulerName": "bin-packing"},
        }
    )
    expected = plain()
    expected["metadata"]["annotations"] = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "example.com/a": "1",
    }
    del expected["spec"]["securityContext"]["runAsUser"]
    expected["spec"]["securityContext"]["supplementalGroups"] = [5]
    expected["spec"]["schedulerName"] = "bin-packing"
    assert found == expected


def test_a_directive_replaces_an_object_or_deletes_what_has_a_name_for_kubectl_apply_loses_null() -> None:
    replaced = {"$patch": "replace", "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    run = with_patch(
        {
            "spec": {
                "securityContext": replaced,
                "affinity": {"$patch": "delete"},
                "containers": [{"name": "ray-head", "env": [{"name": "A", "$patch": "delete"}]}],
            }
        },
        head={"affinity": {"nodeAffinity": {}}},
        workflow={"env": [{"name": "A", "value": "1"}]},
    )
    assert pod_template.problems(run, some_settings()) == ()
    expected = plain()
    expected["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod_template.head(run, some_settings(), 1, None) == expected


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
