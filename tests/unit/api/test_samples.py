"""Every sample is valid, names what exists, and shows what it says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.api.test_crd import SCHEMA
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import run_document

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "crds" / "samples").glob("*.yaml"))


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
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    known = schema["properties"]
    found = [f"{where}.{name}" for name in value if name not in known]
    return found + [
        name for key in value if key in known for name in unknown_fields(value[key], known[key], f"{where}.{key}")
    ]


def test_there_are_samples() -> None:
    assert {path.name for path in SAMPLES} >= {"tuningrun.math-agent.yaml", "tuningrun.tiny.yaml"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_a_run_without_unknown_fields(path: Path) -> None:
    (found,) = [document for document in documents(path) if document["kind"] == "TuningRun"]
    assert unknown_fields(found["spec"], SCHEMA["properties"]["spec"], "spec") == []
    run = the_run(path)
    assert path.name == f"tuningrun.{run.name}.yaml"
    assert run_document.build(run).algorithm.steps == found["spec"]["algorithm"]["steps"]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_asks_for_no_gpu(path: Path) -> None:
    assert the_run(path).spec.cluster.head.gpus == 0


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_what_a_sample_names_is_in_its_image(path: Path) -> None:
    run = the_run(path)
    example = ROOT / "images" / "examples" / run.name
    dockerfile = (example / "Dockerfile").read_text()
    assert "COPY train.jsonl heldout.jsonl /opt/data/" in dockerfile
    paths = [run.spec.dataset.train.image, *[entry.image for entry in run.spec.dataset.evaluation]]
    for found in paths:
        assert found is not None
        assert (example / found.path.removeprefix("/opt/data/")).exists()
    assert run.spec.model.image is not None
    assert run.spec.model.image.path in dockerfile
    for entrypoint in (run.spec.workflow.entrypoint, run.spec.workflow.judge):
        module, _, function = (entrypoint or "").partition(":")
        assert f"async def {function}(" in (example / f"{module}.py").read_text()


def test_the_template_of_the_math_agent_is_the_one_of_its_image_folder_and_comes_first() -> None:
    template, run = documents(ROOT / "crds/samples/tuningrun.math-agent.yaml")
    assert template["metadata"]["name"] == run["spec"]["model"]["chatTemplate"]["configMap"]["name"]
    expected = (ROOT / "images/examples/math-agent/chat.jinja").read_text()
    assert template["data"]["chat.jinja"] == expected
