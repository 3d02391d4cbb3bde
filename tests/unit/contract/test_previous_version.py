"""What the previous version's runner makes of a run.json of this version; its code lies in tests/e2e/releases."""

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.builders import a_run
from tests.cluster.image_spec import PREVIOUS_VERSION, REPOSITORY
from tuning_contract.run_document import RunDocument
from tuning_contract.version import FEATURES
from tuning_operator.desired import run_document

CODE = REPOSITORY / "tests" / "e2e" / "releases" / PREVIOUS_VERSION / "operator.tar.gz"
READ = "import sys; from tuning_runner.__main__ import parse; print(parse(sys.stdin.read()).digest)"


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the previous version's packages."""
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(CODE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "agent-tuning"


def read_by(previous: Path, document: RunDocument) -> subprocess.CompletedProcess[str]:
    """Let the previous version read run.json; it prints the digest that it takes it for."""
    command = [sys.executable, "-c", READ]
    text = document.to_text()
    return subprocess.run(command, input=text, env={"PYTHONPATH": str(previous)}, capture_output=True, text=True)


def test_a_run_that_uses_nothing_new_is_read_by_the_previous_runner_which_agrees_on_its_digest(previous: Path) -> None:
    document = run_document.build(a_run(dataset={"evaluation": [{"name": "heldout", "image": {"path": "/h.jsonl"}}]}))
    done = read_by(previous, document)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == document.digest


A_HUB_SET = {"huggingFace": {"repo": "org/rows", "split": "test"}}
NEW: dict[str, tuple[str, dict[str, Any]]] = {
    "model of a hub": ("hub_model", {"model": {"image": None, "huggingFace": {"repo": "org/model"}}}),
    "training tasks of a hub": ("hub_dataset", {"dataset": {"train": {"image": None, **A_HUB_SET}}}),
    "evaluation set of a hub": ("hub_dataset", {"dataset": {"evaluation": [{"name": "x", **A_HUB_SET}]}}),
    "split of the training tasks": ("dataset_split", {"dataset": {"train": {"image": {"path": "/d", "split": "a"}}}}),
    "split of an evaluation set": (
        "dataset_split",
        {"dataset": {"evaluation": [{"name": "x", "image": {"path": "/d", "split": "a"}}]}},
    ),
    "settings of the engine": ("engine_config", {"engine": {"config": {"weight_decay": 0.1}}}),
    "workers": ("episode_nodes", {"cluster": {"workers": [{"name": "a"}]}}),
    "another run's checkpoint": (
        "resume_from",
        {"checkpoint": {"resumeFrom": {"claimName": "results", "path": "ml/old-3f9a1c"}}},
    ),
    "leave-one-out": ("algorithm:rloo", {"algorithm": {"type": "rloo"}}),
    "baseline over the step": ("algorithm:reinforceplusplus", {"algorithm": {"type": "reinforceplusplus"}}),
}
"""Everything that a run may ask for since the previous version, and the feature that says so."""


@pytest.mark.parametrize("case", NEW)
def test_a_run_that_uses_something_new_is_refused_by_the_previous_runner_by_its_name(previous: Path, case: str) -> None:
    feature, fields = NEW[case]
    done = read_by(previous, run_document.build(a_run(**fields)))
    assert done.returncode != 0
    assert f"the image has runner 0.1, which lacks `{feature}`: use a newer runner image" in done.stderr


def test_every_feature_since_the_previous_version_is_used_here(previous: Path) -> None:
    command = [sys.executable, "-c", "from tuning_contract.version import FEATURES; print(*FEATURES)"]
    done = subprocess.run(command, env={"PYTHONPATH": str(previous)}, capture_output=True, text=True, check=True)
    assert {feature for feature, _ in NEW.values()} == FEATURES - set(done.stdout.split())
