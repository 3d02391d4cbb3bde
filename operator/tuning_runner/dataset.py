"""Loading of task files: JSON lines, JSON or Parquet, one file or a folder of them.

Called by `attempt` for the training tasks and every evaluation set. A row is any JSON object; what its keys mean is the
workflow's business. Not here: the order of the tasks (`tuning_contract.schedule`), hiding fields (`episodes`).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuning_contract.causes import Cause
from tuning_runner.episodes.errors import RunError

SUFFIXES = (".jsonl", ".json", ".parquet")


class DatasetError(RunError):
    """A task file is missing or unreadable: cause DatasetInvalid."""

    def __init__(self, message: str) -> None:
        super().__init__(Cause.DATASET_INVALID, message)


@dataclass(frozen=True)
class Dataset:
    """All rows of one set."""

    path: str
    rows: tuple[dict[str, Any], ...]
    digest: str
    """SHA-256 over the rows' canonical JSON in file order: the same content in another format has the same digest."""


def load_dataset(path: Path, hidden_fields: Sequence[str] = ()) -> Dataset:
    """Read all rows.

    Args:
        path: a file, or a folder whose .jsonl, .json and .parquet files are read in the order of their names.
        hidden_fields: fields that at least one row must have, since a misspelt one would hide nothing.

    Raises:
        DatasetError: says which file and line is wrong, and what it should be.
    """
    rows = tuple(row for file in _files(path) for row in _read(file))
    if not rows:
        raise DatasetError(f"dataset {path} has no rows")
    for name in hidden_fields:
        if not any(name in row for row in rows):
            known = ", ".join(sorted({key for row in rows[:100] for key in row}))
            raise DatasetError(f"no row of dataset {path} has the hidden field `{name}`; its fields are: {known}")
    digest = hashlib.sha256()
    for number, row in enumerate(rows, start=1):
        try:
            digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\n")
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            text = f"row {number} of dataset {path} holds {half}, half of a surrogate pair, which is no character"
            raise DatasetError(text) from error
    return Dataset(str(path), rows, digest.hexdigest())


def _files(path: Path) -> tuple[Path, ...]:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise DatasetError(f"dataset {path} must end with one of {', '.join(SUFFIXES)}")
        return (path,)
    if not path.is_dir():
        beside = sorted(entry.name for entry in path.parent.iterdir())[:10] if path.parent.is_dir() else []
        listing = f"; {path.parent} has: {', '.join(beside)}" if beside else f"; {path.parent} is no folder either"
        raise DatasetError(f"dataset {path} does not exist{listing}")
    # A ConfigMap's folder also holds hidden links to the same files.
    files = tuple(file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES and file.name[0] != ".")
    if not files:
        raise DatasetError(f"dataset folder {path} has no file that ends with {', '.join(SUFFIXES)}")
    return files


def _read(file: Path) -> Iterator[dict[str, Any]]:
    if file.suffix == ".parquet":
        entries = _parquet_rows(file)
    elif file.suffix == ".json":
        entries = _json_rows(file)
    else:
        entries = _json_lines(file)
    for place, row in entries:
        if not isinstance(row, dict):
            raise DatasetError(f"{place} must be a JSON object, not {type(row).__name__}: {str(row)[:80]}")
        yield row


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"dataset {file} cannot be read: {error}") from error


def _json_lines(file: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_text(file).split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {number} of {file}", json.loads(line)
            except ValueError as error:
                raise DatasetError(f"line {number} of {file} is no JSON: {error}") from error


def _json_rows(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        content = json.loads(_text(file))
    except ValueError as error:
        raise DatasetError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, list):
        raise DatasetError(f"{file} must be a JSON array of objects, not {type(content).__name__}")
    for number, row in enumerate(content):
        yield f"entry {number} of {file}", row


def _parquet_rows(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise DatasetError(f"{file}: this image cannot read Parquet, since it has no pyarrow; use .jsonl") from error
    try:
        rows = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:
        raise DatasetError(f"dataset {file} is no readable Parquet file: {error}") from error
    for number, row in enumerate(rows):
        yield f"row {number} of {file}", row
