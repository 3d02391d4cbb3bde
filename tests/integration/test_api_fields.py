"""The fields on a real kube-apiserver: their bounds, spelling, storage, owners and explanations."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.integration.api_requests import DRY, RUNS, as_written, complaints, dry_run, kubectl, refusal
from tests.specs import SCHEMA, Schema, complete_specs, leaves, present
from tuning_operator.api.schema import pattern_of

pytestmark = pytest.mark.control_plane

HELDOUT = {"name": "heldout", "image": {"path": "/opt/data/heldout.jsonl"}}
OF_NO_FORM = "//?\n//?\n"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def placed(value: Any, schema: Schema = SCHEMA, path: str = "") -> Iterator[tuple[str, Any, Any, Schema]]:
    """Every value of a spec: its path, what holds it, its key there, its schema."""
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, child in list(items):
        inner = schema["items"] if isinstance(value, list) else schema.get("properties", {}).get(key)
        if inner is not None:
            here = f"{path}[{key}]" if isinstance(value, list) else f"{path}.{key}".lstrip(".")
            yield here, value, key, inner
            yield from placed(child, inner, here)


def leaf_schemas(schema: Schema = SCHEMA, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every field with its path, `[]` for an entry of a list."""
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        yield here, child
        if "items" in child:
            yield f"{here}[]", child["items"]
            yield from leaf_schemas(child["items"], f"{here}[]")
        yield from leaf_schemas(child, here)


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"engine": {"type": "Other"}}, "spec.engine.type", 'Unsupported value: "Other": supported values: "TRL", '),
        ({"algorithm": {"type": "a3c"}}, "spec.algorithm.type", 'Unsupported value: "a3c": supported values: '),
        ({"algorithm": {"learningRate": 0}}, "spec.algorithm.learningRate", "should be greater than 0"),
        ({"algorithm": {"groupSize": 0}}, "spec.algorithm.groupSize", "should be greater than or equal to 1"),
        ({"algorithm": {"clipRange": 1}}, "spec.algorithm.clipRange", "should be less than 1"),
        ({"dataset": {"evaluation": [HELDOUT, HELDOUT]}}, "spec.dataset.evaluation[1]", "Duplicate value"),
        ({"dataset": {"hiddenFields": ["a", "a"]}}, "spec.dataset.hiddenFields[1]", "Duplicate value"),
        ({"dataset": {"hiddenFields": ["a"] * 33}}, "spec.dataset.hiddenFields", "must have at most 32 items"),
        ({"podLabels": {"team": "a b"}}, "spec.podLabels.team", "should match"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_with_its_field(
    control_plane: ControlPlane, spec: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        dry_run(control_plane, **spec)
    assert any(place == field and message in text for place, text in complaints(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        *(
            (
                {"cluster": {"head": {kind: value}}},
                f"spec.cluster.head.{kind}",
                "must be a quantity of Kubernetes, such as 4, 500m or 16Gi, and not below 0",
            )
            for kind, value in (("memory", "16 GB"), ("cpu", "4 cores"), ("sharedMemory", "1GB"))
        ),
        (
            {"checkpoint": {"volume": {"claimTemplate": {"size": "big"}}}},
            "spec.checkpoint.volume.claimTemplate.size",
            "must be a quantity of Kubernetes, such as 4, 500m or 16Gi, and not below 0",
        ),
        (
            {"cluster": {"head": {"nodePool": "A100"}}},
            "spec.cluster.head.nodePool",
            "must be lower-case letters, digits and hyphens, the first and last no hyphen",
        ),
        (
            {"workflow": {"entrypoint": "math_agent.run"}},
            "spec.workflow.entrypoint",
            "must be module:function, such as math_agent:run",
        ),
        *(
            (
                {"model": {"image": {"path": path}}},
                "spec.model.image.path",
                "must be an absolute path, such as /opt/data, without // . or .. in it and / at its end",
            )
            for path in ("relative", "/a/../b", "/a/")
        ),
        (
            {"model": {"image": None, "volume": {"claimName": "models", "path": "/tiny"}}},
            "spec.model.volume.path",
            "must be a path below the root, such as data/train, without / at both ends, and // . or .. in it",
        ),
        (
            {"model": {"image": None, "huggingFace": {"repo": "a/b/c"}}},
            "spec.model.huggingFace.repo",
            "must be owner/name, such as Qwen/Qwen3-0.6B, as the address of the hub shows it",
        ),
        (
            {"model": {"image": None, "huggingFace": {"repo": "a/b", "revision": "a b"}}},
            "spec.model.huggingFace.revision",
            "must be a branch, tag or commit, such as main",
        ),
        (
            {"dataset": {"train": {"image": None, "huggingFace": {"repo": "a/b", "split": "train[1:2"}}}},
            "spec.dataset.train.huggingFace.split",
            "must be a split or a part of one, such as train, train[:2000] or train[90%:]",
        ),
        (
            {"dataset": {"train": {"image": {"path": "/data", "split": "a b"}}}},
            "spec.dataset.train.image.split",
            "must be letters, digits, hyphens, underscores and dots, such as train",
        ),
        (
            {"metrics": {"remoteWrite": {"url": "host:9090"}}},
            "spec.metrics.remoteWrite.url",
            "must be an address that begins with http:// or https://, without blanks",
        ),
        (
            {"workflow": {"image": "team/math agent:1"}},
            "spec.workflow.image",
            "must be the name of an image, such as team/math-agent:1.3, without blanks",
        ),
        (
            {"workflow": {"env": [{"name": "TOOL-SERVER", "value": "x"}]}},
            "spec.workflow.env[0].name",
            "must be letters, digits and underscores, the first no digit",
        ),
        (
            {"imagePullSecrets": [{"name": "a..b"}]},
            "spec.imagePullSecrets[0].name",
            "must be lower-case letters, digits, hyphens and dots, the first and last a letter or digit",
        ),
        (
            {"model": {"chatTemplate": {"configMap": {"name": "a", "key": "a/b"}}}},
            "spec.model.chatTemplate.configMap.key",
            "must be letters, digits, hyphens, underscores and dots",
        ),
        (
            {"cluster": {"head": {"volumes": [{"name": "a", "mountPath": "data", "claimName": "a"}]}}},
            "spec.cluster.head.volumes[0].mountPath",
            "must be an absolute path, such as /data, without : // . or .. in it and / at its end",
        ),
        (
            {"engine": {"rayVersion": "latest"}},
            "spec.engine.rayVersion",
            "must be a version of Ray in three numbers, such as 2.60.0",
        ),
    ],
)
def test_a_value_of_another_form_is_told_in_words(
    control_plane: ControlPlane, spec: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ApiError) as caught:
        dry_run(control_plane, **spec)
    assert complaints(caught.value) == [(field, f"`{field.rpartition('.')[2]}` {words}")]


def test_wherever_a_form_is_told_in_words_the_server_says_them_and_no_regular_expression(
    control_plane: ControlPlane,
) -> None:
    told: set[str] = set()
    for number, spec in enumerate(complete_specs()):
        for path, value, key, schema in placed(spec):
            leaf = re.sub(r"\[\d+\]", "[]", path)
            if "pattern" in schema or pattern_of(schema) is None or leaf in told:
                continue
            told.add(leaf)
            kept, value[key] = value[key], OF_NO_FORM
            with pytest.raises(ApiError) as caught:
                control_plane.api.request("POST", f"{RUNS}?{DRY}", as_written() | {"spec": spec})
            value[key] = kept
            found = complaints(caught.value)
            words = schema["x-kubernetes-validations"][0]["message"]
            assert (f"spec.{path}", words) in found, (number, path, found)
            assert {place for place, _ in found} == {f"spec.{path}"}
            assert not any("should match" in text or "evaluation error" in text for _, text in found)
    assert told == {f"{path}" for path, schema in leaf_schemas() if "pattern" not in schema and pattern_of(schema)}


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
        ("", "A run is a record: only `suspend`, `deadlines` and `cleanup` can be changed after creation."),
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
