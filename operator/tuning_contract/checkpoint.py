"""COMPLETE: the manifest that makes a folder a checkpoint.

The runner writes it last, so a folder without it is a torn checkpoint. The sidecar, the driver and the next
attempt list and verify checkpoints through these functions only.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = "COMPLETE"
FORMAT_TRL = "trl"


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint holds."""

    format: str
    step: int
    policy_version: int
    """Number of policy updates that the weights have seen, in steps."""
    saved_at: float
    """Seconds since 1970."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """The resume fingerprint (`tuning_contract.fingerprint`)."""
    dataset_digest: str = ""
    position: int = 0
    """Tasks consumed so far: step x batch size."""
    unfinished_tasks: tuple[str, ...] = ()
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`{relative path: {size, sha256}}` of every other file."""

    def to_text(self) -> str:
        """The document, indented for a reader."""
        return json.dumps(asdict(self), indent=2, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "Manifest":
        """Parse; ValueError when it is no manifest."""
        try:
            document = json.loads(text)
            document["unfinished_tasks"] = tuple(document.get("unfinished_tasks", ()))
            return cls(**document)
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"not a checkpoint manifest: {error}") from error


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Sizes and SHA-256 digests of all files below `folder` but the manifest."""
    return {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def write_atomically(path: Path, text: str) -> None:
    """Write and fsync a temporary file beside `path`, then rename it: readers see all of it or nothing.

    On return the new name is on the disk as well.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries: after a rename the new name is on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def complete_checkpoints(parent: Path) -> tuple[tuple[Path, Manifest], ...]:
    """All checkpoints below `parent` that have a readable manifest, oldest step first; digests are not compared."""
    found = []
    for folder in parent.glob("step-*") if parent.is_dir() else ():
        try:
            found.append((folder, Manifest.from_text((folder / MANIFEST).read_text(encoding="utf-8"))))
        except (OSError, ValueError):
            continue
    return tuple(sorted(found, key=lambda entry: entry[1].step))


def damage(folder: Path, manifest: Manifest) -> str:
    """The first difference between folder and manifest in words; empty when it is whole."""
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["size"]:
            return f"{name} has {path.stat().st_size} bytes instead of {expected['size']}"
        if _digest(path) != expected["sha256"]:
            return f"{name} has another digest than at its saving"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
