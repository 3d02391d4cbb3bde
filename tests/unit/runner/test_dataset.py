"""Task files of every format, and errors that say which line is wrong."""

import json
from pathlib import Path

import pytest

from tuning_contract.causes import Cause
from tuning_runner.dataset import DatasetError, load_dataset

ROWS = [{"question": "1 + 1", "answer": "2"}, {"question": "2 + 2", "answer": "4", "level": 3}]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_the_same_rows_have_the_same_digest_in_every_format(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"question": "1 + 1", "answer": "2"}, {"question": "2 + 2", "answer": "4"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found = [
        load_dataset(written(tmp_path, "rows.jsonl", lines(rows))),
        load_dataset(written(tmp_path, "rows.json", json.dumps(rows, indent=2))),
        load_dataset(tmp_path / "rows.parquet"),
    ]
    assert [list(dataset.rows) for dataset in found] == [rows] * 3
    assert len({dataset.digest for dataset in found}) == 1


def test_another_order_is_another_dataset(tmp_path):
    first = load_dataset(written(tmp_path, "a.jsonl", lines(ROWS)))
    second = load_dataset(written(tmp_path, "b.jsonl", lines(ROWS[::-1])))
    assert first.digest != second.digest


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path):
    written(tmp_path, "b.jsonl", lines(ROWS[1:]))
    written(tmp_path, "a.jsonl", lines(ROWS[:1]))
    written(tmp_path, "README.md", "not data")
    written(tmp_path, "..data.jsonl", lines(ROWS))
    assert list(load_dataset(tmp_path).rows) == ROWS


def test_empty_lines_are_passed_over(tmp_path):
    assert len(load_dataset(written(tmp_path, "a.jsonl", "\n" + lines(ROWS) + "\n\n")).rows) == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', r"line 2 of .*a\.jsonl is no JSON"),
        ("a.jsonl", '{"a": 1}\n[2]\n', r"line 2 of .*a\.jsonl must be a JSON object, not list"),
        ("a.json", '{"a": 1}', r"a\.json must be a JSON array"),
        ("a.json", "[1]", r"entry 0 of .*a\.json must be a JSON object, not int"),
        ("a.json", "[", r"a\.json is no JSON"),
        ("a.jsonl", "\n", r"has no rows"),
        ("a.csv", "a,b\n", r"has no rows"),
        ("a.csv", "a,b\n1,2\n3\n", r"line 3 of .*a\.csv has 1 values, but the header has 2 names"),
        ("a.csv", 'a,b\n"1\n2",3\n4,5,6\n', r"line 4 of .*a\.csv has 3 values, but the header has 2 names"),
        ("a.csv", "a,b,a\n1,2,3\n", r"line 1 of .*a\.csv, the header, has more than one column `a`"),
        ("a.csv", "a,,c, \n1,2,3,4\n", r"line 1 of .*a\.csv, the header, has no name for column 2, 4"),
        ("a.csv", 'a,b\n1,2\n"3,4\n', r"line 3 of .*a\.csv is no CSV: unexpected end of data"),
        ("a.csv", 'a,b\n"1"x,2\n', r"line 2 of .*a\.csv is no CSV"),
        ("a.jsonl.gz", "{}", r"a\.jsonl\.gz cannot be read: Not a gzipped file"),
        ("a.txt", "a", r"must end with one of \.jsonl, \.json, \.parquet, \.csv"),
        ("a.parquet.gz", "a", r"must end with one of \.jsonl"),
        ("a.parquet", "no parquet", r"is no readable Parquet file"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, name, text, message):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(DatasetError, match=message) as caught:
        load_dataset(written(tmp_path, name, text))
    assert caught.value.cause is Cause.DATASET_INVALID


def test_a_missing_file_shows_what_lies_beside_it(tmp_path):
    written(tmp_path, "train.jsonl", lines(ROWS))
    with pytest.raises(DatasetError, match=r"tasks\.jsonl does not exist; .* has: train\.jsonl"):
        load_dataset(tmp_path / "tasks.jsonl")


def test_an_empty_folder_is_no_dataset(tmp_path):
    with pytest.raises(DatasetError, match="has no file that ends with"):
        load_dataset(tmp_path)


def test_a_hidden_field_that_no_row_has_is_refused(tmp_path):
    path = written(tmp_path, "a.jsonl", lines(ROWS))
    assert load_dataset(path, ["level"]).rows
    with pytest.raises(DatasetError, match=r"hidden field `anwser`; its fields are: answer, level, question"):
        load_dataset(path, ["anwser"])


def test_half_a_letter_in_a_row_is_refused_with_the_rows_number(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"question": "whole \\ud83d\\ude00"}\n{"question": "half \\ud83d"}\n')
    with pytest.raises(
        DatasetError, match=r"row 2 of dataset .*tasks\.jsonl holds '\\ud83d', half of a surrogate pair"
    ):
        load_dataset(file)
