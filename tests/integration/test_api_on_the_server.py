"""The CRD on a real kube-apiserver: as it is served, shown and filled in; and the objects that are made for a run."""

import json
from pathlib import Path

import pytest

from tests.builders import a_run, everything_made_for
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.integration.api_requests import DRY, MERGE_PATCH, RUNS, STRICT, as_written, kubectl
from tuning_operator.api import crd

pytestmark = pytest.mark.control_plane

SAMPLES = sorted((Path(__file__).parents[2] / "crds" / "samples").glob("*.yaml"))
OTHER = {"configMap": {"name": "tasks"}}


def test_the_crd_is_established_with_its_names(control_plane: ControlPlane) -> None:
    found = control_plane.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tuningruns.agenttuning.io")
    conditions = {entry["type"]: entry["status"] for entry in found["status"]["conditions"]}
    assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
    assert conditions.get("NonStructuralSchema", "False") == "False"
    (resource,) = [
        entry
        for entry in control_plane.api.get("/apis/agenttuning.io/v1alpha1")["resources"]
        if "/" not in entry["name"]
    ]
    assert resource["shortNames"] == ["trun"]
    assert set(resource["categories"]) == {"all", "tuning"}


def test_the_server_keeps_every_word_of_the_schema(control_plane: ControlPlane) -> None:
    found = control_plane.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tuningruns.agenttuning.io")
    assert found["spec"]["versions"][0]["schema"] == crd.definition()["spec"]["versions"][0]["schema"]


def test_the_smallest_run_is_accepted_and_its_defaults_are_written_into_it(control_plane: ControlPlane) -> None:
    stored = control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written())
    assert stored["spec"]["rollout"] == {
        "maxAttempts": 3,
        "minGroupSize": 2,
        "maxFailedRatio": 0.25,
        "concurrency": 32,
        "limits": {"turns": 32, "seconds": 300},
    }
    assert stored["spec"]["cluster"] == {"head": {"cpu": "4", "memory": "16Gi", "gpus": 0, "sharedMemory": "1Gi"}}
    assert "status" not in stored


def test_the_server_and_the_operator_fill_in_the_same_defaults(control_plane: ControlPlane) -> None:
    stored = control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written())
    assert a_run(**stored["spec"]).spec == a_run().spec


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_accepted_as_kubectl_applies_it(control_plane: ControlPlane, path: Path) -> None:
    done = kubectl(control_plane, "apply", "--namespace=default", "--dry-run=server", "--validate=strict", f"-f{path}")
    assert done.returncode == 0, done.stderr
    assert f"tuningrun.agenttuning.io/{path.stem.removeprefix('tuningrun.')} created" in done.stdout


def test_the_table_shows_the_status_in_its_columns_and_selects_by_phase(control_plane: ControlPlane) -> None:
    api = control_plane.api
    api.request("POST", f"{RUNS}?{STRICT}", as_written("shown"))
    status = {
        "phase": "Running",
        "reason": "DriverRunning",
        "attempt": {"number": 1},
        "display": {"model": "tiny", "gpus": "0", "evaluation": "0.15", "eta": "4m"},
        "progress": {"step": 3, "targetSteps": 12, "percent": 25, "summary": "3/12", "reward": "0.412", "kl": "0.001"},
    }
    path = f"{RUNS}/shown/status?{STRICT}"
    api.request("PATCH", path, {"status": status}, MERGE_PATCH)
    options = ["get", "trun", "--namespace=default", "--field-selector=status.phase=Running", "-owide"]
    header, row = kubectl(control_plane, *options).stdout.splitlines()
    api.request("DELETE", f"{RUNS}/shown")
    assert header.split() == (
        [
            "NAME",
            "STATUS",
            "STEP",
            "REWARD",
            "GPUS",
            "AGE",
            "MODEL",
            "ALGORITHM",
            "ATTEMPT",
            "KL",
            "EVAL",
            "ETA",
            "REASON",
        ]
    )
    cells = row.split()
    assert cells[:5] == ["shown", "Running", "3/12", "0.412", "0"]
    assert cells[6:] == ["tiny", "multi_step_grpo", "1", "0.001", "0.15", "4m", "DriverRunning"]


def test_everything_that_is_made_for_a_run_is_accepted_without_an_unknown_field(control_plane: ControlPlane) -> None:
    places = {
        "RayCluster": "/apis/ray.io/v1/namespaces/default/rayclusters",
        "Job": "/apis/batch/v1/namespaces/default/jobs",
        "ConfigMap": "/api/v1/namespaces/default/configmaps",
        "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
    }
    run = a_run(
        "a" * 39,
        namespace="default",
        model={"chatTemplate": {"configMap": {"name": "template"}}},
        dataset={"train": OTHER | {"image": None}, "evaluation": [{"name": "heldout"} | OTHER]},
        workflow={"source": {"configMap": {"name": "code"}}, "env": [{"name": "A", "value": "1"}]},
        cluster={"head": {"gpus": 1}},
        checkpoint={"volume": {"claimTemplate": {"storageClassName": "fast"}}, "deletionPolicy": "Delete"},
    )
    made_objects = everything_made_for(run)
    assert {manifest["kind"] for manifest in made_objects} == set(places)
    for manifest in made_objects:
        control_plane.api.request("POST", f"{places[manifest['kind']]}?{DRY}", manifest)


@pytest.mark.parametrize("kind", ["head", "driver"])
def test_the_pods_of_a_run_are_allowed_in_a_restricted_namespace(control_plane: ControlPlane, kind: str) -> None:
    api = control_plane.api
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "restricted", "labels": labels}}
    api.apply("/api/v1/namespaces/restricted", namespace)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    api.apply("/api/v1/namespaces/restricted/serviceaccounts/default", account)
    manifests = {manifest["kind"]: manifest["spec"] for manifest in everything_made_for(a_run()) if "spec" in manifest}
    head = manifests["RayCluster"]["headGroupSpec"]["template"]
    template = head if kind == "head" else manifests["Job"]["template"]
    pod = json.loads(json.dumps(template)) | {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"]["name"] = kind
    api.request("POST", f"/api/v1/namespaces/restricted/pods?{DRY}", pod)
    pod["spec"]["securityContext"].pop("seccompProfile")
    with pytest.raises(ApiError, match="violates PodSecurity"):
        api.request("POST", f"/api/v1/namespaces/restricted/pods?{DRY}", pod)
