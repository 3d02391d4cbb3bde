"""Which files of a path hold the tasks: one file, a folder, or a split of a folder.

Called by `dataset`. A split is found by the usual names: `train.jsonl`, `train-00000-of-00002.parquet`,
`train/part-0.csv`, all of them also inside a folder `data`. Not here: what is in the files (`dataset_formats`).
"""

from collections.abc import Sequence
from pathlib import Path

from tuning_runner.dataset_formats import DatasetError, is_task_file, name_endings

TRAINING_SPLITS = ("train",)
"""What a folder of training tasks is looked through for when the run names no split."""
EVALUATION_SPLITS = ("test", "validation", "heldout")
"""The same for an evaluation set; the first that is there is taken."""
_KNOWN_SPLITS = (*TRAINING_SPLITS, *EVALUATION_SPLITS, "valid", "val", "dev", "eval")
"""Names by which a folder shows that it has splits: such a folder is never read whole."""


def task_files(path: Path, split: str | None, usual_splits: Sequence[str]) -> tuple[Path, ...]:
    """The files to read, in their order.

    Args:
        path: a file, or a folder.
        split: which files of a folder; None takes the first of `usual_splits` that is there, and all files of a folder
            that has no splits.
        usual_splits: names in the order of preference.

    Raises:
        DatasetError: says what is there instead.
    """
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
            raise DatasetError(f"dataset folder {path} has no files of the split `{split}`; it has: {_entries(path)}")
        return found
    return _chosen(path, usual_splits)


def _chosen(folder: Path, usual_splits: Sequence[str]) -> tuple[Path, ...]:
    for split in usual_splits:
        if found := _of_split(folder, split):
            return found
    if others := [f"`{split}`" for split in _KNOWN_SPLITS if _of_split(folder, split)]:
        wanted = ", ".join(f"`{split}`" for split in usual_splits)
        message = f"dataset folder {folder} has the splits {', '.join(others)}, but none that is called {wanted}"
        raise DatasetError(f"{message}: set `split` to the one that you mean")
    files = _files(folder)
    if not files:
        message = f"dataset folder {folder} has no file that ends with {name_endings()}"
        raise DatasetError(f"{message}; it has: {_entries(folder)}")
    return files


def _of_split(folder: Path, split: str) -> tuple[Path, ...]:
    found: list[Path] = []
    for base in (folder, folder / "data"):
        found += [file for file in _files(base) if file.name.startswith((f"{split}.", f"{split}-", f"{split}_"))]
        found += _files(base / split)
    return tuple(found)


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
