"""Rows of one task file: JSON lines, JSON, Parquet or CSV, the texts among them also compressed with gzip.

Called by `dataset`. A row is a JSON object. Not here: which files are read (`dataset_files`).
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tuning_contract.causes import Cause
from tuning_runner.episodes.errors import RunError
from tuning_runner.permissions import not_readable

_COMPRESSED = ".gz"
_TEXT_OR_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*+"|(NaN|Infinity)')
"""A string, or what Python's reader takes for a number although JSON has none."""
_LARGEST_FIELD = 1 << 30
"""Characters of one value of a CSV file: the limit of Python's reader, 131,072, would refuse a long prompt."""
TOO_DEEP = "more lists and objects within each other than can be read: make it flatter"

Rows = Iterator[tuple[str, Any]]
"""Each row after the words that name its place for a message."""


class DatasetError(RunError):
    """Tasks are missing or unreadable: cause DatasetInvalid."""

    def __init__(self, message: str) -> None:
        super().__init__(Cause.DATASET_INVALID, message)


def is_task_file(file: Path) -> bool:
    """Whether this is a file of a known format, by its name."""
    return _format(file) in _READERS and file.is_file()


def name_endings() -> str:
    """How a task file's name may end, for a message."""
    return f"{', '.join(_READERS)} (all but .parquet also with {_COMPRESSED})"


def name_parts(file: Path) -> tuple[str, str]:
    """A task file's name without its endings, and the ending of its format, such as `.jsonl` of `train.jsonl.gz`."""
    ending = _format(file)
    return file.name.removesuffix(_COMPRESSED).removesuffix(ending), ending


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """All rows of a file.

    Raises:
        DatasetError: names the file and the line or row.
    """
    for place, row in _READERS[_format(file)](file):
        if not isinstance(row, dict):
            raise DatasetError(f"{place} must be a JSON object, not {type(row).__name__}: {str(row)[:80]}")
        yield row


def require_json(row: Mapping[str, Any], place: str) -> None:
    """Refuse what only Parquet and its like can hold: dates, bytes, exact decimals.

    Raises:
        DatasetError: names the column and what to do.
    """
    for name, value in row.items():
        if foreign := _foreign_type(value):
            message = f"{place} has a value of type {foreign} in the column `{name}`, which no JSON object can hold"
            raise DatasetError(f"{message}: store it as text or a number, or leave the column out")


def _foreign_type(value: Any) -> str:
    """The type of the first part of a value that is not of JSON; empty when all of it is."""
    if value is None or isinstance(value, str | bool | int | float):
        return ""
    if isinstance(value, list):
        return next((found for found in map(_foreign_type, value) if found), "")
    if isinstance(value, dict):
        strange = (type(key).__name__ for key in value if not isinstance(key, str))
        return next(strange, "") or _foreign_type(list(value.values()))
    return type(value).__name__


def _format(file: Path) -> str:
    """The ending that says what is in a file, without the one of the compression."""
    if file.suffix != _COMPRESSED:
        return file.suffix
    inner = file.with_suffix("").suffix
    return "" if inner == ".parquet" else inner


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
        if file.suffix == _COMPRESSED:
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except PermissionError as error:
        raise DatasetError(f"dataset {file}: {not_readable(error, file)}") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DatasetError(f"dataset {file} cannot be read: {error}") from error


def _json_lines(file: Path) -> Rows:
    for number, line in enumerate(re.split("\r\n?|\n", _text(file)), start=1):
        if line.strip():
            yield f"line {number} of {file}", _parsed(line, file, number)


def _json_array(file: Path) -> Rows:
    content = _parsed(_text(file), file)
    if not isinstance(content, list):
        raise DatasetError(f"{file} must be a JSON array of objects, not {type(content).__name__}")
    for number, row in enumerate(content):
        yield f"entry {number} of {file}", row


def _parsed(text: str, file: Path, line: int | None = None) -> Any:
    """The value of a whole file, or of one line of it."""
    place = f"line {line} of {file}" if line else str(file)
    constants: list[str] = []
    try:
        content = json.loads(text, parse_constant=constants.append)
    except ValueError as error:
        raise DatasetError(f"{place} is no JSON: {error}") from error
    except RecursionError as error:
        raise DatasetError(f"{place} has {TOO_DEEP}") from error
    if constants:
        place = f"line {line or _line_of_constant(text)} of {file}"
        raise DatasetError(f"{place} has {constants[0]}, which is no JSON: write null, or leave the field out")
    return content


def _line_of_constant(text: str) -> int:
    found = next(part for part in _TEXT_OR_CONSTANT.finditer(text) if part[1])
    return text.count("\n", 0, found.start()) + 1


def _parquet(file: Path) -> Rows:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise DatasetError(f"{file}: this image cannot read Parquet, since it has no pyarrow; use .jsonl") from error
    try:
        rows = parquet.read_table(file).to_pylist(maps_as_pydicts="strict")
    except PermissionError as error:
        raise DatasetError(f"dataset {file}: {not_readable(error, file)}") from error
    except (OSError, ValueError, KeyError) as error:
        raise DatasetError(f"dataset {file} is no readable Parquet file: {error}") from error
    for number, row in enumerate(rows):
        place = f"row {number} of {file}"
        require_json(row, place)
        yield place, row


def _comma_separated(file: Path) -> Rows:
    """RFC 4180 with a header; every value is a string, since the format knows no other type."""
    csv.field_size_limit(_LARGEST_FIELD)
    lines = csv.reader(io.StringIO(_text(file), newline=""), strict=True)
    header: list[str] = []
    first = 1
    try:
        for values in lines:
            place, first = f"line {first} of {file}", lines.line_num + 1
            if not values:
                continue  # an empty line
            if not header:
                header = _header(values, place)
            elif len(values) != len(header):
                raise DatasetError(f"{place} has {len(values)} values, but the header has {len(header)} names")
            else:
                yield place, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise DatasetError(f"line {first} of {file} is no CSV: {error}") from error


def _header(names: list[str], place: str) -> list[str]:
    if empty := [str(number) for number, name in enumerate(names, start=1) if not name.strip()]:
        raise DatasetError(f"{place}, the header, has no name for column {', '.join(empty)}")
    if twice := [f"`{name}`" for name, count in Counter(names).items() if count > 1]:
        raise DatasetError(f"{place}, the header, has more than one column {', '.join(twice)}")
    return names


_READERS: Mapping[str, Callable[[Path], Rows]] = {
    ".jsonl": _json_lines,
    ".json": _json_array,
    ".parquet": _parquet,
    ".csv": _comma_separated,
}
