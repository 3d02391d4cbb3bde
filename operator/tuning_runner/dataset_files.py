"""Which files of a path hold the tasks: one file, a folder, or a split of a folder.

Called by `dataset`. A split is found by the usual names: `train.jsonl`, `train-00000-of-00002.parquet`,
`train/part-0.csv`, all of them also inside a folder `data`. No task may be read twice, so files that may hold the same
tasks are refused: a split in two places, whole and in parts, or a file or part in two formats. Not here: what is in
the files (`dataset_formats`).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuning_runner.dataset_formats import DatasetError, is_task_file, name_endings, name_parts
from tuning_runner.permissions import not_readable

TRAINING_SPLITS = ("train",)
"""What a folder of training tasks is looked through for when the run names no split."""
EVALUATION_SPLITS = ("test", "validation", "heldout")
"""The same for an evaluation set; the first that is there is taken."""
_KNOWN_SPLITS = (*TRAINING_SPLITS, *EVALUATION_SPLITS, "valid", "val", "dev", "eval")
"""Names by which a folder shows that it has splits: such a folder is never read whole."""
_BEGINNINGS = tuple(f"{split}{sign}" for split in _KNOWN_SPLITS for sign in "-_.")
_PART = re.compile(r"([-_])(\d+)(-of-\d+(-[0-9a-f]{16})?)?")
"""What may follow a split's name: the number of a part, and a digest in what older versions of `datasets` pushed."""

_Kind = tuple[str, str | int]
"""Form and which of it: files of one place are no copies when all have one form, and each is another one of it."""


def task_files(path: Path, split: str | None, usual_splits: Sequence[str]) -> tuple[Path, ...]:
    """The files to read, in their order.

    Args:
        path: a file, or a folder.
        split: which files of a folder; None takes the first of `usual_splits` that is there, and all files of a folder
            that has no splits.
        usual_splits: names in the order of preference.

    Raises:
        DatasetError: says what is there instead, or which files may hold the same tasks.
    """
    try:
        return _task_files(path, split, usual_splits)
    except PermissionError as error:
        raise DatasetError(f"dataset {path}: {not_readable(error, path)}") from error


def _task_files(path: Path, split: str | None, usual_splits: Sequence[str]) -> tuple[Path, ...]:
    if path.is_file():
        if not is_task_file(path):
            raise DatasetError(f"dataset {path} must end with one of {name_endings()}")
        if split is not None:
            raise DatasetError(
                f"dataset {path} is one file, of which `split` cannot choose any: remove `split: {split}`"
            )
        return (path,)
    if not path.is_dir():
        listing = f"{path.parent} has: {_entries(path.parent)}" if path.parent.is_dir() else "nor does its folder"
        raise DatasetError(f"dataset {path} does not exist; {listing}")
    if split is not None:
        found = _of_split(path, split)
        if not found:
            wanted = f"{split}.jsonl, {split}-0.jsonl, {split}-00000-of-00002.jsonl or a folder {split}/"
            message = f"dataset folder {path} has no files of the split `{split}`, such as {wanted}"
            raise DatasetError(f"{message}; it has: {_entries(path)}")
        return found
    return _chosen(path, usual_splits)


def _chosen(folder: Path, usual_splits: Sequence[str]) -> tuple[Path, ...]:
    for split in usual_splits:
        if found := _of_split(folder, split):
            return found
    if others := [f"`{split}`" for split in _KNOWN_SPLITS if _places(folder, split)]:
        wanted = ", ".join(f"`{split}`" for split in usual_splits)
        message = f"dataset folder {folder} has the splits {', '.join(others)}, but none that is called {wanted}"
        raise DatasetError(f"{message}: set `split` to the one that you mean")
    files = _files(folder)
    if parts := [file for file in (*files, *_files(folder / "data")) if file.name.startswith(_BEGINNINGS)]:
        message = f"dataset folder {folder} has {parts[0].name}, which is named after a split and something else"
        raise DatasetError(
            f"{message}: set `split` to the whole name of the file that you mean, as {name_parts(parts[0])[0]}"
        )
    if not files:
        message = f"dataset folder {folder} has no file that ends with {name_endings()}"
        raise DatasetError(f"{message}; it has: {_entries(folder)}")
    return _without_copies(folder, {file: _by_name(file) for file in files})


def _of_split(folder: Path, split: str) -> tuple[Path, ...]:
    """The files of a split, all from one place; none when it is not there."""
    places = _places(folder, split)
    if len(places) > 1:
        raise _twice(folder, next(iter(places[0])), next(iter(places[1])))
    return _without_copies(folder, places[0]) if places else ()


def _places(folder: Path, split: str) -> list[dict[Path, _Kind]]:
    """Where there are files of a split, and which."""
    found: list[dict[Path, _Kind]] = []
    for base in (folder, folder / "data"):
        found.append({file: part for file in _files(base) if (part := _part(file, split))})
        found.append({file: _by_name(file) for file in _files(base / split)})
    return [files for files in found if files]


def _part(file: Path, split: str) -> _Kind | None:
    """Which part of the split a file is by its name, the whole of it, or none."""
    stem, _ = name_parts(file)
    if stem == split:
        return "whole", 0
    found = _PART.fullmatch(stem, len(split)) if stem.startswith(split) else None
    return (found[1] + (found[3] or "").removesuffix(found[4] or ""), int(found[2])) if found else None


def _by_name(file: Path) -> _Kind:
    """Two files of one name are copies in two formats; others are not."""
    return "", name_parts(file)[0]


def _without_copies(folder: Path, kinds: Mapping[Path, _Kind]) -> tuple[Path, ...]:
    """The files of one place, after a look at their kinds."""
    first = next(iter(kinds))
    seen: dict[str | int, Path] = {}
    for file, (form, which) in kinds.items():
        other = seen.setdefault(which, file) if form == kinds[first][0] else first
        if other is not file:
            raise _twice(folder, other, file)
    return tuple(kinds)


def _twice(folder: Path, one: Path, other: Path) -> DatasetError:
    names = f"{one.relative_to(folder)} and {other.relative_to(folder)}"
    message = f"dataset folder {folder} has {names}, which may hold the same tasks, and none may be read twice"
    return DatasetError(f"{message}: remove one of them, or set `path` to the file or folder that you mean")


def _files(folder: Path) -> tuple[Path, ...]:
    if not folder.is_dir():
        return ()
    # A ConfigMap's folder also holds hidden links to the same files.
    return tuple(file for file in sorted(folder.iterdir()) if file.name[0] != "." and is_task_file(file))


def _entries(folder: Path) -> str:
    """What a folder has, for a message."""
    names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in folder.iterdir())
    shown = [name for name in names if name[0] != "."]
    return ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "") if shown else "nothing"
