"""The sidecar as a process: its endpoints over HTTP."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.sidecar.documents import a_record, a_result, a_run, an_evaluation, append, directory_of
from tests.unit.sidecar.processes import Sidecar, a_sidecar, eventually
from tuning_contract.checkpoint import MANIFEST, Manifest, write_atomically
from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import EVALUATION_METRICS, TRAINER_METRICS
from tuning_contract.progress import Progress
from tuning_contract.result import FAILED, RunResult
from tuning_contract.run_document import HubSource
from tuning_sidecar.series import SeriesMapper
from tuning_sidecar.server import LOG_CHUNK

RUN = a_run()


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("volume")


@pytest.fixture(scope="module")
def sidecar(volume: Path) -> Iterator[Sidecar]:
    """One process for the module, as attempt 2; each test starts from an empty run directory."""
    with a_sidecar(RUN, volume, attempt=2) as process:
        yield process


@pytest.fixture
def directory(volume: Path, sidecar: Sidecar) -> Iterator[RunDirectory]:
    yield directory_of(RUN, volume)
    shutil.rmtree(volume / RUN.checkpoint.directory)


def progress(sidecar: Sidecar) -> Progress:
    return Progress.from_text(sidecar.get("/progress")[1])


def series(sidecar: Sidecar) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(sidecar.get("/metrics")[1].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_before_the_runner_has_written_anything_every_endpoint_answers(tmp_path: Path) -> None:
    with a_sidecar(RUN, tmp_path, attempt=2) as fresh:
        assert progress(fresh) == Progress(attempt=2)
        assert fresh.get("/result")[0] == 404
        assert fresh.get("/log?offset=0")[0] == 404
        assert fresh.get("/healthz")[0] == 200
        assert fresh.get("/nothing")[0] == 404
        assert "tuningrun_step" not in series(fresh)
        ((labels, value),) = series(fresh)["tuningrun_info"]
        assert value == 1
        assert labels["model"] == "/opt/model"
        assert labels["attempt"] == "2"
        assert fresh.stop() == 0


def test_a_model_of_the_hub_is_known_by_its_repository() -> None:
    run = replace(RUN, model=replace(RUN.model, path="", hub=HubSource("org/tiny")))
    assert dict(SeriesMapper(run, attempt=1).info().labels)["model"] == "org/tiny"


def test_progress_shows_step_pace_checkpoint_and_evaluations(tmp_path: Path) -> None:
    directory = directory_of(RUN, tmp_path)
    now = round(time.time(), 3)
    append(
        directory.metrics,
        an_evaluation(0, 0.15, now - 50),
        *(a_record(step, now - 40 + 10 * step, attempt=2) for step in (1, 2, 3)),
        an_evaluation(3, 0.5, now, attempt=2),
    )
    for step in (2, 3):
        manifest = Manifest(format="trl", step=step, policy_version=step, saved_at=now)
        write_atomically(directory.checkpoint(step) / MANIFEST, manifest.to_text())
    directory.checkpoint(4).mkdir()
    with a_sidecar(RUN, tmp_path, attempt=2) as sidecar:
        found = eventually(lambda: progress(sidecar) if progress(sidecar).checkpoint_step else None)
    assert found is not None
    assert (found.step, found.target_steps, found.eta_seconds) == (3, 12, 90.0)
    assert found.values == {"reward_mean": 0.03, "policy_loss": -0.003, "kl": 0.01}
    assert found.updated_at == now
    assert (found.checkpoint_step, found.checkpoint_saved_at) == (3, now)
    assert found.checkpoint_path == f"{RUN.checkpoint.directory}/checkpoints/step-000003"
    assert found.evaluation == (
        {"dataset": "heldout", "step": 0, "mean": 0.15},
        {"dataset": "heldout", "step": 3, "mean": 0.5},
    )
    assert found.evaluation_seconds == 40.0


def test_metrics_carry_every_canonical_name_and_no_label_but_namespace_and_run(tmp_path: Path) -> None:
    directory = directory_of(RUN, tmp_path)
    values = {metric.name: 0.5 for metric in TRAINER_METRICS}
    evaluation = {metric.name: 0.25 for metric in EVALUATION_METRICS}
    append(directory.metrics, a_record(4, time.time(), values=values | {"judge/accuracy": 0.75}))
    line = an_evaluation(0, 0.25, time.time()).to_line()
    document = json.loads(line) | {"values": evaluation}
    with directory.metrics.open("a", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")
    with a_sidecar(RUN, tmp_path) as sidecar:
        eventually(lambda: "tuningrun_eval_mean" in series(sidecar))
        found = series(sidecar)
        text = sidecar.get("/metrics")[1]
    own = {"namespace": "ml", "run": "math-agent"}
    for metric in TRAINER_METRICS:
        assert found[metric.series] == [(own, 0.5)]
    for metric in EVALUATION_METRICS:
        assert found[metric.series] == [(own | {"dataset": "heldout"}, 0.25)]
    assert found["tuningrun_judge_metric_mean"] == [(own | {"metric": "accuracy"}, 0.75)]
    assert found["tuningrun_step"] == [(own, 4.0)]
    assert found["tuningrun_target_steps"] == [(own, 12.0)]
    assert b"# TYPE tuningrun_tokens_total counter" in text
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "metrics"], input=text, check=True)


def test_a_value_that_the_newest_step_lacks_is_gone_from_metrics(tmp_path: Path) -> None:
    directory = directory_of(RUN, tmp_path)
    append(directory.metrics, a_record(1, time.time()))
    with a_sidecar(RUN, tmp_path) as sidecar:
        eventually(lambda: "tuningrun_reward_mean" in series(sidecar))
        record = a_record(2, time.time())
        document = json.loads(record.to_line())
        del document["values"]["reward_mean"]
        with directory.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")
        eventually(lambda: series(sidecar)["tuningrun_step"][0][1] == 2)
        assert "tuningrun_reward_mean" not in series(sidecar)


def test_lines_that_are_no_records_are_counted_and_skipped(tmp_path: Path) -> None:
    directory = directory_of(RUN, tmp_path)
    directory.metrics.write_bytes(b"{oops\n\xff\xfe\n\n" + a_record(3, time.time()).to_line().encode() + b"\n{torn")
    with a_sidecar(RUN, tmp_path) as sidecar:
        eventually(lambda: progress(sidecar).step == 3)
        assert series(sidecar)["tuningrun_sidecar_read_errors_total"][0][1] == 2


def test_the_log_is_served_from_any_offset_in_bounded_chunks(sidecar: Sidecar, directory: RunDirectory) -> None:
    log = directory.runner_log(2)
    log.parent.mkdir(parents=True)
    text = ("naïve ✓ line\n" * 40_000).encode()
    log.write_bytes(text)
    received, offset = b"", 0
    while True:
        status, body, headers = sidecar.get(f"/log?offset={offset}")
        assert status == 200
        assert len(body) <= LOG_CHUNK
        if not body:
            break
        received += body
        offset = int(headers["x-next-offset"])
    assert received == text
    assert offset == len(text)
    status, body, headers = sidecar.get("/log?offset=99999999")
    assert (status, body, headers["x-next-offset"]) == (200, b"", "99999999")
    assert sidecar.get("/log?offset=-1")[0] == 400
    assert sidecar.get("/log?offset=x")[0] == 400


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 200),
        ({"attempt": 2, "outcome": FAILED, "step": 3}, 200),
        ({"attempt": 1, "outcome": FAILED, "step": 3}, 404),
        ({"run_digest": "of other settings"}, 404),
    ],
)
def test_only_a_result_that_speaks_for_this_attempt_is_served(
    sidecar: Sidecar, directory: RunDirectory, changes: dict[str, object], status: int
) -> None:
    result = a_result(RUN, **changes)
    write_atomically(directory.result, result.to_text())
    answer = sidecar.get("/result")
    assert answer[0] == status
    if status == 200:
        assert RunResult.from_text(answer[1].decode()) == result


def test_a_damaged_result_is_no_result(sidecar: Sidecar, directory: RunDirectory) -> None:
    directory.result.write_bytes(b'{"outcome": "Succ')
    assert sidecar.get("/result")[0] == 404


def test_it_stays_small(sidecar: Sidecar) -> None:
    status = Path(f"/proc/{sidecar.process.pid}/status").read_text(encoding="ascii")
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident < 60 * 1024
