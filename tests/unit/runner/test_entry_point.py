"""`python -m tuning_runner` before any engine: run.json, features, the log."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.runner.documents import DIRECTORY, REPOSITORY, a_run_document
from tuning_contract.checkpoint import write_atomically
from tuning_contract.directory import RunDirectory
from tuning_contract.result import RunResult
from tuning_contract.run_document import HubSource, RunDocument
from tuning_runner.console import Tee
from tuning_runner.episodes.errors import RunError
from tuning_runner.resources import available_cpus
from tuning_runner.sources import uses_hub
from tuning_runner.training import parse, prepare_environment


def execute(root: Path, text: str) -> subprocess.CompletedProcess:
    (root / "run.json").write_text(text)
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY / "operator"),
        "TUNING_VOLUME": str(root),
        "TUNING_RUN_DOCUMENT": str(root / "run.json"),
        "TUNING_ATTEMPT": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", "tuning_runner"], env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_feature_that_this_runner_lacks_is_named_in_the_result(tmp_path):
    document = json.loads(a_run_document().to_text()) | {"requires": ["trl", "telepathy"]}
    process = execute(tmp_path, json.dumps(document))
    result = RunResult.from_text((tmp_path / DIRECTORY / "result.json").read_text())
    assert process.returncode == 10
    assert (result.outcome, result.cause, result.attempt) == ("Failed", "ConfigInvalid", 1)
    assert "lacks `telepathy`" in result.message
    assert result.run_digest == RunDocument.from_text(json.dumps(document)).digest
    assert "telepathy" in process.stdout
    assert "telepathy" in RunDirectory(tmp_path / DIRECTORY).runner_log(1).read_text()


@pytest.mark.parametrize(("newest", "outcome"), [("2\n", "Failed"), ("1\n", "Succeeded")])
def test_a_run_json_that_cannot_be_read_replaces_no_result_that_counts(tmp_path, newest, outcome):
    directory = RunDirectory(tmp_path / DIRECTORY)
    write_atomically(directory.current_attempt, newest)
    earlier = RunResult("uid", "digest", 1, outcome, 4, 4, 0.0, final_model="final" if outcome == "Succeeded" else "")
    write_atomically(directory.result, earlier.to_text())
    document = json.loads(a_run_document().to_text()) | {"requires": ["telepathy"]}
    process = execute(tmp_path, json.dumps(document))
    assert process.returncode == 10
    assert "no result is written" in process.stdout
    assert RunResult.from_text(directory.result.read_text()) == earlier


def test_an_engine_that_this_image_lacks_is_a_wrong_configuration(tmp_path):
    document = json.loads(a_run_document().to_text())
    document["engine"]["type"] = "Trinity"
    assert execute(tmp_path, json.dumps(document)).returncode == 10
    result = RunResult.from_text((tmp_path / DIRECTORY / "result.json").read_text())
    assert (result.cause, result.message) == (
        "ConfigInvalid",
        "this image has no engine Trinity: use the runner image of that engine",
    )


def test_an_unreadable_run_json_ends_with_another_code_and_a_sentence(tmp_path):
    process = execute(tmp_path, "{")
    assert process.returncode == 20
    assert "cannot" in process.stderr or "JSON" in process.stderr


def test_an_unknown_key_of_run_json_is_refused_by_name():
    document = json.loads(a_run_document().to_text()) | {"surprise": 1}
    with pytest.raises(RunError, match="unknown keys: surprise"):
        parse(json.dumps(document))


CHOSEN = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "OMP_NUM_THREADS")
"""What a run may set in `workflow.env`."""


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str | None]]:
    """The chosen variables after the runner has prepared its environment."""

    def prepare(hub: bool, **given: str) -> list[str | None]:
        monkeypatch.setattr(os, "environ", {"HOME": "/home", **given})
        prepare_environment(hub)
        return [os.environ.get(name) for name in CHOSEN]

    return prepare


@pytest.mark.parametrize("hub", [True, False])
def test_the_hubs_clients_are_offline_only_when_nothing_comes_from_a_hub(prepared, hub):
    expected = None if hub else "1"
    assert prepared(hub) == [expected, expected, str(available_cpus())]


def test_what_the_run_has_set_for_the_libraries_stays(prepared):
    given = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "OMP_NUM_THREADS": "3"}
    assert prepared(False, **given) == ["0", "0", "3"]


def test_the_single_thread_that_ray_sets_for_every_job_is_not_taken_for_the_runs_wish(prepared):
    assert prepared(True, OMP_NUM_THREADS="1")[2] == str(available_cpus())


def test_one_source_on_a_hub_is_enough_to_need_it():
    run, source = a_run_document(), HubSource("org/name", split="test")
    held = replace(run.dataset.evaluation[0], hub=source)
    assert not uses_hub(run)
    assert uses_hub(replace(run, model=replace(run.model, hub=source)))
    assert uses_hub(replace(run, dataset=replace(run.dataset, hub=source)))
    assert uses_hub(replace(run, dataset=replace(run.dataset, evaluation=(held,))))


def test_the_tee_writes_everything_to_the_file_and_to_the_old_output(tmp_path):
    log = tmp_path / "logs" / "runner.log"
    program = (
        "import os, sys, pathlib, subprocess\n"
        "from tuning_runner.console import Tee\n"
        f"with Tee(pathlib.Path({str(log)!r})):\n"
        "    print('from python'); sys.stderr.write('from stderr\\n')\n"
        "    subprocess.run(['echo', 'from a child'])\n"
        "    print('x' * 300000)\n"
        "print('after')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "operator")}
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    text = log.read_text()
    assert process.stdout == text + "after\n"
    for part in ("from python", "from stderr", "from a child", "x" * 300000):
        assert part in text


def test_a_tee_continues_an_existing_log_without_repeating_it(tmp_path, capfd):
    log = tmp_path / "runner.log"
    log.write_text("earlier\n")
    with Tee(log):
        os.write(1, b"now\n")
    assert log.read_text() == "earlier\nnow\n"
    assert capfd.readouterr().out == "now\n"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("cpu.max", "150000 100000\n", 1),
        ("cpu.max", "50000 100000\n", 1),
        ("cpu.max", "max 100000\n", None),
        ("cpu/cpu.cfs_quota_us", "100000\n", 1),
        ("cpu/cpu.cfs_quota_us", "-1\n", None),
        ("nothing", "", None),
    ],
)
def test_the_number_of_threads_follows_the_containers_quota(tmp_path, file, text, expected):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    if file.startswith("cpu/"):
        (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    allowed = len(os.sched_getaffinity(0))
    assert available_cpus(tmp_path) == (allowed if expected is None else expected)
