"""What a run reads, from files: every set is held to the run's hidden fields."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.runner.documents import a_run_document
from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import EvaluationSet
from tuning_runner.dataset import Dataset
from tuning_runner.dataset_formats import DatasetError
from tuning_runner.sources import Sources


def held_out(root: Path, *rows: dict[str, str]) -> Dataset:
    """An evaluation set of a run that hides `answer`."""
    file = root / "hard.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = a_run_document()
    run = replace(run, dataset=replace(run.dataset, hidden_fields=("answer",)))
    return Sources(run, RunDirectory(root), print).evaluation_tasks(EvaluationSet("hard", str(file)))


def test_an_evaluation_set_that_has_the_solution_under_another_name_is_refused(tmp_path: Path) -> None:
    message = (
        r"dataset .*hard\.jsonl \(evaluation set hard\) has the hidden field `answer`; its fields are: q, solution"
    )
    with pytest.raises(DatasetError, match=message):
        held_out(tmp_path, {"q": "1 + 1", "solution": "2"})


def test_an_evaluation_set_with_the_hidden_field_in_one_row_is_read(tmp_path: Path) -> None:
    assert len(held_out(tmp_path, {"q": "1 + 1", "answer": "2"}, {"q": "?"}).rows) == 2
