"""Figures of an evaluation: failures can only make the gain smaller, and too many of them give no figure."""

import pytest

from tuning_contract.metrics import EVALUATION, MetricRecord
from tuning_contract.outcomes import Outcome
from tuning_runner.episodes.record import EpisodeRecord
from tuning_runner.evaluation import evaluate_records, judge_metrics, recorded_evaluations


def a_record(task=0, reward: float | None = 1.0, outcome=Outcome.COMPLETED, **metrics: float) -> EpisodeRecord:
    return EpisodeRecord(
        mode="eval:heldout", episode=f"0.{task}.0", group=f"0.{task}", task_id="", run_attempt=1, tries=1, seed=0,
        policy_version=0, outcome=outcome, reward=reward, metrics=metrics,
    )  # fmt: skip


def failed(task=0) -> EpisodeRecord:
    return a_record(task, reward=None, outcome=Outcome.MODEL_ERROR)


def test_the_mean_is_over_episodes_and_the_spread_over_tasks():
    records = [a_record(0, 1.0), a_record(0, 0.0), a_record(1, 1.0), a_record(1, 1.0)]
    figures = evaluate_records(records, "heldout", 5, 9.5).figures
    assert figures is not None
    assert (figures.dataset, figures.step, figures.mean, figures.episodes, figures.unscored) == (
        "heldout",
        5,
        0.75,
        4,
        0,
    )
    values = evaluate_records(records, "heldout", 5, 9.5).values
    assert values["stddev"] == pytest.approx(0.3535, abs=1e-3)
    assert values["seconds"] == 9.5


def test_an_episode_without_a_score_counts_for_the_base_model_and_against_the_tuned_one():
    records = [a_record(0, 0.5)] * 99 + [failed(1)]
    base, tuned = (evaluate_records(records, "heldout", step, 9.5).figures for step in (0, 7))
    assert base is not None
    assert tuned is not None
    assert base.mean == pytest.approx((99 * 0.5 + 1) / 100)
    assert tuned.mean == pytest.approx(99 * 0.5 / 100)
    assert (base.unscored, tuned.unscored) == (1, 1)


def test_above_two_percent_without_a_score_there_is_no_figure():
    exactly = [a_record(0, 0.5)] * 98 + [failed()] * 2
    above = [a_record(0, 0.5)] * 97 + [failed()] * 3
    assert evaluate_records(exactly, "heldout", 0, 9.5).figures is not None
    evaluation = evaluate_records(above, "heldout", 0, 9.5)
    assert evaluation.figures is None
    assert "mean" not in evaluation.values
    assert evaluation.values["unscored_ratio"] == pytest.approx(0.03)


def test_metrics_of_the_judge_are_averaged_over_the_episodes_that_have_them():
    records = [a_record(tool_called=1.0, right=1.0), a_record(tool_called=0.0)]
    assert judge_metrics(records) == {"judge/right": 1.0, "judge/tool_called": 0.5}
    figures = evaluate_records(records, "heldout", 0, 9.5).figures
    assert figures is not None
    assert figures.metrics == {"right": 1.0, "tool_called": 0.5}


def test_a_restarted_run_finds_the_base_models_figures_in_the_metric_records():
    evaluation = evaluate_records([a_record(tool_called=1.0)], "heldout", 0, 9.5)
    records = [
        MetricRecord(1.0, 1, "trainer", 0, 4, {"reward_mean": 1.0}),
        MetricRecord(1.0, 1, EVALUATION, 0, 4, {"mean": 0.2}, "heldout"),
        MetricRecord(1.0, 2, EVALUATION, 0, 4, evaluation.values, "heldout"),
        MetricRecord(1.0, 1, EVALUATION, 4, 4, {"mean": 0.1}, "heldout"),
    ]
    found = recorded_evaluations(records, step=0)
    assert found == {"heldout": evaluation}
    assert found["heldout"].figures == evaluation.figures
