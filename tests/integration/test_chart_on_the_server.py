"""The chart against a real API server: it can be installed, its objects are accepted, and the notes see the cluster."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_chart import only
from tests.chart.test_values import FULL
from tests.cluster import binaries
from tests.cluster.control_plane import ControlPlane
from tests.harness import CHART

pytestmark = pytest.mark.control_plane

NAMESPACE = "chart"
Client = Callable[..., str]


@pytest.fixture(scope="module")
def client(control_plane: ControlPlane) -> Client:
    """Runs kubectl or helm as the administrator, in a namespace that admits restricted pods alone."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    control_plane.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})

    def run(program: str, *arguments: str, stdin: str | None = None) -> str:
        place = ["--kubeconfig", str(control_plane.kubeconfig), "--namespace", NAMESPACE]
        done = subprocess.run(
            [str(binaries.clients() / program), *arguments, *place],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def values(tmp_path: Path) -> Path:
    """A file that sets every value that runs see."""
    (tmp_path / "values.yaml").write_text(FULL)
    return tmp_path / "values.yaml"


def dry_run(client: Client, *options: str) -> tuple[list[dict[str, Any]], str]:
    """Objects and notes of an installation that the server checks and does not make."""
    release = release_of(client, *options)
    return [item for item in yaml.safe_load_all(release["manifest"]) if item], release["info"]["notes"]


def hooks(client: Client, values: Path) -> list[dict[str, Any]]:
    """Objects that helm makes when something happens to the release."""
    return [yaml.safe_load(hook["manifest"]) for hook in release_of(client, "--values", str(values))["hooks"]]


def release_of(client: Client, *options: str) -> dict[str, Any]:
    """What helm would install."""
    # The control plane has our definition already, which then is helm's to take over.
    command = ["install", "release", str(CHART), "--dry-run=server", "--take-ownership", "-o", "json"]
    found: dict[str, Any] = json.loads(client("helm", *command, *options))
    return found


def test_it_can_be_installed_where_kuberay_is_and_says_nothing_of_kuberay_missing(client: Client) -> None:
    objects, notes = dry_run(client)
    assert only(objects, "CustomResourceDefinition")["metadata"]["name"] == "tuningruns.agenttuning.io"
    assert "See that the operator runs" in notes
    assert "does not serve ray.io/v1" not in notes


@pytest.mark.parametrize("mode", ["all namespaces", "one namespace"])
def test_the_server_accepts_every_object_and_knows_every_field(client: Client, values: Path, mode: str) -> None:
    options = ["--set", f"watchNamespace={NAMESPACE if mode == 'one namespace' else ''}"]
    objects, _ = dry_run(client, "--values", str(values), *options)
    applied = client(
        "kubectl",
        *("apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-f", "-"),
        stdin=yaml.safe_dump_all(objects),
    )
    assert len(applied.splitlines()) == len(objects)
    assert all(line.endswith("serverside-applied (server dry run)") for line in applied.splitlines())


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_every_pod_of_the_chart_is_admitted_where_only_restricted_pods_are(
    client: Client, values: Path, kind: str
) -> None:
    objects, _ = dry_run(client, "--values", str(values))
    account = only(objects, "ServiceAccount")
    client("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump(account))
    template = only([*objects, *hooks(client, values)], kind)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "operator"}}
    answer = client("kubectl", "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    assert answer == "pod/operator created (server dry run)\n"


def test_an_upgrade_keeps_the_key_that_the_first_installation_made(client: Client) -> None:
    objects, _ = dry_run(client)
    secret = only(objects, "Secret")
    client("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump(secret))
    again, _ = dry_run(client)
    assert only(again, "Secret")["data"] == secret["data"]
    client("kubectl", "delete", "secret", secret["metadata"]["name"])
    anew, _ = dry_run(client)
    assert only(anew, "Secret")["data"] != secret["data"]


@pytest.mark.parametrize(("version", "strategy"), [("0.2.0", "Recreate"), ("0.3.0", "RollingUpdate")])
def test_an_operator_that_knows_no_lease_ends_before_one_that_does_begins(
    client: Client, version: str, strategy: str
) -> None:
    objects, _ = dry_run(client)
    deployment = only(objects, "Deployment")
    deployment["metadata"]["labels"]["app.kubernetes.io/version"] = version
    client("kubectl", "apply", "-f", "-", stdin=yaml.safe_dump(deployment))
    upgraded, _ = dry_run(client)
    client("kubectl", "delete", "deployment", deployment["metadata"]["name"])
    assert only(upgraded, "Deployment")["spec"]["strategy"]["type"] == strategy
