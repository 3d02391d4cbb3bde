"""The chart as users render it: valid, strict, restricted, and with no permission that the operator does not use."""

import subprocess
from pathlib import Path
from typing import Any

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
    assert only(objects, "Role")["metadata"]["namespace"] == "ml"
    assert not [item for item in objects if item["kind"].startswith("ClusterRole")]


def test_the_roles_of_users_are_aggregated() -> None:
    objects = render()
    assert only(objects, "ClusterRole", "-view")["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"]
    assert only(objects, "ClusterRole", "-edit")["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"]


def test_the_operator_reads_no_secret_and_updates_no_child() -> None:
    rules = only(render(), "ClusterRole", "operator")["rules"]
    allowed = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert not [pair for pair in allowed if pair[0] == "secrets" or pair[1] in ("update", "*")]
    assert {resource for resource, verb in allowed if verb == "patch"} == {"tuningruns/status"}
    assert {resource for resource, verb in allowed if verb == "delete"} == {"rayclusters", "jobs"}


def test_the_operators_pod_meets_the_restricted_standard() -> None:
    pod = only(render(), "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]["securityContext"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True


def test_one_operator_at_a_time_until_leader_election_comes() -> None:
    assert only(render(), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
