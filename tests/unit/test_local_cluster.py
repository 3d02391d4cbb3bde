"""The parts of the local cluster that need no cluster."""

import json
import os
import signal
import tarfile
import time
from pathlib import Path

import pytest

from tests import conftest
from tests.cluster import binaries, crds
from tests.cluster.archive import StaticImage
from tests.cluster.certificates import groups_of
from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.processes import Processes, started_at


def test_a_machine_that_cannot_run_the_cluster_skips_its_tests_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUIRE_CLUSTER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        conftest._unavailable(UnavailableError("needs root"))


def test_a_required_cluster_fails_the_tests_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUIRE_CLUSTER", "1")
    with pytest.raises(pytest.fail.Exception, match="needs root"):
        conftest._unavailable(UnavailableError("needs root"))


def test_a_program_is_built_again_when_its_flags_change() -> None:
    program = binaries.GoProgram(name="pause", version="1", source="pause")
    changed = binaries.GoProgram(name="pause", version="1", source="pause", ldflags="-w")
    assert program.digest() == binaries.PAUSE.digest()
    assert program.digest() != changed.digest()


def test_a_serviceaccounts_user_gets_its_groups() -> None:
    groups = groups_of("system:serviceaccount:agent-tuning:operator")
    assert groups == ("system:serviceaccounts", "system:serviceaccounts:agent-tuning")
    assert groups_of("somebody") == ()


def test_an_image_archive_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    image = StaticImage("localhost/p:1", {"/bin/program": program}, ["/bin/program"], {"/bin/sh": "program"}, user="7")
    image.write(tmp_path / "one.tar")
    image.write(tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        manifest = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(archive.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]
        with tarfile.open(fileobj=archive.extractfile(manifest[0]["Layers"][0])) as layer:
            assert layer.getnames() == ["bin", "tmp", "bin/program", "bin/sh"]
    assert manifest[0]["RepoTags"] == ["localhost/p:1"]
    assert config["config"]["User"] == "7"


def test_kuberays_and_our_crds_are_told_from_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crds").mkdir()
    (tmp_path / "crds" / "a.yaml").write_text("apiVersion: v1\nkind: CustomResourceDefinition\n")
    (tmp_path / "crds" / "b.yaml").write_text("apiVersion: v1\nkind: ConfigMap\n")
    monkeypatch.setattr(crds, "CHECKOUT", tmp_path)
    assert [path.name for path in crds.ours()] == ["a.yaml"]


def test_a_process_is_found_again_and_stopped(tmp_path: Path) -> None:
    pid = Processes(tmp_path).start("sleeper", ["sleep", "60"])
    later = Processes(tmp_path)
    assert later.pid("sleeper") == pid
    assert later.start("sleeper", ["sleep", "60"]) == pid
    later.stop("sleeper")
    assert started_at(pid) is None
    assert later.pid("sleeper") is None


def test_a_process_that_ignores_the_polite_signal_is_stopped_by_force(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    pid = processes.start("stubborn", ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"])
    time.sleep(0.2)
    processes.stop("stubborn", seconds=0.3)
    assert started_at(pid) is None


def test_a_reused_process_id_is_not_taken_for_ours(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "etcd.json").write_text(json.dumps({"pid": os.getpid(), "started": 1}))
    assert processes.pid("etcd") is None
    processes.stop("etcd")
    assert started_at(os.getpid()) is not None


def test_what_lost_its_record_is_found_by_its_mark(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    pid = processes.start("parent", ["sh", "-c", "sleep 61 & sleep 62"])
    (tmp_path / "run" / "parent.json").unlink()
    # For a moment after its start the kernel shows a process without its environment.
    processes.wait("mark", lambda: pid in processes.strays(), 5)
    assert pid in processes.sweep()
    assert processes.strays() == []


def test_waiting_ends_early_with_the_log_of_a_process_that_died(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("broken", ["sh", "-c", "echo no such option >&2; exit 3"])
    with pytest.raises(ClusterError, match="no such option"):
        processes.wait("the impossible", lambda: False, 30, ("broken",))


def test_waiting_is_bounded(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    pid = processes.start("idle", ["sleep", "60"])
    with pytest.raises(ClusterError, match="not within"):
        processes.wait("the impossible", lambda: False, 0.3, ("idle",))
    os.kill(pid, signal.SIGKILL)
    processes.stop("idle")
