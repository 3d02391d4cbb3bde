"""What the previous version's runner makes of a run.json of this version; its code lies in tests/e2e/releases."""

import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import a_run
from tests.cluster.image_spec import PREVIOUS_VERSION, REPOSITORY
from tuning_contract.run_document import RunDocument
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


def test_a_run_that_uses_something_new_is_refused_by_the_previous_runner_by_its_name(previous: Path) -> None:
    document = run_document.build(a_run())
    document = replace(document, requires=(*document.requires, "engine_config"))
    done = read_by(previous, document)
    assert done.returncode != 0
    assert "the image has runner 0.1, which lacks `engine_config`: use a newer runner image" in done.stderr
