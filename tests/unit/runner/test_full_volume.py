"""A volume that is really full: StorageFailed in words, and a result that says so."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runner import scripted_engine
from tests.unit.runner.processes import descendants
from tests.unit.runner.test_supervision import Scene
from tuning_contract.causes import Cause
from tuning_contract.directory import RunDirectory
from tuning_contract.termination import EXIT_FAILED
from tuning_runner.reserve import keep_reserve, release_reserve


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB that is mounted from a file."""
    image, folder = tmp_path / "image", tmp_path / "volume"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(3 << 20)
    try:
        if os.geteuid() != 0:
            pytest.skip("only root can mount")
        subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def scene(small: Path) -> Iterator[Scene]:
    scene = Scene(small)
    yield scene
    scene.close()


def fill(folder: Path) -> None:
    """Leave no byte free."""
    size = 1 << 20
    with (folder / "filler").open("ab", buffering=0) as file:
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def test_a_volume_that_is_full_in_the_middle_of_the_run_leaves_a_result_that_says_so(scene: Scene) -> None:
    process = scene.scripted(pauses_at="step 2")
    fill(scene.volume.root)
    (scene.volume.root / "go").touch()  # an empty file has room in its folder
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == EXIT_FAILED, output
    result = scene.volume.result
    assert (result.outcome, result.cause, result.attempt) == ("Failed", Cause.STORAGE_FAILED, 1)
    assert "No space left on device" in result.message
    assert "make the claim larger" in result.message
    assert scene.volume.run.stopped(1).exists()


def test_the_next_attempt_on_a_full_volume_says_it_again_and_one_with_room_goes_on(scene: Scene) -> None:
    process = scene.scripted(pauses_at="step 2")
    fill(scene.volume.root)
    (scene.volume.root / "go").touch()  # an empty file has room in its folder
    process.communicate(timeout=60)
    code, output = scene.execute("-m", scripted_engine.COMMAND, attempt=2)
    assert code == EXIT_FAILED, output
    assert (scene.volume.result.cause, scene.volume.result.attempt) == (Cause.STORAGE_FAILED, 2)
    (scene.volume.root / "filler").unlink()
    code, output = scene.execute("-m", scripted_engine.COMMAND, attempt=3)
    assert code == 0, output
    assert (scene.volume.result.step, scene.volume.result.attempt) == (3, 3)


def test_a_killed_child_on_a_full_volume_has_a_result_as_well(scene: Scene) -> None:
    process = scene.scripted(pauses_at="step 2")
    fill(scene.volume.root)
    (child,) = descendants(process.pid)
    os.kill(child, signal.SIGSEGV)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == EXIT_FAILED, output
    assert "SIGSEGV" in scene.volume.result.message


def test_the_reserve_takes_real_room_and_gives_it_back(small: Path) -> None:
    directory = RunDirectory(small / "ml/run-abcdef")
    keep_reserve(directory)
    fill(small)
    with pytest.raises(OSError, match="No space left"):
        (directory.root / "result.json").write_bytes(bytes(8192))
    release_reserve(directory)
    assert (directory.root / "result.json").write_bytes(bytes(32768)) == 32768
    release_reserve(directory)
