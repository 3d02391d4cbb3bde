"""The fields on a real kube-apiserver: their bounds, spelling, storage, owners and explanations."""

from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.integration.api_requests import DRY, RUNS, as_written, complaints, dry_run, kubectl, refusal
from tests.specs import complete_specs, leaves, present

pytestmark = pytest.mark.control_plane

HELDOUT = {"name": "heldout", "image": {"path": "/opt/data/heldout.jsonl"}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"engine": {"type": "Other"}}, "spec.engine.type", 'Unsupported value: "Other": supported values: "TRL", '),
        ({"algorithm": {"type": "a3c"}}, "spec.algorithm.type", 'Unsupported value: "a3c": supported values: '),
        ({"algorithm": {"learningRate": 0}}, "spec.algorithm.learningRate", "should be greater than 0"),
        ({"algorithm": {"groupSize": 0}}, "spec.algorithm.groupSize", "should be greater than or equal to 1"),
        ({"algorithm": {"clipRange": 1}}, "spec.algorithm.clipRange", "should be less than 1"),
        ({"cluster": {"head": {"memory": "much"}}}, "spec.cluster.head.memory", "should match"),
        ({"cluster": {"head": {"nodePool": "A100"}}}, "spec.cluster.head.nodePool", "should match"),
        ({"workflow": {"entrypoint": "math_agent.run"}}, "spec.workflow.entrypoint", "should match"),
        ({"model": {"image": {"path": "relative"}}}, "spec.model.image.path", "should match"),
        ({"model": {"image": {"path": "/a/../b"}}}, "spec.model.image.path", "should match"),
        ({"dataset": {"evaluation": [HELDOUT, HELDOUT]}}, "spec.dataset.evaluation[1]", "Duplicate value"),
        ({"dataset": {"hiddenFields": ["a", "a"]}}, "spec.dataset.hiddenFields[1]", "Duplicate value"),
        ({"dataset": {"hiddenFields": ["a"] * 33}}, "spec.dataset.hiddenFields", "must have at most 32 items"),
        ({"metrics": {"remoteWrite": {"url": "host:9090"}}}, "spec.metrics.remoteWrite.url", "should match"),
        ({"podLabels": {"team": "a b"}}, "spec.podLabels.team", "should match"),
        ({"imagePullSecrets": [{"name": "a..b"}]}, "spec.imagePullSecrets[0].name", "should match"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_with_its_field(
    control_plane: ControlPlane, spec: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        dry_run(control_plane, **spec)
    assert any(place == field and message in text for place, text in complaints(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"algoritm": {}}, "spec.algoritm"),
        ({"algorithm": {"learningrate": 0.1}}, "spec.algorithm.learningrate"),
        ({"rollout": {"limits": {"turn": 1}}}, "spec.rollout.limits.turn"),
        ({"dataset": {"evaluation": [HELDOUT | {"samples": 2}]}}, "spec.dataset.evaluation[0].samples"),
        ({"cluster": {"head": {"GPUs": 1}}}, "spec.cluster.head.GPUs"),
        (
            {"cluster": {"workers": [{"name": "a", "tolerations": [{"keys": "x"}]}]}},
            "spec.cluster.workers[0].tolerations[0].keys",
        ),
        (
            {"cluster": {"head": {"affinity": {"nodeAffinity": {REQUIRED: {"terms": []}}}}}},
            f"spec.cluster.head.affinity.nodeAffinity.{REQUIRED}.terms",
        ),
        ({"gate": {"evaluation": "heldout"}}, "spec.gate"),
    ],
)
def test_a_misspelled_field_is_named_and_so_is_one_that_nothing_executes_yet(
    control_plane: ControlPlane, spec: dict[str, Any], field: str
) -> None:
    assert f'unknown field \\"{field}\\"' in refusal(control_plane, as_written(**spec))


def test_the_complete_specs_set_every_field() -> None:
    assert set(leaves()) - {path for spec in complete_specs() for path in present(spec)} == set()


@pytest.mark.parametrize("number", range(4))
def test_the_server_stores_every_field_as_it_was_written(control_plane: ControlPlane, number: int) -> None:
    document = as_written("complete") | {"spec": complete_specs()[number]}
    control_plane.api.request("POST", RUNS, document)
    stored = control_plane.api.get(f"{RUNS}/complete")
    control_plane.api.request("DELETE", f"{RUNS}/complete")
    assert stored["spec"] == document["spec"]


def test_two_managers_who_apply_different_entries_of_a_list_both_keep_theirs(control_plane: ControlPlane) -> None:
    """The platform's tool adds its entries to the run in the same breath; neither list is replaced by the other's."""

    def apply(manager: str, spec: dict[str, Any]) -> dict[str, Any]:
        head = {"apiVersion": "agenttuning.io/v1alpha1", "kind": "TuningRun", "metadata": {"name": "shared"}}
        stored: dict[str, Any] = control_plane.api.request(
            "PATCH", f"{RUNS}/shared?fieldManager={manager}", head | {"spec": spec}, "application/apply-patch+yaml"
        )
        return stored

    def entries(mark: str) -> dict[str, Any]:
        path = {"path": "/opt/data/x.jsonl"}
        volume = {"name": mark, "mountPath": f"/data/{mark}", "claimName": mark}
        return {
            "dataset": {"evaluation": [{"name": mark, "image": path}]},
            "workflow": {"env": [{"name": mark.upper(), "value": mark}]},
            "cluster": {"head": {"volumes": [volume]}, "workers": [{"name": mark}]},
            "imagePullSecrets": [{"name": mark}],
            "podLabels": {mark: mark},
        }

    whole = as_written(**entries("user"))["spec"]
    first = apply("user", whole)
    # Nothing may change after creation, so the other manager may only say what is already there ...
    assert apply("platform", entries("user"))["spec"] == first["spec"]
    # ... and what one of them no longer says stays, since the other one still says it.
    kept = apply("user", {key: whole[key] for key in ("model", "dataset", "algorithm", "workflow", "checkpoint")})
    control_plane.api.request("DELETE", f"{RUNS}/shared")
    assert kept["spec"] == first["spec"]
    owners = {entry["manager"]: entry["fieldsV1"]["f:spec"] for entry in kept["metadata"]["managedFields"]}
    assert 'k:{"name":"user"}' in owners["platform"]["f:cluster"]["f:workers"]
    assert 'k:{"name":"USER"}' in owners["platform"]["f:workflow"]["f:env"]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("", "A run is a record: nothing in it can be changed after creation."),
        ("seed", "Default: 0."),
        ("model.huggingFace.repo", "Example: Qwen/Qwen3-0.6B."),
        ("dataset.evaluation.samplesPerTask", "Default: 1. Example: 2."),
        ("algorithm.klCoefficient", "Without it: "),
        ("rollout.limits.seconds", "Default: 300. Example: 600."),
        ("workflow.env.valueFrom.secretKeyRef.key", "Example: token."),
        ("cluster.head.memory", "as a Kubernetes quantity"),
        ("cluster.workers.volumes.emptyDir.sizeLimit", "Default: 10Gi."),
        ("checkpoint.volume.claimTemplate.accessModes", 'Default: ["ReadWriteMany"].'),
        ("cluster.head.podTemplatePatch", "Free-form"),
    ],
)
def test_kubectl_explains_a_field_with_unit_default_and_example(
    control_plane: ControlPlane, field: str, words: str
) -> None:
    done = kubectl(control_plane, "explain", f"trun.spec.{field}".rstrip("."))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.partition("DESCRIPTION:")[2].partition("FIELDS:")[0].split())
    assert len(text) >= 30
    assert words in text


def test_a_quantity_may_be_a_number_or_a_text(control_plane: ControlPlane) -> None:
    stored = dry_run(control_plane, cluster={"head": {"cpu": 2, "memory": 2**33}})
    assert (stored["spec"]["cluster"]["head"]["cpu"], stored["spec"]["cluster"]["head"]["memory"]) == (2, 2**33)


def test_a_free_form_field_is_kept_as_it_is(control_plane: ControlPlane) -> None:
    patch = {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}], "x": {"y": [1, 1.5, "z"]}}}
    config = {"target_modules": ["q_proj"], "lora_dropout": 0.1}
    spec = {"cluster": {"head": {"podTemplatePatch": patch}}, "engine": {"config": config}}
    stored = control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written(**spec))["spec"]
    assert stored["cluster"]["head"]["podTemplatePatch"] == patch
    assert stored["engine"]["config"] == config
