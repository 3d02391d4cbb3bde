"""Task files of every format, the split of a folder, and errors that say which line is wrong."""

import datetime
import decimal
import gzip
import json
from pathlib import Path

import pytest

from tuning_contract.causes import Cause
from tuning_runner.dataset import load_dataset
from tuning_runner.dataset_files import EVALUATION_SPLITS, TRAINING_SPLITS
from tuning_runner.dataset_formats import DatasetError

ROWS = [{"question": "1 + 1", "answer": "2"}, {"question": "2 + 2", "answer": "4", "level": 3}]
NESTED = "[" * 100_000 + "]" * 100_000


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
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(lines(rows).encode()))
    found = [
        load_dataset(written(tmp_path, "rows.jsonl", lines(rows))),
        load_dataset(written(tmp_path, "rows.json", json.dumps(rows, indent=2))),
        load_dataset(written(tmp_path, "rows.csv", "question,answer\n1 + 1,2\n2 + 2,4\n")),
        load_dataset(tmp_path / "rows.parquet"),
        load_dataset(tmp_path / "rows.jsonl.gz"),
    ]
    assert [list(dataset.rows) for dataset in found] == [rows] * 5
    assert len({dataset.digest for dataset in found}) == 1


def test_a_csv_file_follows_rfc_4180_and_gives_strings(tmp_path):
    text = '\ufeffquestion,answer\r\n"a ""b"", c\r\nd",007\r\n\r\n,1.5\r\n'
    (tmp_path / "a.csv").write_bytes(text.encode())
    rows = load_dataset(tmp_path / "a.csv").rows
    assert rows == ({"question": 'a "b", c\r\nd', "answer": "007"}, {"question": "", "answer": "1.5"})


def test_a_csv_value_may_be_longer_than_the_limit_of_pythons_reader(tmp_path):
    long = "x" * 200_000
    assert load_dataset(written(tmp_path, "a.csv", f"prompt\n{long}\n")).rows == ({"prompt": long},)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC), "datetime"),
        (datetime.date(2024, 5, 1), "date"),
        (datetime.timedelta(seconds=1), "timedelta"),
        (decimal.Decimal("1.50"), "Decimal"),
        (b"png", "bytes"),
        ([{"at": datetime.time(1)}], "time"),
    ],
)
def test_what_no_json_object_can_hold_is_refused_by_its_column(tmp_path, value, kind):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([{"q": "1", "x": value}]), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=rf"row 0 of .* has a value of type {kind} in the column `x`.*as text"):
        load_dataset(tmp_path / "a.parquet")


def test_the_nested_values_of_a_parquet_file_are_plain_json(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    row = {"turns": [{"role": "user", "n": 1}], "ratio": 0.5, "ok": True, "missing": None}
    table = pyarrow.Table.from_pylist([row]).append_column(
        "map", pyarrow.array([[("a", 1)]], type=pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    assert load_dataset(tmp_path / "a.parquet").rows == (row | {"map": {"a": 1}},)


def a_folder(root: Path, *names: str) -> Path:
    """A folder of task files, each with one row that tells its name."""
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"file\n{name}\n" if name.endswith(".csv") else json.dumps({"file": name}) + "\n")
    return root


@pytest.mark.parametrize(
    ("split", "names", "shown"),
    [
        (None, ("train.jsonl", "train.csv", "train_small.jsonl"), "train.csv and train.jsonl"),
        ("train", ("train.jsonl", "train.csv"), "train.csv and train.jsonl"),
        ("train", ("train.jsonl", "train.jsonl.gz"), "train.jsonl and train.jsonl.gz"),
        (None, ("train.jsonl", "data/train-0.jsonl"), "train.jsonl and data/train-0.jsonl"),
        (None, ("train.jsonl", "train-0.jsonl"), "train-0.jsonl and train.jsonl"),
        (None, ("train.jsonl", "train/a.jsonl"), "train.jsonl and train/a.jsonl"),
        (None, ("data/train.jsonl", "data/train/a.jsonl"), "data/train.jsonl and data/train/a.jsonl"),
        (None, ("train-0.jsonl", "train-0.csv"), "train-0.csv and train-0.jsonl"),
        (None, ("train-0-of-1.jsonl", "train-1-of-2.jsonl"), "train-0-of-1.jsonl and train-1-of-2.jsonl"),
        (None, ("train-0.jsonl", "train_1.jsonl"), "train-0.jsonl and train_1.jsonl"),
        (None, ("train/a.jsonl", "train/a.csv"), "train/a.csv and train/a.jsonl"),
        (None, ("tasks.jsonl", "tasks.csv"), "tasks.csv and tasks.jsonl"),
        (None, ("a.jsonl", "b.jsonl", "b.jsonl.gz"), "b.jsonl and b.jsonl.gz"),
    ],
)
def test_files_that_may_hold_the_same_tasks_are_refused(
    tmp_path: Path, split: str | None, names: tuple[str, ...], shown: str
) -> None:
    folder = a_folder(tmp_path, *names)
    with pytest.raises(DatasetError) as caught:
        load_dataset(folder, split=split)
    assert f"has {shown}, which may hold the same tasks" in caught.value.message
    assert "remove one of them, or set `path` to the file or folder that you mean" in caught.value.message


def test_a_folder_of_parts_that_are_named_in_words_is_not_read_whole(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "train_small.jsonl", "train_big.jsonl")
    with pytest.raises(DatasetError, match=r"has train_big\.jsonl, which is named .* set `split` .*, as train_big"):
        load_dataset(folder)
    assert len(load_dataset(folder, split="train_big").rows) == 1


def test_a_file_beside_a_folder_of_such_parts_is_not_taken_for_the_tasks(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, "infos.json", "data/train_small.jsonl")
    with pytest.raises(DatasetError, match=r"has train_small\.jsonl, which is named .*, as train_small"):
        load_dataset(folder)


HASHED = ("data/train-00000-of-00002-a09b74b3ef9c3b56.jsonl", "data/train-00001-of-00002-3f1c74b3ef9c3b56.jsonl")
SHARDS = ("data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/test-00000-of-00001.jsonl")


@pytest.mark.parametrize(
    ("names", "split", "usual", "expected"),
    [
        (("train.jsonl", "test.jsonl"), None, TRAINING_SPLITS, ("train.jsonl",)),
        (("train.jsonl", "test.jsonl"), None, EVALUATION_SPLITS, ("test.jsonl",)),
        (("train.jsonl", "heldout.csv"), None, EVALUATION_SPLITS, ("heldout.csv",)),
        (("validation.jsonl", "heldout.csv"), None, EVALUATION_SPLITS, ("validation.jsonl",)),
        (("train.jsonl", "test.jsonl"), "test", TRAINING_SPLITS, ("test.jsonl",)),
        (("dev.jsonl", "devices.jsonl"), "dev", EVALUATION_SPLITS, ("dev.jsonl",)),
        (("hard_2.jsonl", "hard_1.csv", "easy.csv"), "hard", TRAINING_SPLITS, ("hard_1.csv", "hard_2.jsonl")),
        (("train/part-0.csv", "train/part-1.csv", "test/part-0.csv"), "train", TRAINING_SPLITS,
         ("train/part-0.csv", "train/part-1.csv")),
        (SHARDS, None, TRAINING_SPLITS, SHARDS[:2]),
        (SHARDS, None, EVALUATION_SPLITS, SHARDS[2:]),
        ((*HASHED, "dataset_infos.json"), None, TRAINING_SPLITS, HASHED),
        (("train/algebra.jsonl", "train/geometry.csv"), None, TRAINING_SPLITS,
         ("train/algebra.jsonl", "train/geometry.csv")),
        (("algebra.jsonl", "geometry.csv"), None, TRAINING_SPLITS, ("algebra.jsonl", "geometry.csv")),
        (("data/test/a.jsonl", "data/train/a.jsonl"), None, EVALUATION_SPLITS, ("data/test/a.jsonl",)),
        (("a.jsonl", "b.jsonl", "other/c.jsonl"), None, TRAINING_SPLITS, ("a.jsonl", "b.jsonl")),
        (("trains.jsonl", "tests.jsonl"), None, EVALUATION_SPLITS, ("tests.jsonl", "trains.jsonl")),
        (("train.jsonl", ".train.jsonl", "train.md"), None, TRAINING_SPLITS, ("train.jsonl",)),
        (("train.jsonl", "train_small.jsonl", "train-mini.csv"), None, TRAINING_SPLITS, ("train.jsonl",)),
        (("train.jsonl", "train_small.jsonl"), "train_small", TRAINING_SPLITS, ("train_small.jsonl",)),
        (("train.jsonl", "data/train_small.jsonl"), "train_small", TRAINING_SPLITS, ("data/train_small.jsonl",)),
        (("train-1.jsonl", "train-0.jsonl"), None, TRAINING_SPLITS, ("train-0.jsonl", "train-1.jsonl")),
        (("train.jsonl", "test.jsonl", "data/test.jsonl"), None, TRAINING_SPLITS, ("train.jsonl",)),
    ],
)  # fmt: skip
def test_the_split_of_a_folder_is_found_by_the_usual_names(tmp_path, names, split, usual, expected):
    rows = load_dataset(a_folder(tmp_path, *names), split=split, usual_splits=usual).rows
    assert tuple(row["file"] for row in rows) == expected


@pytest.mark.parametrize(
    ("names", "split", "usual", "message"),
    [
        (("test.jsonl", "dev/a.csv"), None, TRAINING_SPLITS,
         r"has the splits `test`, `dev`, but none that is called `train`: set `split` to"),
        (("train.jsonl",), None, EVALUATION_SPLITS,
         r"has the splits `train`, but none that is called `test`, `validation`, `heldout`: set `split`"),
        (("train.jsonl", "other/a.csv"), "test", TRAINING_SPLITS,
         r"has no files of the split `test`, such as test\.jsonl, .* or a folder test/; it has: other/, train\.jsonl"),
        (("other/a.csv",), None, TRAINING_SPLITS, r"has no file that ends with .*; it has: other/"),
    ],
)  # fmt: skip
def test_a_folder_without_the_split_says_what_it_has(tmp_path, names, split, usual, message):
    with pytest.raises(DatasetError, match=message):
        load_dataset(a_folder(tmp_path, *names), split=split, usual_splits=usual)


def test_a_split_of_one_file_is_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"is one file, of which `split` cannot choose any: remove `split: test`"):
        load_dataset(written(tmp_path, "a.jsonl", lines(ROWS)), split="test")


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
        ("a.jsonl", '{"a": 1}\n{"a": NaN}\n', r"line 2 of .*a\.jsonl has NaN, which is no JSON: write null"),
        ("a.jsonl", '{"a": -Infinity}\n', r"line 1 of .*a\.jsonl has -Infinity, which is no JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": 1e999}\n', r"row 2 of dataset .*a\.jsonl holds a number that is not finite"),
        ("a.json", '[{"\\"NaN": "NaN"},\n{"a": Infinity}]', r"line 2 of .*a\.json has Infinity, which is no JSON"),
        ("a.jsonl", "{}\n" + NESTED, r"line 2 of .*a\.jsonl has more lists and objects within each other"),
        ("a.json", NESTED, r"a\.json has more lists and objects within each other than can be read: make it"),
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


def test_a_number_that_is_not_finite_is_refused_in_a_table_too(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([{"x": 1.0}, {"x": float("nan")}]), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=r"row 2 of dataset .*a\.parquet holds a number that is not finite"):
        load_dataset(tmp_path / "a.parquet")
