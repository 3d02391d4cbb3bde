"""The chart as users render it: valid, strict, restricted, and with no permission that the operator does not use."""

import base64
import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import binaries
from tests.harness import CHART


def render(*options: str, values: Path | None = None) -> list[dict[str, Any]]:
    """All objects of the chart with these `--set` values on top of those of a file; ValueError has helm's message."""
    flags = [flag for option in options for flag in ("--set", option)]
    if values:
        flags += ["--values", str(values)]
    command = [
        str(binaries.clients() / "helm"),
        "template",
        "release",
        str(CHART),
        "--namespace",
        "agent-tuning",
        *flags,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def only(objects: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    """The one object of a kind whose name ends with `suffix`."""
    found = [item for item in objects if item["kind"] == kind and item["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, [item["metadata"]["name"] for item in found]
    return found[0]


def test_the_chart_passes_helms_own_linter() -> None:
    done = subprocess.run(
        [str(binaries.clients() / "helm"), "lint", str(CHART)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_crd_is_a_template_that_stays_when_the_chart_goes() -> None:
    crd = only(render(), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not [item for item in render("crds.enabled=false") if item["kind"] == "CustomResourceDefinition"]


def test_a_named_namespace_needs_no_cluster_wide_permission() -> None:
    objects = render("watchNamespace=ml", "rbac.aggregate=false")
    assert only(objects, "Role", "-operator")["metadata"]["namespace"] == "ml"
    assert not [item for item in objects if item["kind"].startswith("ClusterRole")]


def test_the_roles_of_users_are_aggregated() -> None:
    objects = render()
    assert only(objects, "ClusterRole", "-view")["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"]
    assert only(objects, "ClusterRole", "-edit")["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"]


def test_the_operator_reads_no_secret_and_of_its_children_changes_jobs_alone() -> None:
    rules = [rule for item in render() if item["kind"] in ("ClusterRole", "Role") for rule in item["rules"]]
    rules = [rule for rule in rules if "deletecollection" not in rule["verbs"]]
    allowed = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert not [pair for pair in allowed if pair[0] == "secrets" or pair[1] in ("update", "*")]
    assert {resource for resource, verb in allowed if verb == "patch"} == {"tuningruns/status", "jobs", "leases"}
    assert {resource for resource, verb in allowed if verb == "delete"} == {"tuningruns", "rayclusters", "jobs"}


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_every_pod_of_the_chart_meets_the_restricted_standard(kind: str) -> None:
    pod = only(render(), kind)["spec"]["template"]["spec"]
    container = pod["containers"][0]["securityContext"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_every_pod_of_the_chart_goes_where_the_values_say(kind: str) -> None:
    options = ("nodeSelector.pool=system", "tolerations[0].operator=Exists", "priorityClassName=high")
    pod = only(render(*options, "images.pullSecrets[0]=registry"), kind)["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_two_operators_run_on_nodes_of_their_own_and_one_always_stays() -> None:
    objects = render()
    deployment, budget = only(objects, "Deployment")["spec"], only(objects, "PodDisruptionBudget")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert budget == {"maxUnavailable": 1, "selector": deployment["selector"]}
    (term,) = deployment["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["podAffinityTerm"]["labelSelector"] == deployment["selector"]
    assert deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()


def test_a_single_operator_can_be_drained() -> None:
    objects = render("replicas=1")
    assert only(objects, "Deployment")["spec"]["replicas"] == 1
    assert not [item for item in objects if item["kind"] == "PodDisruptionBudget"]


def test_an_affinity_of_ones_own_replaces_that_of_the_chart() -> None:
    pod = only(render("affinity.nodeAffinity.x=y"), "Deployment")["spec"]["template"]["spec"]
    assert pod["affinity"] == {"nodeAffinity": {"x": "y"}}


def test_each_rendering_without_a_cluster_has_a_key_of_its_own() -> None:
    keys = [base64.b64decode(only(render(), "Secret")["data"]["key"]) for _ in range(2)]
    assert all(re.fullmatch(rb"[A-Za-z0-9]{64}", key) for key in keys)
    assert keys[0] != keys[1]


def test_a_secret_of_ones_own_is_used_and_none_is_made() -> None:
    objects = render("stopKey.existingSecret=mine")
    assert not [item for item in objects if item["kind"] == "Secret"]
    (variable,) = [item for item in operator_variables(objects) if item["name"] == "STOP_KEY"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "mine", "key": "key"}}


def test_helm_asks_before_it_removes_the_operator_unless_told_otherwise() -> None:
    guard = only(render(), "Job")
    assert guard["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    spec = guard["spec"]["template"]["spec"]
    assert importlib.util.find_spec(spec["containers"][0]["command"][2]) is not None
    operator = only(render(), "Deployment")["spec"]
    assert spec["serviceAccountName"] == operator["template"]["spec"]["serviceAccountName"]
    labels = guard["spec"]["template"]["metadata"]["labels"]
    assert not operator["selector"]["matchLabels"].items() <= labels.items()
    assert not [item for item in render("uninstall.force=true") if item["kind"] == "Job"]


def operator_variables(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The environment of the operator's container."""
    found: list[dict[str, Any]] = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["env"]
    return found
