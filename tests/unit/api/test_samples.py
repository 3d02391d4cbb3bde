"""Every sample is valid, names what exists, and shows what it says."""

import inspect
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.builders import a_model_source
from tests.unit.api.test_crd import SCHEMA
from tuning_contract.fingerprint import differing_fields, fingerprint
from tuning_contract.version import FEATURES
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_lifecycle import RetryAction
from tuning_operator.desired import run_document

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "crds" / "samples").glob("*.yaml"))
NAMES = {
    "chained",
    "code-from-configmap",
    "episode-workers",
    "evaluation-sets",
    "lora-gpu",
    "math-agent",
    "node-pool",
    "resumed",
    "retry-rules",
    "tiny",
}
ON_GPU = {"lora-gpu", "node-pool"}
OTHER_IMAGES = {"registry.example.com/team/math-agent:1.3": "math-agent"}
"""Images of a user's own registry, and what they are built from."""


def documents(path: Path) -> list[dict[str, Any]]:
    """All objects of a sample."""
    return list(yaml.safe_load_all(path.read_text()))


def the_run(path: Path) -> TuningRun:
    """The one TuningRun of a sample, as the API server would give it."""
    (found,) = [document for document in documents(path) if document["kind"] == "TuningRun"]
    return TuningRun.from_object(
        found | {"metadata": found["metadata"] | {"namespace": "default", "uid": "0123456789"}}
    )


def unknown_fields(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    """Paths of fields that the schema does not have."""
    if isinstance(value, list):
        return [name for item in value for name in unknown_fields(item, schema["items"], f"{where}[]")]
    if not isinstance(value, dict) or "properties" not in schema or schema.get("x-kubernetes-preserve-unknown-fields"):
        return []
    known = schema["properties"]
    found = [f"{where}.{name}" for name in value if name not in known]
    return found + [
        name for key in value if key in known for name in unknown_fields(value[key], known[key], f"{where}.{key}")
    ]


def example_of(run: TuningRun) -> Path | None:
    """The folder that the workflow image of a sample is built from; None for the runner's own image."""
    image = run.spec.workflow.image
    if image is None:
        return None
    name = OTHER_IMAGES.get(image) or image.removeprefix("agent-tuning/").removesuffix(f":{minor_version()}")
    return ROOT / "images" / "examples" / name


def minor_version() -> str:
    """The version of the chart's programs without its last number, as images are tagged."""
    chart = yaml.safe_load((ROOT / "charts/agent-tuning-operator/Chart.yaml").read_text())
    return str(chart["appVersion"]).rpartition(".")[0]


def config_maps(path: Path) -> dict[str, dict[str, str]]:
    """Data of the ConfigMaps that a sample brings along, by name."""
    return {found["metadata"]["name"]: found["data"] for found in documents(path) if found["kind"] == "ConfigMap"}


def code_of(path: Path, module: str) -> str:
    """The file of a module, from the sample's own ConfigMap or else from the folder of its image."""
    run = the_run(path)
    if run.spec.workflow.source:
        return config_maps(path)[run.spec.workflow.source.config_map.name][f"{module}.py"]
    example = example_of(run)
    assert example is not None
    return (example / f"{module}.py").read_text()


def loaded(path: Path, module: str) -> ModuleType:
    """The module of a sample's own code."""
    found = ModuleType(module)
    exec(compile(code_of(path, module), f"{module}.py", "exec"), found.__dict__)
    return found


def test_there_are_samples() -> None:
    assert {path.name for path in SAMPLES} == {f"tuningrun.{name}.yaml" for name in NAMES}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_a_run_without_unknown_fields(path: Path) -> None:
    (found,) = [document for document in documents(path) if document["kind"] == "TuningRun"]
    assert unknown_fields(found["spec"], SCHEMA["properties"]["spec"], "spec") == []
    run = the_run(path)
    assert path.name == f"tuningrun.{run.name}.yaml"
    document = run_document.build(run, a_model_source() if run.spec.model.run else None)
    algorithm = found["spec"]["algorithm"]
    assert (document.algorithm.steps, document.algorithm.epochs) == (algorithm.get("steps"), algorithm.get("epochs"))
    assert set(document.requires) <= FEATURES


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_says_first_what_it_shows_and_that_it_can_be_applied(path: Path) -> None:
    comment = path.read_text().split("apiVersion", 1)[0].splitlines()
    assert len(comment) >= 3
    assert all(line.startswith("#") for line in comment)
    assert path.stem == "tuningrun.tiny" or any(f"{path.name}" in line or "apply" in line for line in comment)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_only_the_samples_for_gpus_ask_for_one(path: Path) -> None:
    run = the_run(path)
    assert run.spec.cluster.head.gpus == (1 if run.name in ON_GPU else 0)
    assert sum(group.gpus for group in run.spec.cluster.workers) == 0


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_what_a_sample_names_in_its_image_is_there(path: Path) -> None:
    run = the_run(path)
    example = example_of(run)
    files = [dataset.image for dataset in (run.spec.dataset.train, *run.spec.dataset.evaluation) if dataset.image]
    if example is None:
        assert not files
        assert run.spec.model.image is None
        return
    dockerfile = (example / "Dockerfile").read_text()
    assert "COPY train.jsonl heldout.jsonl /opt/data/" in dockerfile
    assert all((example / file.path.removeprefix("/opt/data/")).exists() for file in files)
    assert run.spec.model.image is None or run.spec.model.image.path in dockerfile


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_image_of_a_sample_is_one_that_the_readme_builds_under_the_tag_of_this_version(path: Path) -> None:
    image = the_run(path).spec.workflow.image
    if image is None or image in OTHER_IMAGES:
        return
    name, _, tag = image.removeprefix("agent-tuning/").partition(":")
    assert tag == minor_version()
    line = next(line for line in path.read_text().splitlines() if f"image: {image}" in line)
    assert f"# your registry's name of images/examples/{name}" in line
    assert f"-t $REGISTRY/{name}:{tag} images/examples/{name}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_entry_points_of_a_sample_are_in_its_code(path: Path) -> None:
    workflow = the_run(path).spec.workflow
    for entrypoint in (workflow.entrypoint, workflow.judge):
        module, _, function = (entrypoint or "").partition(":")
        assert f"async def {function}(" in code_of(path, module)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_config_maps_that_a_sample_brings_along_come_first_and_are_used(path: Path) -> None:
    kinds = [document["kind"] for document in documents(path)]
    assert kinds == [*["ConfigMap"] * (len(kinds) - 1), "TuningRun"]
    spec = the_run(path).spec
    template, source = spec.model.chat_template, spec.workflow.source
    used = {template.config_map.name} if template else set()
    used |= {source.config_map.name} if source else set()
    assert set(config_maps(path)) == used


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_comment_of_a_sample_names_what_must_be_there_before(path: Path) -> None:
    comment = path.read_text().split("apiVersion", 1)[0]
    spec = the_run(path).spec
    needed = [dataset.volume.claim_name for dataset in spec.dataset.evaluation if dataset.volume]
    needed += [spec.model.volume.claim_name] if spec.model.volume else []
    needed += [spec.checkpoint.volume.claim_name] if spec.checkpoint.volume.claim_name else []
    needed += [spec.checkpoint.resume_from.claim_name] if spec.checkpoint.resume_from else []
    needed += [source.config_map_ref.name for source in spec.workflow.env_from if source.config_map_ref]
    needed += [pod.node_pool for pod in (spec.cluster.head, *spec.cluster.workers) if pod.node_pool]
    needed += [secret.name for secret in spec.image_pull_secrets]
    needed += [name for name in (spec.service_account_name, spec.priority_class_name) if name]
    assert [name for name in needed if f"`{name}`" not in comment] == []
    assert spec.model.run is None or f"tuningrun.{spec.model.run.name}.yaml" in comment


async def test_the_agent_of_the_gpu_sample_hands_the_problem_to_the_model_and_is_judged_by_the_number() -> None:
    module = loaded(ROOT / "crds/samples/tuningrun.lora-gpu.yaml", "gsm8k_agent")
    row = {"question": "2 + 2?", "answer": "It is <<2+2=4>>4.\n#### 1,234.5"}

    async def model(messages: list[dict[str, str]]) -> Any:
        assert messages[-1] == {"role": "user", "content": "2 + 2?"}
        return SimpleNamespace(content=[{"type": "text", "text": "So\n#### $1234.50"}])

    output = await module.run({"question": row["question"]}, model)
    assert (await module.judge(row, output.response)).reward == 1.0
    for wrong in ("#### 1234", "1234.5", "####"):
        assert (await module.judge(row, wrong)).reward == 0.0


async def test_the_agent_in_a_config_map_is_judged_by_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "crds/samples/tuningrun.code-from-configmap.yaml"
    (variable,) = the_run(path).spec.workflow.env
    monkeypatch.setenv(variable.name, variable.value or "")
    module = loaded(path, "adding_agent")
    assert list(inspect.signature(module.run).parameters) == ["task", "model"]
    row = json.loads((ROOT / "images/examples/tiny/train.jsonl").read_text().splitlines()[0])

    async def model(messages: list[dict[str, str]]) -> Any:
        assert messages[-1]["content"] == row["question"]
        return SimpleNamespace(content=[{"type": "text", "text": f" {row['answer']}"}])

    output = await module.run(row, model)
    rewards = [(await module.judge(row, text)).reward for text in (output.response, "77", "no idea")]
    assert rewards == [1.0, 0.1, 0.0]


@pytest.mark.parametrize("name", ["math-agent", "evaluation-sets", "resumed"])
def test_the_template_of_the_math_agent_is_the_one_of_its_image_folder(name: str) -> None:
    template, run = documents(ROOT / f"crds/samples/tuningrun.{name}.yaml")
    assert template["metadata"]["name"] == run["spec"]["model"]["chatTemplate"]["configMap"]["name"]
    assert template["data"]["chat.jinja"] == (ROOT / "images/examples/math-agent/chat.jinja").read_text()


def test_the_chained_sample_goes_on_from_one_that_is_there() -> None:
    chained, first = (the_run(ROOT / f"crds/samples/tuningrun.{name}.yaml") for name in ("chained", "math-agent"))
    assert chained.spec.model.run is not None
    assert chained.spec.model.run.name == first.name
    assert chained.spec.workflow == first.spec.workflow
    assert chained.spec.algorithm.learning_rate == first.spec.algorithm.learning_rate / 2


def test_the_resumed_sample_may_go_on_from_the_checkpoints_of_the_one_that_it_names() -> None:
    runs = [the_run(ROOT / f"crds/samples/tuningrun.{name}.yaml") for name in ("resumed", "math-agent")]
    documents_of = [run_document.build(run) for run in runs]
    mine, theirs = (fingerprint(each, each.model.path, "rows", "template") for each in documents_of)
    assert differing_fields(mine, theirs) == ()
    resumed, first = runs
    assert (resumed.spec.model, resumed.spec.dataset.train) == (first.spec.model, first.spec.dataset.train)
    assert (resumed.spec.algorithm.steps or 0) > (first.spec.algorithm.steps or 0)
    start = resumed.spec.checkpoint.resume_from
    assert start is not None
    assert start.path == f"default/{start.claim_name}"
    assert re.fullmatch(rf"{first.name}-[0-9a-f]{{6}}", start.claim_name)


def test_the_sample_of_retries_sets_everything_that_the_life_cycle_has() -> None:
    path = ROOT / "crds/samples/tuningrun.retry-rules.yaml"
    (found,) = documents(path)
    for block in ("retry", "deadlines", "cleanup"):
        assert set(found["spec"][block]) == set(SCHEMA["properties"]["spec"]["properties"][block]["properties"])
    assert {rule.action for rule in the_run(path).spec.retry.rules} == set(RetryAction)
