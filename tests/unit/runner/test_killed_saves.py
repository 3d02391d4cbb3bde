"""A save that is killed at any of its steps leaves the checkpoint before it, or the new one, and never half of one."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tuning_contract.checkpoint import Manifest, complete_checkpoints, damage, write_atomically
from tuning_contract.directory import RunDirectory
from tuning_runner.checkpoints import CheckpointStore, Fence

FINGERPRINT = {"seed": 0}
EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree")


def a_store(directory: RunDirectory, said: list[str], attempt: int = 1) -> CheckpointStore:
    return CheckpointStore(Fence(directory, attempt), 2, said.append)


def save(store: CheckpointStore, step: int) -> None:
    def write(folder: Path) -> None:
        (folder / "weights").write_text(f"weights {step} " * 1000)
        (folder / "part").mkdir()
        (folder / "part" / "state").write_text("state")

    store.save(Manifest("trl", step, step, 0.0, FINGERPRINT), write)


def killed_at(number: int, directory: RunDirectory) -> bool:
    """Save step 3 in a process that is killed at its n-th touch of the volume; whether it was."""
    child = os.fork()
    if child == 0:
        left = [number]

        def look(event: str, arguments: tuple[object, ...]) -> None:
            if event in EVENTS and str(directory.root) in str(arguments):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        save(a_store(directory, []), 3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize("before", [(1, 2), (1, 2, 3)])
def test_a_save_that_is_killed_anywhere_costs_at_most_its_own_step(tmp_path: Path, before: tuple[int, ...]) -> None:
    number, found = 0, set()
    while True:
        number += 1
        directory = RunDirectory(tmp_path / str(number))
        write_atomically(directory.current_attempt, "1\n")
        for step in before:
            save(a_store(directory, []), step)
        was_killed = killed_at(number, directory)
        said: list[str] = []
        write_atomically(directory.current_attempt, "2\n")
        newest = a_store(directory, said, attempt=2).newest(FINGERPRINT)
        assert newest is not None
        folder, manifest = newest
        assert damage(folder, manifest) == ""
        assert manifest.step in (2, 3)
        found.add(manifest.step)
        # The next attempt saves on, and nothing of the killed one stays.
        save(a_store(directory, said, attempt=2), 4)
        names = [entry.name for entry in directory.checkpoints.iterdir()]
        assert sorted(names) == [f"step-00000{manifest.step}", "step-000004"]
        assert len(complete_checkpoints(directory.checkpoints)) == 2
        if not was_killed:
            break
    assert found == {2, 3}
    assert number > 15
