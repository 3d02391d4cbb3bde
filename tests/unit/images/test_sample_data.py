"""The questions of the samples: complete, split without a leak, and what their generators make."""

import json
from pathlib import Path

import pytest

from tests.unit.images.sources import IMAGES, load

MATH = IMAGES / "examples/math-agent"
TINY = IMAGES / "examples/tiny"


def rows_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def pairs_of(file: Path) -> list[tuple[object, ...]]:
    return [tuple(sorted((row["a"], row["b"]))) for row in rows_of(file)]  # type: ignore[type-var]


@pytest.mark.parametrize("sample", ["math-agent", "tiny"])
def test_the_committed_questions_are_those_that_the_generator_makes(sample: str) -> None:
    train, held_out = load(f"examples/{sample}/make_data.py").split()
    assert rows_of(IMAGES / "examples" / sample / "train.jsonl") == train
    assert rows_of(IMAGES / "examples" / sample / "heldout.jsonl") == held_out


@pytest.mark.parametrize("folder", [MATH, TINY], ids=["math-agent", "tiny"])
def test_no_question_is_in_both_sets_in_either_order(folder: Path) -> None:
    assert not set(pairs_of(folder / "train.jsonl")) & set(pairs_of(folder / "heldout.jsonl"))


@pytest.mark.parametrize("folder", [MATH, TINY], ids=["math-agent", "tiny"])
def test_every_answer_is_the_sum(folder: Path) -> None:
    for name in ("train.jsonl", "heldout.jsonl"):
        for row in rows_of(folder / name):
            assert row["answer"] == str(int(str(row["a"])) + int(str(row["b"])))
            assert f"{row['a']} + {row['b']}" in str(row["question"])


def test_a_pair_is_asked_once_and_the_worked_example_never() -> None:
    pairs = pairs_of(MATH / "train.jsonl") + pairs_of(MATH / "heldout.jsonl")
    assert len(pairs) == len(set(pairs))
    assert (25, 34) not in pairs


def test_all_numbers_have_two_digits_and_both_orders_occur() -> None:
    rows = rows_of(MATH / "train.jsonl") + rows_of(MATH / "heldout.jsonl")
    assert {len(str(row[key])) for row in rows for key in ("a", "b")} == {2}
    assert {int(str(row["a"])) < int(str(row["b"])) for row in rows} == {True, False}


def test_there_are_enough_held_out_questions_to_tell_runs_apart() -> None:
    assert len(rows_of(MATH / "heldout.jsonl")) >= 60


def test_another_seed_makes_another_split() -> None:
    make_data = load("examples/math-agent/make_data.py")
    assert make_data.split(1) != make_data.split(2)
