"""The parts of the local registry and base image that need neither of them to run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import registry
from tests.cluster.base_image import debian_mirror
from tests.cluster.buildah import find_uv, images_folder, run_logged


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, so that nothing here sees or touches the machine's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_cache_follows_the_users_setting(cache: Path) -> None:
    assert images_folder() == cache / "agent-tuning" / "images"


def test_a_registry_that_never_ran_has_no_process() -> None:
    assert registry.running_pid() is None
    assert registry.stop() is False


def test_a_process_id_that_another_program_got_since_is_not_ours() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (images_folder() / "registry").mkdir()
        (images_folder() / "registry" / "registry.pid").write_text(str(process.pid))
        assert registry.running_pid() is None
        assert registry.stop() is False
        assert process.poll() is None, "the other program was left alone"
    finally:
        process.communicate(b"\n")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sources.list", "# comment\ndeb [signed-by=/k] http://mirror.test/debian bookworm main\n"),
        ("sources.list.d/debian.sources", "Types: deb\nURIs: http://mirror.test/debian\nSuites: bookworm\n"),
        ("sources.list.d/a.list", "deb http://other.test/apt x main\ndeb http://mirror.test/debian bookworm main\n"),
    ],
)
def test_the_mirror_is_the_one_that_the_machine_uses(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "apt" / name).parent.mkdir(parents=True)
    (tmp_path / "apt" / name).write_text(text)
    assert debian_mirror(tmp_path / "apt") == "http://mirror.test/debian"


def test_without_a_debian_source_debootstrap_chooses_the_mirror(tmp_path: Path) -> None:
    assert debian_mirror(tmp_path) is None


def test_a_failed_command_shows_its_last_lines_and_keeps_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "x.log"
    script = "for i in $(seq 100); do echo line $i; done; exit 3"
    with pytest.raises(RuntimeError, match=r"failed \(3\)") as failure:
        run_logged(["sh", "-c", script], log)
    assert "line 100" in str(failure.value)
    assert "line 1\n" not in str(failure.value)
    assert log.read_text().count("line") == 100


def test_uv_is_found_as_a_program_and_not_as_a_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # `make setup` puts it into the real cache
    found = find_uv()
    if found is None:
        pytest.skip("this machine has no uv")
    assert found.read_bytes()[:4] == b"\x7fELF"
