"""Checkpoints: complete or not there, pruned, verified, and never written by an attempt that was replaced."""

import os
from pathlib import Path

import pytest

from tuning_contract.causes import Cause
from tuning_contract.checkpoint import MANIFEST, Manifest, complete_checkpoints, damage, write_atomically
from tuning_contract.directory import RunDirectory
from tuning_runner.checkpoints import CheckpointStore, Fence, SupersededError, newest_attempt, publish_folder
from tuning_runner.episodes.errors import RunError

FINGERPRINT = {"seed": 0, "batchSize": 4}


class Store:
    """A store of attempt 1 with everything it said."""

    def __init__(self, root: Path, keep_last: int = 2) -> None:
        self.directory = RunDirectory(root)
        self.said: list[str] = []
        write_atomically(self.directory.current_attempt, "1\n")
        self.store = CheckpointStore(Fence(self.directory, 1), keep_last, self.said.append)

    def save(self, step: int, fingerprint=FINGERPRINT) -> Path:
        manifest = Manifest("trl", step, step, 0.0, fingerprint)
        return self.store.save(manifest, lambda folder: (folder / "weights").write_text(f"weights {step}"))

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.checkpoints.iterdir())


def test_a_saved_checkpoint_is_complete_and_verified(tmp_path):
    store = Store(tmp_path)
    folder = store.save(3)
    ((found, manifest),) = complete_checkpoints(store.directory.checkpoints)
    assert (found, manifest.step) == (folder, 3)
    assert set(manifest.files) == {"weights"}
    assert damage(found, manifest) == ""
    assert store.store.newest(FINGERPRINT) == (folder, manifest)


def test_only_the_last_checkpoints_stay(tmp_path):
    store = Store(tmp_path, keep_last=2)
    for step in (1, 2, 3):
        store.save(step)
    assert store.names == ["step-000002", "step-000003"]


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path):
    store = Store(tmp_path)
    store.save(1)
    manifest = Manifest("trl", 1, 1, 0.0, FINGERPRINT)
    folder = store.store.save(manifest, lambda path: (path / "weights").write_text("new"))
    assert (folder / "weights").read_text() == "new"


def test_a_torn_checkpoint_is_passed_over_with_a_warning_and_removed_by_the_next(tmp_path):
    store = Store(tmp_path)
    whole = store.save(1)
    torn = store.directory.checkpoint(2)
    torn.mkdir()
    leftover = store.directory.checkpoints / ".step-000003.1"
    leftover.mkdir()
    found = store.store.newest(FINGERPRINT)
    assert found is not None
    assert found[0] == whole
    assert "step-000002 has no COMPLETE manifest" in store.said[0]
    store.save(3)
    assert store.names == ["step-000001", "step-000003"]


def test_a_damaged_checkpoint_is_passed_over_with_the_reason(tmp_path):
    store = Store(tmp_path)
    whole = store.save(1)
    (store.save(2) / "weights").write_text("weights 9")
    found = store.store.newest(FINGERPRINT)
    assert found is not None
    assert found[0] == whole
    assert "weights has another digest" in store.said[0]


def test_the_save_after_a_damaged_checkpoint_stays_and_the_damaged_one_goes(tmp_path):
    store = Store(tmp_path, keep_last=1)
    (store.save(5) / "weights").unlink()
    assert store.store.newest(FINGERPRINT) is None
    assert store.names == []
    store.save(3)
    assert store.names == ["step-000003"]


def test_a_save_that_is_older_than_what_lies_there_still_stays(tmp_path):
    store = Store(tmp_path, keep_last=2)
    for step in (2, 4, 8):
        store.save(step)
    store.save(6)
    assert store.names == ["step-000004", "step-000006"]


def test_an_attempt_that_was_replaced_deletes_no_damaged_checkpoint(tmp_path):
    store = Store(tmp_path)
    (store.save(1) / "weights").unlink()
    write_atomically(store.directory.current_attempt, "2\n")
    with pytest.raises(SupersededError):
        store.store.newest(FINGERPRINT)
    assert store.names == ["step-000001"]
    assert store.said == []


def test_a_checkpoint_of_other_settings_is_refused_with_the_fields_named(tmp_path):
    store = Store(tmp_path)
    store.save(1)
    with pytest.raises(RunError, match=r"batchSize \(4 there, 8 here\)") as caught:
        store.store.newest({"seed": 0, "batchSize": 8})
    assert caught.value.cause is Cause.CONFIG_INVALID


def test_without_checkpoints_there_is_nothing_to_resume(tmp_path):
    assert Store(tmp_path).store.newest(FINGERPRINT) is None


def test_every_file_and_folder_of_a_checkpoint_and_their_names_are_flushed(tmp_path, monkeypatch):
    store = Store(tmp_path)
    flushed: list[str] = []

    def fsync(number: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{number}").removeprefix(f"{tmp_path}/"))

    monkeypatch.setattr(os, "fsync", fsync)

    def nested(folder: Path) -> None:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_text("w")

    store.store.save(Manifest("trl", 1, 1, 0.0, FINGERPRINT), nested)
    written = "checkpoints/.step-000001.1"
    assert {written, f"{written}/inner", f"{written}/inner/weights", "checkpoints"} <= set(flushed)
    # The manifest is last: its text, then its name.
    assert [Path(name).parent.name for name in flushed[-2:]] == ["step-000001", "checkpoints"]
    assert flushed[-1] == "checkpoints/step-000001"


def test_an_attempt_that_was_replaced_completes_no_checkpoint(tmp_path):
    store = Store(tmp_path)
    store.save(1)

    def replaced_while_writing(folder: Path) -> None:
        write_atomically(store.directory.current_attempt, "2\n")

    with pytest.raises(SupersededError, match="attempt 2 has replaced this attempt"):
        store.store.save(Manifest("trl", 2, 2, 0.0, FINGERPRINT), replaced_while_writing)
    assert [manifest.step for _, manifest in complete_checkpoints(store.directory.checkpoints)] == [1]


def test_the_newest_attempt_is_zero_without_a_readable_number(tmp_path):
    directory = RunDirectory(tmp_path)
    assert newest_attempt(directory) == 0
    directory.current_attempt.write_text("x")
    assert newest_attempt(directory) == 0


def test_a_published_folder_replaces_the_old_one_whole_and_can_be_read_by_others(tmp_path):
    store = Store(tmp_path)
    target = store.directory.final

    def private(folder: Path) -> None:
        (folder / "model").write_text("1")
        (folder / "model").chmod(0o600)

    publish_folder(target, store.store.fence, private)
    assert (target / "model").stat().st_mode & 0o777 == 0o644
    killed = target.with_name(".final.0")
    killed.mkdir()
    publish_folder(target, store.store.fence, lambda folder: (folder / "other").write_text("2"))
    assert [path.name for path in target.iterdir()] == ["other"]
    assert not killed.exists()
    assert not (target / MANIFEST).exists()
