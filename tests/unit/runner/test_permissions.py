"""Files that the user of the pods may not read: a sentence that says what to change, wherever the lack is met."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuning_runner.dataset import load_dataset
from tuning_runner.dataset_formats import DatasetError

ROW = b'{"question": "1 + 1"}\n'


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everyone may enter; pytest's own belong to the user alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def as_user_1000() -> Iterator[int]:
    """Read files as the user of the pods does, if the tests run as root, who may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(1000)
    try:
        yield os.geteuid()
    finally:
        os.seteuid(before)


def a_closed_file(folder: Path, name: str, content: bytes = ROW) -> Path:
    file = folder / name
    file.write_bytes(content)
    file.chmod(0o000 if os.geteuid() else 0o600)
    return file


def a_closed_folder(folder: Path, name: str) -> Path:
    closed = folder / name
    closed.mkdir()
    (closed / "train.jsonl").write_bytes(ROW)
    closed.chmod(0o000 if os.geteuid() else 0o700)
    return closed


def in_a_closed_folder(folder: Path, name: str) -> Path:
    return a_closed_folder(folder, name) / "train.jsonl"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.jsonl", a_closed_file),
        ("a.jsonl.gz", a_closed_file),
        ("a.json", a_closed_file),
        ("a.csv", a_closed_file),
        ("a.parquet", a_closed_file),
        ("tasks", a_closed_folder),
        ("data", in_a_closed_folder),
    ],
)
def test_tasks_that_may_not_be_read_say_so(folder: Path, name: str, make: Callable[[Path, str], Path]) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow.parquet")
    path = make(folder, name)
    with as_user_1000() as user, pytest.raises(DatasetError) as caught:
        load_dataset(path)
    expected = f"dataset {path}: user {user} may not read {path}: make it readable (chmod -R a+rX)"
    (folder / name).chmod(0o700)
    assert caught.value.message == expected


def test_a_split_within_a_folder_that_may_not_be_read_says_so(folder: Path) -> None:
    closed = a_closed_folder(folder, "train")
    with as_user_1000() as user, pytest.raises(DatasetError) as caught:
        load_dataset(folder)
    closed.chmod(0o700)
    assert f"user {user} may not read {closed}" in caught.value.message


@pytest.mark.model
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_that_may_not_be_read_says_so(folder: Path, name: str) -> None:
    pytest.importorskip("torch")
    from tuning_contract.run_document import ModelSettings
    from tuning_runner.engines.trl.model import load_tokenizer
    from tuning_runner.episodes.errors import RunError

    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    file = a_closed_file(model, name, b"{}")
    with as_user_1000() as user, pytest.raises(RunError) as caught:
        load_tokenizer(ModelSettings(str(model), max_model_length=64, max_response_tokens=4))
    assert caught.value.cause.value == "ConfigInvalid"
    expected = f"model folder {model}: user {user} may not read {file}: make it readable (chmod -R a+rX)"
    assert caught.value.message == expected


@pytest.mark.model
def test_a_model_in_a_folder_that_may_not_be_entered_says_so(folder: Path) -> None:
    pytest.importorskip("torch")
    from tuning_contract.run_document import ModelSettings
    from tuning_runner.engines.trl.model import load_tokenizer
    from tuning_runner.episodes.errors import RunError

    closed = a_closed_folder(folder, "model")
    with as_user_1000() as user, pytest.raises(RunError) as caught:
        load_tokenizer(ModelSettings(str(closed), max_model_length=64, max_response_tokens=4))
    closed.chmod(0o700)
    assert f"user {user} may not read {closed / 'config.json'}" in caught.value.message
