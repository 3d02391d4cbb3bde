"""Remote-write against a real Prometheus."""

import signal
import threading
import time
from pathlib import Path

from tests.unit.sidecar.documents import a_record, a_run, an_evaluation, append, directory_of
from tests.unit.sidecar.processes import Prometheus, a_sidecar, eventually
from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import RunDocument
from tuning_sidecar.remote_write import Patience, RemoteWriter
from tuning_sidecar.remote_write_client import RemoteWriteClient
from tuning_sidecar.remote_write_mark import Mark
from tuning_sidecar.series import SeriesMapper


def a_writer(run: RunDocument, directory: RunDirectory, attempt: int = 1, **patience: float) -> RemoteWriter:
    assert run.metrics.remote_write is not None
    return RemoteWriter(
        RemoteWriteClient(run.metrics.remote_write.url),
        directory.metrics,
        directory.remote_write_mark,
        SeriesMapper(run, attempt),
        Patience(**({"period": 0.05} | patience)),  # type: ignore[arg-type]
    )


def counted(step: int) -> dict[str, float]:
    """What the runner counts of the run, which a checkpoint restores."""
    return {"tokens": 100.0 * step}


def drained(writer: RemoteWriter) -> RemoteWriter:
    """Let it push what there is and end its series."""
    stop = threading.Event()
    stop.set()
    writer.run(stop)
    return writer


def test_every_step_arrives_at_its_own_time_with_the_labels_of_the_scrape(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    run = a_run("every-step", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    start = round(time.time() - 1200, 3)
    records = [a_record(step, start + 2.5 * step, values={"judge/calls": 1.0 * step}) for step in range(1, 301)]
    append(directory.metrics, *records)

    writer = drained(a_writer(run, directory, batch=100))

    assert prometheus.points('tuningrun_reward_mean{run="every-step"}') == [
        (round(record.ts, 3), record.values["reward_mean"]) for record in records
    ]
    assert prometheus.points('tuningrun_policy_loss{run="every-step"}') == [
        (round(record.ts, 3), record.values["policy_loss"]) for record in records
    ]
    assert [value for _, value in prometheus.points('tuningrun_step{run="every-step"}')] == list(range(1, 301))
    assert writer.statistics.samples["rejected"] == writer.statistics.samples["dropped"] == 0
    (series,) = prometheus.query('tuningrun_judge_metric_mean{run="every-step"}[1h]')
    assert series["metric"] == {
        "__name__": "tuningrun_judge_metric_mean",
        "namespace": "ml",
        "run": "every-step",
        "metric": "calls",
    }


def test_evaluations_carry_their_dataset(prometheus: Prometheus, tmp_path: Path) -> None:
    run = a_run("evaluated", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    now = round(time.time() - 100, 3)
    append(directory.metrics, an_evaluation(0, 0.15, now), an_evaluation(12, 0.95, now + 60))

    drained(a_writer(run, directory))

    points = prometheus.points('tuningrun_eval_mean{namespace="ml", run="evaluated", dataset="heldout"}')
    assert points == [(now, 0.15), (round(now + 60, 3), 0.95)]


def test_a_killed_sidecar_goes_on_where_it_was(prometheus: Prometheus, tmp_path: Path) -> None:
    run = a_run("killed", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    start = round(time.time() - 600, 3)
    records = [a_record(step, start + step) for step in range(1, 51)]
    with a_sidecar(run, tmp_path) as first:
        append(directory.metrics, *records[:30])
        eventually(lambda: Mark.load(directory.remote_write_mark).offset == directory.metrics.stat().st_size)
        first.stop(signal.SIGKILL)
    append(directory.metrics, *records[30:])
    with a_sidecar(run, tmp_path) as second:
        eventually(lambda: len(prometheus.points('tuningrun_step{run="killed"}')) == 50)
        text = second.get("/metrics")[1].decode()
        assert second.stop() == 0

    assert prometheus.points('tuningrun_step{run="killed"}') == [(round(r.ts, 3), r.step) for r in records]
    for outcome in ("rejected", "dropped"):
        name = "tuningrun_sidecar_remote_write_samples_total"
        assert f'{name}{{namespace="ml",outcome="{outcome}",run="killed"}} 0.0' in text


def test_a_crash_between_push_and_mark_loses_no_new_step(prometheus: Prometheus, tmp_path: Path) -> None:
    run = a_run("unmarked", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    start = round(time.time() - 300, 3)
    records = [a_record(step, start + step) for step in range(1, 9)]
    append(directory.metrics, *records[:5])
    with a_sidecar(run, tmp_path) as first:
        eventually(lambda: Mark.load(directory.remote_write_mark).offset == directory.metrics.stat().st_size)
        first.stop(signal.SIGKILL)
    directory.remote_write_mark.unlink()
    append(directory.metrics, *records[5:])

    # Old and new steps go into one request, which Prometheus refuses as a whole.
    writer = drained(a_writer(run, directory))

    assert prometheus.points('tuningrun_step{run="unmarked"}') == [(round(r.ts, 3), r.step) for r in records]
    assert writer.statistics.samples == {"ok": 4 * 7, "rejected": 4 * 7, "dropped": 0}


def test_a_torn_line_is_pushed_when_it_is_whole(prometheus: Prometheus, tmp_path: Path) -> None:
    run = a_run("torn", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    now = round(time.time() - 30, 3)
    line = a_record(2, now + 1).to_line() + "\n"
    with a_sidecar(run, tmp_path) as sidecar:
        append(directory.metrics, a_record(1, now))
        with directory.metrics.open("a", encoding="utf-8") as file:
            file.write(line[:40])
        eventually(lambda: prometheus.points('tuningrun_step{run="torn"}') == [(now, 1.0)])
        time.sleep(1.2)
        assert prometheus.points('tuningrun_step{run="torn"}') == [(now, 1.0)]
        with directory.metrics.open("a", encoding="utf-8") as file:
            file.write(line[40:])
        eventually(lambda: len(prometheus.points('tuningrun_step{run="torn"}')) == 2)
        assert b"tuningrun_sidecar_read_errors_total" in sidecar.get("/metrics")[1]
    assert prometheus.points('tuningrun_step{run="torn"}') == [(now, 1.0), (round(now + 1, 3), 2.0)]


def test_sigterm_pushes_the_last_step_and_ends_the_series_within_seconds(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    run = a_run("ended", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    append(directory.metrics, a_record(1, time.time() - 5))
    with a_sidecar(run, tmp_path) as sidecar:
        eventually(lambda: len(prometheus.query('tuningrun_reward_mean{run="ended"}')) == 1)
        append(directory.metrics, a_record(2, time.time()))
        started = time.monotonic()
        assert sidecar.stop() == 0
        assert time.monotonic() - started < 5

    assert [value for _, value in prometheus.points('tuningrun_step{run="ended"}')] == [1.0, 2.0]
    time.sleep(0.01)
    assert prometheus.query('{run="ended"}') == []


def test_a_clock_that_runs_ahead_or_jumps_back_costs_no_step(prometheus: Prometheus, tmp_path: Path) -> None:
    run = a_run("clocks", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    now = time.time()
    append(directory.metrics, a_record(1, now - 60), a_record(2, now - 90), a_record(3, now + 7200))

    writer = drained(a_writer(run, directory))

    points = prometheus.points('tuningrun_step{run="clocks"}')
    assert [value for _, value in points] == [1.0, 2.0, 3.0]
    assert points[2][0] <= time.time()
    assert writer.statistics.samples["rejected"] == 0


def test_a_run_that_goes_on_in_a_second_attempt_continues_its_series(prometheus: Prometheus, tmp_path: Path) -> None:
    run = a_run("again", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    start = time.time() - 30
    append(directory.metrics, *(a_record(step, start + step, values=counted(step)) for step in (1, 2, 3)))
    drained(a_writer(run, directory, attempt=1))
    # The checkpoint is the first step's: the second and the third are done again.
    moment = time.time() + 0.1
    again = [a_record(step, moment + step / 10, attempt=2, values=counted(step)) for step in (2, 3, 4)]
    append(directory.metrics, *again)
    time.sleep(0.6)
    writer = drained(a_writer(run, directory, attempt=2))

    points = prometheus.points('tuningrun_step{run="again"}')
    assert [value for _, value in points] == [1.0, 2.0, 3.0, 2.0, 3.0, 4.0]
    assert [at for at, _ in points[3:]] == [round(record.ts, 3) for record in again]
    tokens = [value for _, value in prometheus.points('tuningrun_tokens_total{run="again"}')]
    assert tokens == [100.0, 200.0, 300.0, 300.0, 300.0, 400.0]
    assert writer.statistics.samples["rejected"] == 0


def test_steps_that_a_killed_attempt_left_unsent_come_before_those_of_the_next(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    run = a_run("unsent", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    start = round(time.time() - 60, 3)
    first = [a_record(step, start + step, values=counted(step)) for step in (1, 2, 3)]
    append(directory.metrics, *first)
    with a_sidecar(run, tmp_path) as sidecar:
        eventually(lambda: Mark.load(directory.remote_write_mark).offset == directory.metrics.stat().st_size)
        sidecar.stop(signal.SIGKILL)
    late = a_record(4, start + 4, values=counted(4))
    second = [a_record(step, start + 20 + step, attempt=2, values=counted(step)) for step in (3, 4, 5)]
    append(directory.metrics, late, *second)

    writer = drained(a_writer(run, directory, attempt=2))

    expected = [(round(record.ts, 3), float(record.step)) for record in (*first, late, *second)]
    assert prometheus.points('tuningrun_step{run="unsent"}') == expected
    tokens = [value for _, value in prometheus.points('tuningrun_tokens_total{run="unsent"}')]
    assert tokens == [100.0, 200.0, 300.0, 400.0, 400.0, 400.0, 500.0]
    assert writer.statistics.samples["rejected"] == 0


def test_of_two_sidecars_only_that_of_the_newest_attempt_pushes_and_ends_the_series(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    run = a_run("two-sidecars", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    append(directory.metrics, a_record(1, time.time() - 20))
    stop = threading.Event()
    given_up = a_writer(run, directory, attempt=1)
    thread = threading.Thread(target=given_up.run, args=(stop,))
    thread.start()
    eventually(lambda: given_up.statistics.samples["ok"])
    # Its node is lost, the next attempt trains; the runner there has not noticed.
    append(directory.metrics, a_record(2, time.time() - 5, attempt=2), a_record(3, time.time() - 4, attempt=1))
    time.sleep(0.3)
    stop.set()
    thread.join()
    assert [value for _, value in prometheus.points('tuningrun_step{run="two-sidecars"}')] == [1.0]
    assert prometheus.query('tuningrun_step{run="two-sidecars"}') != []

    drained(a_writer(run, directory, attempt=2))

    assert [value for _, value in prometheus.points('tuningrun_step{run="two-sidecars"}')] == [1.0, 2.0]


def test_a_rewritten_shorter_file_is_neither_sent_twice_nor_skipped(prometheus: Prometheus, tmp_path: Path) -> None:
    run = a_run("shorter", prometheus.write_url)
    directory = directory_of(run, tmp_path)
    records = [a_record(step, round(time.time() - 60, 3) + step) for step in (1, 2, 3)]
    append(directory.metrics, *records)
    drained(a_writer(run, directory))
    directory.metrics.unlink()
    append(directory.metrics, records[0], a_record(2, time.time(), attempt=2))

    writer = drained(a_writer(run, directory, attempt=2))

    assert [value for _, value in prometheus.points('tuningrun_step{run="shorter"}')] == [1.0, 2.0, 3.0, 2.0]
    assert writer.statistics.samples["rejected"] == 0
