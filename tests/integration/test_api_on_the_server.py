"""The API on a real kube-apiserver: what it accepts, what it refuses, and in which words."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.builders import a_run, a_run_object, everything_made_for
from tests.cluster import binaries
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tuning_operator.api import crd

pytestmark = pytest.mark.control_plane

RUNS = "/apis/agenttuning.io/v1alpha1/namespaces/default/tuningruns"
STRICT = "fieldValidation=Strict"
DRY = f"dryRun=All&{STRICT}"
SAMPLES = sorted((Path(__file__).parents[2] / "crds" / "samples").glob("*.yaml"))
OTHER = {"configMap": {"name": "tasks"}}
HELDOUT = {"name": "heldout", "image": {"path": "/opt/data/heldout.jsonl"}}

# (message of the rule, a spec that breaks it, a spec that keeps it by a hair)
SPEC_RULES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("set image", {"model": {"image": None}}, {}),
    (
        "maxResponseTokens must be less than maxModelLength",
        {"model": {"maxModelLength": 64, "maxResponseTokens": 64}},
        {"model": {"maxModelLength": 64, "maxResponseTokens": 63}},
    ),
    (
        "set exactly one of image, configMap",
        {"dataset": {"train": OTHER}},
        {"dataset": {"train": OTHER | {"image": None}}},
    ),
    (
        "set exactly one of image, configMap",
        {"dataset": {"evaluation": [{"name": "heldout"}]}},
        {"dataset": {"evaluation": [HELDOUT]}},
    ),
    (
        "name must not be train",
        {"dataset": {"evaluation": [HELDOUT | {"name": "train"}]}},
        {"dataset": {"evaluation": [HELDOUT | {"name": "trained"}]}},
    ),
    ("set exactly one of epochs, steps", {"algorithm": {"steps": None}}, {"algorithm": {"steps": None, "epochs": 0.5}}),
    ("set exactly one of epochs, steps", {"algorithm": {"epochs": 1}}, {}),
    (
        "rollout.minGroupSize must not be more than algorithm.groupSize",
        {"rollout": {"minGroupSize": 9}},
        {"rollout": {"minGroupSize": 8}},
    ),
    ("rayVersion must be at least 2.53.0", {"engine": {"rayVersion": "2.52.9"}}, {"engine": {"rayVersion": "2.53.0"}}),
    ("rayVersion must be at least 2.53.0", {"engine": {"rayVersion": "1.99.0"}}, {"engine": {"rayVersion": "3.0.0"}}),
    ("set entrypoint", {"workflow": {"entrypoint": None}}, {}),
    (
        "this variable is set by the operator",
        {"workflow": {"env": [{"name": "TUNING_ATTEMPT", "value": "1"}]}},
        {"workflow": {"env": [{"name": "TUNINGS", "value": "1"}]}},
    ),
    (
        "this variable is set by the operator",
        {"workflow": {"env": [{"name": "RAY_ADDRESS", "value": "1"}]}},
        {"workflow": {"env": [{"name": "RAY_memory_monitor_refresh_ms", "value": "0"}]}},
    ),
    ("cpu must be more than 0", {"cluster": {"head": {"cpu": 0}}}, {"cluster": {"head": {"cpu": "1m"}}}),
    (
        "memory must be at least 512Mi",
        {"cluster": {"head": {"memory": "511Mi", "sharedMemory": 1}}},
        {"cluster": {"head": {"memory": "512Mi", "sharedMemory": "64Mi"}}},
    ),
    (
        "sharedMemory must be less than memory",
        {"cluster": {"head": {"memory": "2Gi", "sharedMemory": 2147483648}}},
        {"cluster": {"head": {"memory": "2Gi", "sharedMemory": "2147483647"}}},
    ),
    (
        "set exactly one of claimTemplate, claimName",
        {"checkpoint": {"volume": {"claimName": "results"}}},
        {"checkpoint": {"volume": {"claimName": "results", "claimTemplate": None}}},
    ),
    (
        "deletionPolicy Delete needs a claim that is made for the run: use volume.claimTemplate",
        {"checkpoint": {"deletionPolicy": "Delete", "volume": {"claimName": "results", "claimTemplate": None}}},
        {"checkpoint": {"deletionPolicy": "Delete"}},
    ),
    (
        "cluster.head.gpus must be at most 1 with engine TRL",
        {"cluster": {"head": {"gpus": 2}}},
        {"cluster": {"head": {"gpus": 1}}},
    ),
    (
        "cluster.head.gpus must be at most 1 with engine TRL",
        {"engine": {"rayVersion": "2.61.0"}, "cluster": {"head": {"gpus": 16}}},
        {"engine": {"type": "Trinity"}, "cluster": {"head": {"gpus": 16}}},
    ),
]

# (field, another value): every field of the spec, changed, added or removed
CHANGES: list[tuple[str, Any]] = [
    ("seed", 1),
    ("engine", {"rayVersion": "2.61.0"}),
    ("model", {"maxModelLength": 4096}),
    ("dataset", {"order": "Sequential"}),
    ("algorithm", {"steps": 13}),
    ("rollout", {"concurrency": 1}),
    ("workflow", {"judge": None}),
    ("cluster", {"head": {"gpus": 1}}),
    ("checkpoint", {"keepLast": 1}),
    ("metrics", {"remoteWrite": {"url": "http://prometheus:9090/api/v1/write"}}),
]


def as_written(name: str = "run", **spec: Any) -> dict[str, Any]:
    """A run as a user writes it."""
    return a_run_object(name, **spec) | {"metadata": {"name": name, "namespace": "default"}}


def refusal(plane: ControlPlane, document: Mapping[str, Any]) -> str:
    """What the server says against a run."""
    with pytest.raises(ApiError) as caught:
        plane.api.request("POST", f"{RUNS}?{DRY}", document)
    return str(caught.value)


def rules(schema: Any) -> Iterator[str]:
    """Messages of all rules in a schema."""
    if isinstance(schema, dict):
        yield from (entry["message"] for entry in schema.get("x-kubernetes-validations", []))
        for child in schema.values():
            yield from rules(child)


@pytest.fixture(scope="module")
def made(control_plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """A run that exists, for the rules of change."""
    yield control_plane.api.request("POST", f"{RUNS}?{STRICT}", as_written("changing"))
    control_plane.api.request("DELETE", f"{RUNS}/changing")


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


@pytest.mark.parametrize(("message", "broken", "kept"), SPEC_RULES)
def test_a_rule_refuses_what_breaks_it_and_accepts_what_keeps_it(
    control_plane: ControlPlane, message: str, broken: dict[str, Any], kept: dict[str, Any]
) -> None:
    assert message in refusal(control_plane, as_written(**broken))
    control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written(**kept))


def test_a_name_of_39_characters_is_accepted_and_one_more_or_a_leading_digit_is_not(
    control_plane: ControlPlane,
) -> None:
    control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written("a" * 39))
    for name in ("a" * 40, "1run", "a.b"):
        assert "metadata.name must be at most 39" in refusal(control_plane, as_written(name))


@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_a_field_cannot_be_changed_after_creation(
    control_plane: ControlPlane, made: dict[str, Any], field: str, value: Any
) -> None:
    del made
    with pytest.raises(ApiError) as caught:
        control_plane.api.request(
            "PATCH", f"{RUNS}/changing?{DRY}", {"spec": {field: value}}, "application/merge-patch+json"
        )
    assert f"{field} is immutable: delete the run, or create another one under a new name" in str(caught.value)


def test_an_unchanged_spec_and_new_labels_are_accepted(control_plane: ControlPlane, made: dict[str, Any]) -> None:
    change = {"metadata": {"labels": {"team": "a"}}, "spec": made["spec"]}
    control_plane.api.request("PATCH", f"{RUNS}/changing?{DRY}", change, "application/merge-patch+json")


def test_no_rule_is_without_a_test() -> None:
    tested = [message for message, _, _ in SPEC_RULES] + [f"{field} is immutable" for field, _ in CHANGES]
    tested.append("metadata.name must be at most 39")
    schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert [message for message in rules(schema) if not any(message.startswith(start) for start in tested)] == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"engine": {"type": "Other"}}, 'spec.engine.type: Unsupported value: "Other"'),
        ({"algorithm": {"type": "ppo"}}, 'spec.algorithm.type: Unsupported value: "ppo"'),
        ({"algorithm": {"learningRate": 0}}, "spec.algorithm.learningRate"),
        ({"algorithm": {"groupSize": 1}}, "should be greater than or equal to 2"),
        ({"cluster": {"head": {"memory": "much"}}}, "spec.cluster.head.memory"),
        ({"workflow": {"entrypoint": "math_agent.run"}}, "spec.workflow.entrypoint"),
        ({"model": {"image": {"path": "relative"}}}, "spec.model.image.path"),
        ({"dataset": {"evaluation": [HELDOUT, HELDOUT]}}, "Duplicate value"),
        ({"dataset": {"hiddenFields": ["a", "a"]}}, "Duplicate value"),
        ({"metrics": {"remoteWrite": {"url": "prometheus:9090"}}}, "spec.metrics.remoteWrite.url"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_with_its_field(
    control_plane: ControlPlane, spec: dict[str, Any], message: str
) -> None:
    assert message in refusal(control_plane, as_written(**spec)).replace('\\"', '"')


def test_a_misspelled_field_is_named_and_so_is_one_that_nothing_executes_yet(control_plane: ControlPlane) -> None:
    misspelled = refusal(control_plane, as_written(algorithm={"learningrate": 0.1}))
    assert 'unknown field \\"spec.algorithm.learningrate\\"' in misspelled
    assert 'unknown field \\"spec.gate\\"' in refusal(control_plane, as_written(gate={"evaluation": "heldout"}))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_accepted_as_kubectl_applies_it(control_plane: ControlPlane, path: Path) -> None:
    done = kubectl(control_plane, "apply", "--namespace=default", "--dry-run=server", "--validate=strict", f"-f{path}")
    assert done.returncode == 0, done.stderr
    assert f"tuningrun.agenttuning.io/{path.stem.removeprefix('tuningrun.')} created" in done.stdout


def test_kubectl_explains_a_field_with_unit_default_and_example(control_plane: ControlPlane) -> None:
    done = kubectl(control_plane, "explain", "trun.spec.rollout.limits.seconds")
    assert "Most seconds of one episode" in done.stdout
    assert "Default: 300. Example: 600." in " ".join(done.stdout.split())


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
    api.request("PATCH", path, {"status": status}, "application/merge-patch+json")
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


def kubectl(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl as the administrator."""
    command = [str(binaries.clients() / "kubectl"), f"--kubeconfig={plane.kubeconfig}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
