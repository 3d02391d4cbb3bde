"""The tasks of one set: rows with a digest, from files or from whoever brings the rows.

Called by `sources` for the training tasks and every evaluation set. A row is any JSON object; what its keys mean is the
workflow's business. Not here: formats and files (`dataset_formats`, `dataset_files`), the hub (`hub_dataset`), the
order of the tasks (`tuning_contract.schedule`), hiding fields (`episodes`).
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuning_runner.dataset_files import TRAINING_SPLITS, task_files
from tuning_runner.dataset_formats import TOO_DEEP, DatasetError, read_rows


@dataclass(frozen=True)
class Dataset:
    """All rows of one set."""

    path: str
    """Where the rows come from, for messages: a path, or a repository of the hub."""
    rows: tuple[dict[str, Any], ...]
    digest: str
    """SHA-256 over the rows' canonical JSON in their order: the same content in another format has the same digest."""


def load_dataset(
    path: Path,
    hidden_fields: Sequence[str] = (),
    split: str | None = None,
    usual_splits: Sequence[str] = TRAINING_SPLITS,
    title: str = "",
) -> Dataset:
    """Read all rows of a file or a folder.

    Args:
        path: a file, or a folder whose files are read in the order of their names.
        hidden_fields: fields that at least one row must have, since a misspelt one would hide nothing.
        split: which files of a folder, None for the first of `usual_splits` that is there, or all of a folder without
            splits.
        usual_splits: names in the order of preference.
        title: which set of the run it is, for messages; not needed for the training tasks.

    Raises:
        DatasetError: says which file and line is wrong, and what it should be.
    """
    files = task_files(path, split, usual_splits)
    return dataset_of((row for file in files for row in read_rows(file)), str(path), hidden_fields, title)


def dataset_of(
    entries: Iterable[dict[str, Any]], origin: str, hidden_fields: Sequence[str] = (), title: str = ""
) -> Dataset:
    """Rows as a set with its digest.

    Args:
        entries: the rows in their order.
        origin: where they come from, for messages.
        hidden_fields: fields that at least one row must have.
        title: which set of the run it is, for messages.

    Raises:
        DatasetError: without rows, without a hidden field, or with text that no file can hold.
    """
    origin = f"{origin} ({title})" if title else origin
    rows = tuple(entries)
    if not rows:
        raise DatasetError(f"dataset {origin} has no rows")
    for name in hidden_fields:
        if not any(name in row for row in rows):
            known = ", ".join(sorted({key for row in rows[:100] for key in row}))
            raise DatasetError(f"no row of dataset {origin} has the hidden field `{name}`; its fields are: {known}")
    digest = hashlib.sha256()
    for number, row in enumerate(rows, start=1):
        digest.update(_canonical(row, f"row {number} of dataset {origin}"))
    return Dataset(origin, rows, digest.hexdigest())


def _canonical(row: dict[str, Any], place: str) -> bytes:
    """A row as a line of canonical JSON; DatasetError when it is none."""
    try:
        return json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise DatasetError(f"{place} holds {half}, half of a surrogate pair, which is no character") from error
    except ValueError as error:
        message = f"{place} holds a number that is not finite, which JSON does not have"
        raise DatasetError(f"{message}: write null, or leave the field out") from error
    except RecursionError as error:
        raise DatasetError(f"{place} has {TOO_DEEP}") from error
