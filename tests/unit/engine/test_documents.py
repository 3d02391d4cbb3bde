"""What pods send is read with its types, or not at all: it decides how a run ends."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.builders import UID
from tuning_contract.result import EvaluationFigures, RunResult
from tuning_contract.termination import LIMIT, TerminationMessage
from tuning_operator.engine import evidence

MESSAGE = TerminationMessage("Succeeded", step=12, target_steps=12, metrics={"policy_loss": float("nan"), "kl": 1})
RESULT = RunResult(
    UID, "d", 1, "Succeeded", 12, 12, 0.0, final_model="x", evaluation=(EvaluationFigures("heldout", 12, 0.9, 8, 0),)
)


def test_a_message_and_a_result_are_read_as_they_were_written() -> None:
    again = TerminationMessage.from_text(MESSAGE.to_text())
    assert again is not None
    assert (again.step, str(again.metrics["policy_loss"])) == (12, "nan")
    assert RunResult.from_text(RESULT.to_text()) == RESULT


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": None},
        {"message": ["a"]},
        {"message": "\ud800"},
        {"checkpoint": 3},
        {"step": "12"},
        {"step": True},
        {"step": -1},
        {"target_steps": 12.0},
        {"target_steps": 10**30},
        {"metrics": [1]},
        {"metrics": {"kl": "much"}},
        {"metrics": {"kl": 10**400}},
    ],
)
def test_a_message_with_a_wrong_type_is_no_message(wrong: dict[str, Any]) -> None:
    assert TerminationMessage.from_text(json.dumps(asdict(MESSAGE) | wrong)) is None


@pytest.mark.parametrize(
    "long",
    [
        {"message": "🦙" * 3000},
        {"checkpoint": "c" * 3000, "message": "boom"},
        {"metrics": {f"m{n}": 1.0 for n in range(1000)}},
        {"cause": "c" * 3000},
    ],
)
def test_a_message_is_within_its_limit_whatever_is_long(long: dict[str, Any]) -> None:
    text = replace(MESSAGE, **long).to_text()
    assert len(text.encode()) <= LIMIT
    again = TerminationMessage.from_text(text)
    assert again is not None
    assert (again.outcome, again.step) == ("Succeeded", 12)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "Killed", "[" * 4000])
def test_the_last_lines_of_a_log_are_no_message(text: str) -> None:
    assert TerminationMessage.from_text(text) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": "12"},
        {"run_uid": None},
        {"finished_at": "now"},
        {"metrics": {"kl": None}},
        {"evaluation": [{"dataset": "heldout", "step": 12, "mean": "0.9", "episodes": 8, "unscored": 0}]},
        {"evaluation": [{"dataset": 1, "step": 12, "mean": 0.9, "episodes": 8, "unscored": 0}]},
        {"evaluation": [3]},
    ],
)
def test_a_result_with_a_wrong_type_is_no_result(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a result"):
        RunResult.from_text(json.dumps(json.loads(RESULT.to_text()) | wrong))


def test_a_result_nested_without_end_is_no_result() -> None:
    with pytest.raises(ValueError, match="not a result"):
        RunResult.from_text("[" * 100_000)


def test_no_steps_at_all_are_no_complete_run() -> None:
    assert evidence.is_complete(MESSAGE)
    assert not evidence.is_complete(replace(MESSAGE, step=0, target_steps=0))
    assert RESULT.complete
    assert not replace(RESULT, step=0, target_steps=0).complete
