"""The README tells the truth: its example is the shipped sample, its commands and folders exist."""

import re
from pathlib import Path

import yaml

from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import run_document

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def as_served(manifest: dict[str, dict[str, str]]) -> TuningRun:
    """A manifest as the API server would give it."""
    return TuningRun.from_object(
        manifest | {"metadata": {"name": "math-agent", "namespace": "ml", "uid": "0123456789"}}
    )


def test_its_example_resolves_to_the_same_run_as_the_sample() -> None:
    found = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert found is not None
    example = yaml.safe_load(found[1])
    sample = list(yaml.safe_load_all((ROOT / "crds/samples/tuningrun.math-agent.yaml").read_text()))[-1]
    assert run_document.build(as_served(example)) == run_document.build(as_served(sample))


def test_every_path_that_it_names_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    folders = re.findall(r"^\| `([a-z_/.-]+)`", README, re.MULTILINE)
    missing = [path for path in links + folders if "://" not in path and not (ROOT / path).exists()]
    assert links
    assert folders
    assert missing == []


def test_every_task_that_it_names_is_one_of_the_makefile() -> None:
    tasks = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", README)) <= tasks
