"""The profile `control-plane` of the local cluster: it is the Kubernetes that it says it is, and it counts requests."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster import binaries
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.conftest import UseKuberay

pytestmark = pytest.mark.control_plane

OPERATOR = "system:serviceaccount:agent-tuning:operator"


def kubectl(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(binaries.clients() / "kubectl"), f"--kubeconfig={kubeconfig}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_server_is_the_pinned_kubernetes(control_plane: ControlPlane) -> None:
    assert control_plane.api.get("/version")["gitVersion"] == f"v{binaries.KUBERNETES_VERSION}"


def test_kuberays_kinds_can_be_created(control_plane: ControlPlane) -> None:
    kinds = {resource["kind"] for resource in control_plane.api.get("/apis/ray.io/v1")["resources"]}
    assert {"RayCluster", "RayJob", "RayService"} <= kinds


def test_an_invalid_raycluster_is_refused_by_the_schema(control_plane: ControlPlane) -> None:
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "bad"},
        "spec": {"headGroupSpec": 3},
    }
    done = subprocess.run(
        [str(binaries.clients() / "kubectl"), f"--kubeconfig={control_plane.kubeconfig}", "create", "-f", "-"],
        input=json.dumps(manifest),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "spec.headGroupSpec" in done.stderr


def a_raycluster(name: str, **spec: object) -> dict[str, object]:
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray-head", "image": "ray"}]}}}
    spec = {"rayVersion": "2.60.0", "headGroupSpec": head, **spec}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}, "spec": spec}


def test_the_crds_of_another_kuberay_take_the_place_of_the_first_and_give_it_back(
    control_plane: ControlPlane, kuberay_crds: UseKuberay
) -> None:
    # `upgradeStrategy` and the kind RayCronJob came with 1.6, which may not be what this session runs.
    with kuberay_crds(binaries.KUBERAY_VERSION):
        path = "/apis/ray.io/v1/namespaces/default/rayclusters?fieldValidation=Strict"
        newer = a_raycluster("newer", upgradeStrategy={"type": "Recreate"})
        control_plane.api.request("POST", path, newer)
        with kuberay_crds("1.5.1"):
            assert control_plane.kuberay_version == "1.5.1"
            with pytest.raises(ApiError, match=r"unknown field .*spec\.upgradeStrategy"):
                control_plane.api.request("POST", path, a_raycluster("refused", upgradeStrategy={"type": "Recreate"}))
            control_plane.api.request("POST", path, a_raycluster("older", authOptions={"mode": "token"}))
            seen = control_plane.api.get("/apis/ray.io/v1/namespaces/default/rayclusters/newer")
            assert "upgradeStrategy" not in seen["spec"]
            assert "upgradeStrategy" not in published_fields(control_plane)
            assert "raycronjobs" not in {kind["name"] for kind in control_plane.api.get("/apis/ray.io/v1")["resources"]}
        assert control_plane.kuberay_version == binaries.KUBERAY_VERSION
        assert "upgradeStrategy" in published_fields(control_plane)
        assert "raycronjobs" in {kind["name"] for kind in control_plane.api.get("/apis/ray.io/v1")["resources"]}
    for name in ("newer", "older"):
        control_plane.api.request("DELETE", f"/apis/ray.io/v1/namespaces/default/rayclusters/{name}")


def published_fields(control_plane: ControlPlane) -> set[str]:
    """The fields of a RayCluster's spec, as the server's OpenAPI document has them."""
    schemas = control_plane.api.get("/openapi/v3/apis/ray.io/v1")["components"]["schemas"]
    return set(schemas["io.ray.v1.RayCluster"]["properties"]["spec"]["properties"])


def test_a_user_without_a_role_is_refused_and_the_audit_log_names_it(control_plane: ControlPlane) -> None:
    done = kubectl(control_plane.client_for(OPERATOR), "get", "configmaps", "--namespace=default")
    assert done.returncode != 0
    assert f'"{OPERATOR}" cannot list resource "configmaps"' in done.stderr
    lists = [e for e in control_plane.audit_events(OPERATOR) if e.get("objectRef", {}).get("resource") == "configmaps"]
    assert [(e["verb"], e["responseStatus"]["code"]) for e in lists] == [("list", 403)]


def test_the_audit_log_tells_users_apart_and_holds_no_bodies(control_plane: ControlPlane) -> None:
    user = control_plane.client_for("counted", ["system:masters"])
    done = kubectl(
        user, "create", "configmap", "counted", "--namespace=default", "--from-literal=password=secret-value"
    )
    assert done.returncode == 0, done.stderr
    writes = [event for event in control_plane.audit_events("counted") if event["verb"] == "create"]
    assert len(writes) == 1
    assert writes[0]["objectRef"]["name"] == "counted"
    assert "secret-value" not in control_plane.audit_log.read_text()


def test_two_control_planes_run_side_by_side(control_plane: ControlPlane, tmp_path: Path) -> None:
    other = ControlPlane(tmp_path / "other")
    try:
        other.start()
        assert other.server != control_plane.server
        assert kubectl(other.kubeconfig, "create", "namespace", "only-there").returncode == 0
        assert kubectl(control_plane.kubeconfig, "get", "namespace", "only-there").returncode != 0
        assert other.processes.strays()
    finally:
        other.stop()
    assert not other.processes.strays()
    assert not other.state.exists()


def test_starting_twice_changes_nothing_and_a_killed_server_comes_back(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path / "again")
    try:
        plane.start()
        assert kubectl(plane.kubeconfig, "create", "namespace", "kept").returncode == 0
        before = plane.processes.pid("kube-apiserver")
        plane.start()
        assert plane.processes.pid("kube-apiserver") == before
        assert before is not None
        os.kill(before, signal.SIGKILL)
        plane.processes.wait("the end of the server", lambda: plane.processes.pid("kube-apiserver") is None, 10)
        plane.start()
        assert plane.processes.pid("kube-apiserver") not in (None, before)
        assert kubectl(plane.kubeconfig, "get", "namespace", "kept").returncode == 0
    finally:
        plane.stop()
