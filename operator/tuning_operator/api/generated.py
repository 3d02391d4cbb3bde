"""Files that are generated from the API's models: writing them, and telling what is out of date.

Used by the commands `crd` and `reference`, which say what is in the files.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

Files = Mapping[Path, str]
"""Text of each file by its path below the root of the repository."""


def differences(files: Files, root: Path) -> Iterator[str]:
    """Lines of a unified diff between what is on disk and what would be written; none when all is current."""
    for path, text in files.items():
        current = (root / path).read_text() if (root / path).exists() else ""
        yield from difflib.unified_diff(
            current.splitlines(keepends=True), text.splitlines(keepends=True), str(path), f"{path} (generated)"
        )


def write(files: Files, root: Path) -> None:
    """Write every file."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def main(files: Files, arguments: list[str], root: Path, description: str) -> int:
    """Write, or with --check compare.

    Returns:
        The exit code: 1 when --check found a difference.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="change nothing; print the difference")
    if not parser.parse_args(arguments).check:
        write(files, root)
        return 0
    found = list(differences(files, root))
    sys.stdout.writelines(found)
    return 1 if found else 0
