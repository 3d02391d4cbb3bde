"""Tasks from a hub: which rows they are, what is not downloaded again, and what each refusal says."""

import datetime
import io
import json
from typing import Any

import pytest

from tests.unit.runner.documents import TINY
from tests.unit.runner.hub_scene import Refused, Scene, lines, refuse
from tuning_contract.run_document import HubSource
from tuning_runner.dataset import load_dataset

pytest.importorskip("datasets")
CARD = """---
configs:
- {config_name: main, data_files: [{split: train, path: main/train*}, {split: test, path: main/test*}]}
- {config_name: socratic, data_files: [{split: train, path: socratic/train*}]}
---
"""


@pytest.fixture(scope="module")
def tasks(scene: Scene) -> None:
    scene.repository("datasets", "rows", {"train.jsonl": (TINY / "train.jsonl").read_text()})
    for name in ("gated-rows", "private"):
        scene.repository("datasets", name, {"train.jsonl": lines([{"q": "1"}])})
    subsets = {"main/train.csv": "q\na\n", "main/test.csv": "q\nb\n", "socratic/train.csv": "q\nc\n"}
    scene.repository("datasets", "subsets", {"README.md": CARD, **subsets})
    scene.repository("datasets", "broken", {"train.jsonl": '{"q": 1}\n{"q": \n'})
    scene.repository("datasets", "empty", {"README.md": "nothing yet"})
    scene.repository("datasets", "script", {"script.py": "import os"})
    date = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)
    albums = a_table([{"picture": PICTURE}], {"feature": {"picture": IMAGE}, "_type": "List"})
    scene.repository("datasets", "dates", {"train.parquet": a_table(date, TIMESTAMP)})
    scene.repository("datasets", "pictures", {"train.parquet": a_table(PICTURE, IMAGE)})
    scene.repository("datasets", "albums", {"train.parquet": albums})


TIMESTAMP = {"dtype": "timestamp[us, tz=UTC]", "_type": "Value"}
IMAGE = {"_type": "Image"}
PICTURE = {"bytes": b"png", "path": "a.png"}


def a_table(value: Any, feature: dict[str, Any]) -> bytes:
    """A Parquet file with one row, whose column `x` is of this feature."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"q": {"dtype": "string", "_type": "Value"}, "x": feature}
    table = pyarrow.Table.from_pylist([{"q": "1", "x": value}])
    content = io.BytesIO()
    metadata = {"huggingface": json.dumps({"info": {"features": columns}})}
    parquet.write_table(table.replace_schema_metadata(metadata), content)
    return content.getvalue()


DATASET_REFUSALS = {
    "unknown": Refused(r"no dataset org/missing: check `dataset\.train\.huggingFace\.repo`", "org/missing"),
    "private": Refused(r"no dataset org/private: check", "org/private"),
    "gated": Refused(r"dataset org/gated-rows of the hub is gated: accept its terms", "org/gated-rows"),
    "revision": Refused(r"`dataset\.train\.huggingFace\.revision` v9 is no branch, tag or commit", revision="v9"),
    "split": Refused(r"`dataset\.train\.huggingFace\.split` dev is no split of org/rows; it has: train", split="dev"),
    "no split": Refused(r"`dataset\.train\.huggingFace\.split` is missing", split=None),
    "no subset": Refused(
        r"`dataset\.train\.huggingFace\.subset` is missing, but there are several .*; it has: main, socratic",
        "org/subsets",
    ),
    "subset": Refused(
        r"`dataset\.train\.huggingFace\.subset` extra is no subset of org/subsets; it has: main, socratic",
        "org/subsets",
        subset="extra",
    ),
    "split of a subset": Refused(
        r"split` test is no split of org/subsets \(subset socratic\); it has: train",
        "org/subsets",
        subset="socratic",
        split="test",
    ),
    "broken file": Refused(r"dataset org/broken of the hub cannot be read; check `dataset\.train", "org/broken"),
    "no files": Refused(r"dataset org/empty of the hub cannot be read; check", "org/empty"),
    "script": Refused(r"Dataset scripts are no longer supported", "org/script"),
    "date": Refused(r"row 0 of org/dates, split train has a value of type datetime in the column `x`", "org/dates"),
    "pictures in a list": Refused(r"column `x` of dataset org/albums holds values of type Image", "org/albums"),
    "picture": Refused(r"the column `x` of dataset org/pictures holds values of type Image", "org/pictures"),
}


@pytest.mark.parametrize("case", DATASET_REFUSALS)
def test_tasks_that_cannot_be_had_say_what_to_change(scene, tasks, case):
    refuse(scene, "train", DATASET_REFUSALS[case], "DatasetInvalid")


def test_the_field_of_an_evaluation_set_is_named_with_the_set(scene, tasks):
    answer = scene.load("heldout", HubSource("org/rows", split="dev"))
    assert answer["message"].startswith("`dataset.evaluation[heldout].huggingFace.split` dev is no split of org/rows")


def test_the_rows_of_the_hub_have_the_digest_of_the_same_file(scene, tasks):
    answer = scene.load("train", HubSource("org/rows", split="train"))
    file = load_dataset(TINY / "train.jsonl")
    assert (answer["rows"], answer["digest"]) == (list(file.rows), file.digest)
    assert answer["origin"] == "org/rows, split train"
    commit = scene.hub.commit("org/rows", "datasets")
    assert answer["found"] == {"train": {"repo": "org/rows", "revision": "main", "commit": commit}}


def test_training_and_test_split_are_of_one_commit_although_main_moves_between_them(scene):
    files = {"train.jsonl": lines([{"q": "1"}]), "test.jsonl": lines([{"q": "2"}])}
    folder = scene.repository("datasets", "between", files)
    directory = scene.a_run()
    before = scene.load("train", HubSource("org/between", split="train"), directory)["found"]["train"]
    scene.push(folder, {"test.jsonl": lines([{"q": "1"}])})
    answer = scene.load("heldout", HubSource("org/between", split="test"), directory)
    assert answer["rows"] == [{"q": "2"}]
    assert answer["found"] == {"evaluation/heldout": before}


def test_a_subset_a_split_and_a_part_of_a_split_are_chosen(scene, tasks):
    assert scene.load("train", HubSource("org/subsets", subset="main", split="test"))["rows"] == [{"q": "b"}]
    assert scene.load("train", HubSource("org/subsets", subset="socratic", split="train"))["rows"] == [{"q": "c"}]
    assert len(scene.load("train", HubSource("org/rows", split="train[:3]"))["rows"]) == 3


def test_a_later_attempt_downloads_no_tasks_and_keeps_their_commit(scene):
    folder = scene.repository("datasets", "kept", {"train.jsonl": lines([{"q": "old"}])})
    directory = scene.a_run()
    source = HubSource("org/kept", split="train")
    assert scene.load("train", source, directory)["rows"] == [{"q": "old"}]
    scene.push(folder, {"train.jsonl": lines([{"q": "new"}])})
    assert scene.load("train", source, directory)["rows"] == [{"q": "old"}]
    assert scene.downloads_of("kept") == ["train.jsonl"]
    assert scene.load("train", source)["rows"] == [{"q": "new"}]


def test_without_the_hub_tasks_come_from_the_cache_if_it_has_their_commit(scene, down):
    down.is_down = False
    folder = scene.repository("datasets", "offline", {"train.jsonl": lines([{"q": "old"}])})
    source = HubSource("org/offline", split="train")
    early = scene.a_run()
    scene.load("train", source, early)
    down.is_down = True
    assert scene.load("train", source)["rows"] == [{"q": "old"}]
    down.is_down = False
    scene.push(folder, {"train.jsonl": lines([{"q": "new"}])})
    assert scene.load("train", source)["rows"] == [{"q": "new"}]
    down.is_down = True
    answer = scene.load("train", source, early)
    assert answer.get("cause") == "HubUnreachable", answer
    assert "the cache has another commit of it" in answer["message"]
