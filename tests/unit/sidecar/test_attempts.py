"""What state, `/metrics` and lineage make of a file that several attempts have written."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.sidecar.documents import a_record, a_run, an_evaluation, append, directory_of
from tuning_contract.checkpoint import MANIFEST, Manifest, write_atomically
from tuning_contract.metrics import MetricRecord
from tuning_sidecar.exposition import RunCollector, render
from tuning_sidecar.lineage import Lineage
from tuning_sidecar.series import SeriesMapper
from tuning_sidecar.state import RunState
from tuning_sidecar.watcher import Watcher

RUN = a_run()
START = 1_700_000_000.0


def a_step(step: int, attempt: int = 1, **values: float) -> MetricRecord:
    """Ten seconds a step, a hundred seconds between attempts; as many optimizer steps as steps."""
    counted = {"optimizer_steps": float(step), "tokens": 100.0 * step, "step_seconds": 8.0}
    return a_record(step, START + 10 * step + 100 * attempt, attempt, counted | values)


class Volume:
    """A run directory and the sidecar's view of it, pass by pass."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.directory = directory_of(RUN, root)

    def write(self, *records: MetricRecord) -> None:
        append(self.directory.metrics, *records)

    def save(self, step: int) -> None:
        manifest = Manifest(format="trl", step=step, policy_version=step, saved_at=START)
        write_atomically(self.directory.checkpoint(step) / MANIFEST, manifest.to_text())

    def sidecar(self, attempt: int) -> tuple[RunState, Watcher]:
        state = RunState(attempt)
        watcher = Watcher(self._root, self.directory, state, checkpoints=0.0)
        watcher.look()
        return state, watcher


def series(state: RunState, watcher: Watcher, attempt: int) -> dict[str, float]:
    text = render(RunCollector(state, watcher, SeriesMapper(RUN, attempt))).decode()
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    """Eight steps, the checkpoint after the sixth."""
    found = Volume(tmp_path)
    found.write(*(a_step(step) for step in range(1, 9)))
    found.save(6)
    return found


def test_a_resumed_attempt_stands_at_its_checkpoint_until_its_first_step(volume: Volume) -> None:
    state, watcher = volume.sidecar(attempt=2)
    progress = state.progress()
    assert (progress.attempt, progress.step, progress.target_steps, progress.checkpoint_step) == (2, 6, 12, 6)
    assert progress.values["reward_mean"] == 0.06
    assert progress.eta_seconds == (12 - 6) * 8.0

    volume.write(a_step(7, attempt=2))
    watcher.look()
    progress = state.progress()
    assert (progress.step, progress.values["reward_mean"], progress.eta_seconds) == (7, 0.07, 5 * 8.0)

    volume.write(a_step(8, attempt=2))
    watcher.look()
    assert state.progress().eta_seconds == 4 * 10.0


def test_an_attempt_that_begins_anew_stands_at_nought(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    volume.write(a_step(1), a_step(2))
    state, watcher = volume.sidecar(attempt=2)
    assert (state.progress().step, state.progress().values, state.progress().eta_seconds) == (0, {}, None)
    assert state.progress().target_steps == 12
    assert "tuningrun_step" not in series(state, watcher, attempt=2)


def test_counters_hold_their_highest_value_while_the_step_tells_the_truth(volume: Volume) -> None:
    state, watcher = volume.sidecar(attempt=2)
    shown = [series(state, watcher, attempt=2)]
    for step in (7, 8, 9):
        volume.write(a_step(step, attempt=2))
        watcher.look()
        shown.append(series(state, watcher, attempt=2))
    assert [found["tuningrun_step"] for found in shown] == [6, 7, 8, 9]
    assert [found["tuningrun_optimizer_steps_total"] for found in shown] == [8, 8, 8, 9]
    assert [found["tuningrun_tokens_total"] for found in shown] == [800, 800, 800, 900]
    assert [found["tuningrun_reward_mean"] for found in shown] == [0.06, 0.07, 0.08, 0.09]


def test_a_sidecar_that_restarts_within_the_attempt_knows_what_the_one_before_knew(volume: Volume) -> None:
    volume.write(a_step(7, attempt=2), a_step(8, attempt=2))
    volume.save(8)
    state, watcher = volume.sidecar(attempt=2)
    assert (state.progress().step, state.progress().eta_seconds) == (8, 40.0)
    assert series(state, watcher, attempt=2)["tuningrun_optimizer_steps_total"] == 8


def test_a_runner_that_nobody_reaches_does_not_disturb_the_attempt_that_followed(volume: Volume) -> None:
    state, watcher = volume.sidecar(attempt=2)
    volume.write(a_step(7, attempt=2), a_step(9, attempt=1), a_step(10, attempt=1))
    watcher.look()
    assert state.progress().step == 7
    assert series(state, watcher, attempt=2)["tuningrun_optimizer_steps_total"] == 8


def test_a_sidecar_whose_attempt_was_given_up_keeps_to_its_own(volume: Volume) -> None:
    state, watcher = volume.sidecar(attempt=1)
    volume.write(a_step(7, attempt=2), a_step(9, attempt=1))
    watcher.look()
    # Nothing of attempt 2; its own goes on, since nobody told it to stop.
    assert (state.progress().attempt, state.progress().step) == (1, 9)


def test_evaluations_of_lost_steps_are_gone_and_a_second_baseline_counts(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    baseline = an_evaluation(0, 0.0, START)
    without_figure = replace(baseline, values={"episodes": 120.0, "unscored_ratio": 0.5, "seconds": 90.0})
    volume.write(without_figure, a_step(3), an_evaluation(3, 0.4, START + 1), a_step(6), an_evaluation(6, 0.6, START))
    volume.save(3)
    state, watcher = volume.sidecar(attempt=2)
    assert state.progress().evaluation == ({"dataset": "heldout", "step": 3, "mean": 0.4},)
    volume.write(an_evaluation(0, 0.2, START + 200, attempt=2))
    watcher.look()
    assert state.progress().evaluation == (
        {"dataset": "heldout", "step": 0, "mean": 0.2},
        {"dataset": "heldout", "step": 3, "mean": 0.4},
    )
    # How long one may take is known from all of them.
    assert state.progress().evaluation_seconds == 90.0


def test_a_lineage_admits_what_its_attempt_and_those_before_it_wrote_in_turn() -> None:
    lineage = Lineage(own=2)
    assert [lineage.admits(a_step(1, attempt)) for attempt in (1, 2, 1, 2)] == [True, True, False, True]
    assert not lineage.superseded
    assert not lineage.admits(a_step(2, attempt=3))
    assert lineage.superseded


def test_a_record_without_a_counter_gets_none() -> None:
    lineage = Lineage(own=1)
    assert lineage.admits(a_step(3))
    bare = a_record(4, START)
    assert lineage.admits(bare)
    assert lineage.held(bare) == bare
