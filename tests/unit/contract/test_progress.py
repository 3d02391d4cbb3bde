"""What the sidecar says of a run's progress, read where a user's code may have said it instead."""

import json
from typing import Any

import pytest

from tuning_contract.progress import Progress

PROGRESS = Progress(
    attempt=2,
    step=5,
    target_steps=12,
    updated_at=1.5,
    eta_seconds=60,
    values={"reward_mean": 0.5, "kl": float("nan")},
    checkpoint_step=4,
    checkpoint_path="ml/x/checkpoints/step-000004",
    checkpoint_saved_at=1.0,
    evaluation=({"dataset": "heldout", "step": 0, "mean": 0.25},),
    evaluation_seconds=40.0,
)


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(PROGRESS.to_text()) | fields)


def test_a_progress_document_is_read_as_it_was_written() -> None:
    assert Progress.from_text(PROGRESS.to_text()).to_text() == PROGRESS.to_text()
    assert Progress.from_text('{"attempt": 1}') == Progress(attempt=1)


def test_a_newer_sidecars_fields_are_passed_over() -> None:
    assert Progress.from_text(changed(colour="red")).to_text() == PROGRESS.to_text()


@pytest.mark.parametrize(
    "fields",
    [
        {"attempt": "2"},
        {"attempt": None},
        {"step": 5.5},
        {"step": -1},
        {"step": 10**30},
        {"target_steps": True},
        {"checkpoint_step": []},
        {"updated_at": "now"},
        {"updated_at": 10**400},
        {"eta_seconds": "soon"},
        {"checkpoint_saved_at": None},
        {"checkpoint_path": 7},
        {"checkpoint_path": "\ud83d"},
        {"values": [0.5]},
        {"values": {"kl": "0.1"}},
        {"values": {"\ud83d": 0.1}},
        {"evaluation_seconds": "long"},
        {"evaluation": None},
        {"evaluation": "all"},
        {"evaluation": [["dataset"]]},
        {"evaluation": [{"dataset": 1, "step": 0, "mean": 0.5}]},
        {"evaluation": [{"dataset": "heldout", "mean": 0.5}]},
        {"evaluation": [{"dataset": "heldout", "step": 0, "mean": "half"}]},
    ],
)
def test_a_progress_document_with_a_wrong_type_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a progress document"):
        Progress.from_text(changed(**fields))


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", "[" * 100_000, b"\xff"])
def test_what_is_no_progress_document_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        Progress.from_text(text)
