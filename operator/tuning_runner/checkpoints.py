"""Saving, finding and pruning checkpoints on the run's volume, with fencing against an attempt that was replaced.

Called by engines. A folder becomes a checkpoint when its COMPLETE manifest is written, which is the last thing that is
done to it (`tuning_contract.checkpoint`). What lies in the folder is the engine's business.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuning_contract.causes import Cause
from tuning_contract.checkpoint import (
    MANIFEST,
    Manifest,
    complete_checkpoints,
    damage,
    describe_files,
    sync_folder,
    write_atomically,
)
from tuning_contract.directory import RunDirectory
from tuning_contract.fingerprint import differing_fields
from tuning_runner.episodes.errors import RunError


class SupersededError(Exception):
    """A newer attempt runs: this one must not write anything more, a result neither."""


@dataclass(frozen=True)
class Fence:
    """`current-attempt` of the run, as this attempt sees it."""

    directory: RunDirectory
    attempt: int

    def raise_if_superseded(self) -> None:
        """SupersededError when a newer attempt has begun."""
        newest = newest_attempt(self.directory)
        if newest > self.attempt:
            raise SupersededError(f"attempt {newest} has replaced this attempt ({self.attempt})")


def newest_attempt(directory: RunDirectory) -> int:
    """Number in `current-attempt`; 0 when there is none."""
    try:
        return int(directory.current_attempt.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of one run.

    Args:
        fence: of this attempt.
        keep_last: complete checkpoints that stay, at least 1.
        say: prints one line.
    """

    fence: Fence
    keep_last: int
    say: Callable[[str], None]

    @property
    def _directory(self) -> RunDirectory:
        return self.fence.directory

    def save(self, manifest: Manifest, write: Callable[[Path], None]) -> Path:
        """Make the checkpoint of `manifest.step`.

        Args:
            manifest: without `files`.
            write: writes everything into the empty folder that it is given.

        Raises:
            SupersededError: a newer attempt has begun; the folder stays without a manifest.
        """
        target = self._directory.checkpoint(manifest.step)
        folder = publish_folder(target, self.fence, write)
        self.fence.raise_if_superseded()
        whole = replace(manifest, files=describe_files(folder))
        write_atomically(folder / MANIFEST, whole.to_text())
        self._prune(folder, manifest.step)
        return folder

    def newest(self, fingerprint: Mapping[str, Any]) -> tuple[Path, Manifest] | None:
        """The newest whole checkpoint. Damaged ones are deleted with a warning: they are newer than what goes on here.

        Raises:
            RunError: ConfigInvalid, when it was made by a run that differs in what the next step trains.
            SupersededError: a newer attempt has begun; nothing more is deleted.
        """
        for folder in sorted(self._directory.checkpoints.glob("step-*")):
            if not (folder / MANIFEST).is_file():
                self.say(f"warning: {folder.name} has no {MANIFEST} manifest: it was torn while it was saved; ignored")
        for folder, manifest in reversed(complete_checkpoints(self._directory.checkpoints)):
            if found := damage(folder, manifest):
                self.fence.raise_if_superseded()
                self.say(f"warning: checkpoint {folder.name} is damaged: {found}; deleted")
                _delete(folder)
                continue
            if fields := differing_fields(fingerprint, manifest.fingerprint):
                listed = differences(fields, fingerprint, manifest.fingerprint)
                message = f"checkpoint {folder.name} was made with other settings: {listed}"
                raise RunError(Cause.CONFIG_INVALID, message)
            return folder, manifest
        return None

    def _prune(self, saved: Path, step: int) -> None:
        """Delete all but the folder just saved and the newest complete ones before it."""
        complete = complete_checkpoints(self._directory.checkpoints)
        earlier = [folder for folder, manifest in complete if manifest.step < step]
        kept = {saved, *earlier[max(len(earlier) - self.keep_last + 1, 0) :]}
        for folder in self._directory.checkpoints.iterdir():
            if folder not in kept:
                _delete(folder)


def _delete(folder: Path) -> None:
    # The manifest goes first, so that nobody reads a half-deleted folder as a checkpoint.
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(target: Path) -> None:
    """Delete what attempts that were killed in the middle of `publish_folder` left of a folder; fence first."""
    for leftover in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)


def publish_folder(target: Path, fence: Fence, write: Callable[[Path], None]) -> Path:
    """Write a folder under a temporary name, flush it to the disk, and rename it to `target`, replacing that."""
    fence.raise_if_superseded()
    remove_leftovers(target)
    temporary = target.with_name(f".{target.name}.{fence.attempt}")
    temporary.mkdir(parents=True)
    write(temporary)
    for path in (temporary, *temporary.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        elif path.is_file():
            path.chmod(0o644)  # safetensors writes for the owner alone; sidecar and serving pods are other users
            with path.open("rb") as file:
                os.fsync(file.fileno())
    fence.raise_if_superseded()
    (target / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    sync_folder(target.parent)
    return target


def differences(fields: tuple[str, ...], mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """What differs between this run's fingerprint and a checkpoint's, in words."""
    return ", ".join(f"{name} ({theirs.get(name)!r} there, {mine.get(name)!r} here)" for name in fields)
