"""The parent of the training process: whatever the child dies of, there is a result and a last word."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runner import scripted_engine
from tests.unit.runner.documents import DIRECTORY, REPOSITORY, a_run_document, an_algorithm
from tests.unit.runner.processes import descendants, end, is_alive, wait_for
from tests.unit.runner.volumes import Volume
from tuning_contract.causes import Cause
from tuning_contract.checkpoint import Manifest, complete_checkpoints, write_atomically
from tuning_contract.metrics import TRAINER
from tuning_contract.result import RunResult
from tuning_contract.termination import EXIT_DRIVER_ERROR, EXIT_FAILED, EXIT_STOPPED
from tuning_runner.checkpoints import CheckpointStore, Fence
from tuning_runner.metrics_writer import MetricsWriter
from tuning_runner.resources import Memory

STEPS = 3
SUPERVISE = """
import os, sys
from pathlib import Path
from tuning_runner.location import run_directory, run_document_text
from tuning_runner.resources import Memory
from tuning_runner.supervision import Supervision
text = run_document_text(os.environ)
memory = Memory(Path(os.environ["MEMORY"])) if "MEMORY" in os.environ else None
attempt, directory = int(os.environ["TUNING_ATTEMPT"]), run_directory(os.environ, text)
sys.exit(Supervision(text, attempt, directory, sys.argv[1:], memory).execute())
"""


class Scene:
    """A volume, and supervised children on it that train nothing."""

    def __init__(self, root: Path) -> None:
        self.volume = Volume(root)
        self.run = a_run_document(algorithm=an_algorithm(steps=STEPS))
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *child: str, attempt: int = 1, prefix: tuple[str, ...] = (), **variables: str):
        environment = self.volume.environment(self.run, attempt) | variables
        environment["PYTHONPATH"] += f":{REPOSITORY}"
        command = [*prefix, sys.executable, "-c", SUPERVISE, sys.executable, *child]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._processes.append(process)
        return process

    def scripted(self, attempt: int = 1, pauses_at: str = "", **options) -> subprocess.Popen[bytes]:
        """A training process around the scripted engine; returns when it has reached its pause."""
        process = self.start("-m", scripted_engine.COMMAND, attempt=attempt, PAUSES_AT=pauses_at, **options)
        if pauses_at:
            wait_for((self.volume.root / f"paused-{attempt}").exists, process)
        return process

    def execute(self, *child: str, attempt: int = 1, **options) -> tuple[int, str]:
        process = self.start(*child, attempt=attempt, **options)
        output = process.communicate(timeout=60)[0].decode()
        assert self.volume.run.stopped(attempt).exists()
        return process.returncode, output

    def has_trained(self, attempt: int, *steps: int) -> None:
        """Steps of an earlier time, each with its checkpoint."""
        store = CheckpointStore(Fence(self.volume.run, attempt), 2, print)
        with MetricsWriter(self.volume.run, attempt, STEPS) as metrics:
            for step in steps:
                metrics.step(step, {"reward_mean": 0.5})
                store.save(Manifest("trl", step, step, 0.0), lambda folder: (folder / "weights").write_text("w"))

    def close(self) -> None:
        for process in self._processes:
            end(process)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


def test_a_child_that_crashes_leaves_a_result_that_names_the_signal(scene: Scene) -> None:
    scene.has_trained(1, 1, 2)
    code, output = scene.execute("-c", "import os; print('last words', flush=True); os.kill(os.getpid(), 11)")
    assert code == EXIT_FAILED
    result = scene.volume.result
    assert (result.outcome, result.cause, result.step, result.target_steps) == ("Failed", Cause.ENGINE_ERROR, 2, STEPS)
    assert (result.checkpoint, result.attempt) == (f"{DIRECTORY}/checkpoints/step-000002", 1)
    assert "killed by signal SIGSEGV" in result.message
    assert "last words" in output
    assert "killed by signal SIGSEGV" in scene.volume.log(1)


def test_a_child_that_ends_without_a_verdict_is_told_by_its_exit_code(scene: Scene) -> None:
    code, _ = scene.execute("-c", "raise SystemExit(3)")
    assert (code, scene.volume.result.cause) == (EXIT_FAILED, Cause.ENGINE_ERROR)
    assert "exit code 3" in scene.volume.result.message


def counting(folder: Path, kills: int, limit: int) -> Path:
    """The files of a memory cgroup of version 2."""
    folder.mkdir(exist_ok=True)
    (folder / "memory.events").write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    return folder


KILLED = "import os, time; {}; time.sleep({}); os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("pause", "cause", "text"),
    [
        (0.0, Cause.OUT_OF_MEMORY, "at the container's memory limit of 512 MiB; lower `algorithm.microBatchTokens`"),
        (5.5, Cause.ENGINE_ERROR, "killed by signal SIGKILL"),  # it was an episode's worker that lacked memory, earlier
    ],
)
def test_only_a_killing_at_the_childs_own_end_is_its_lack_of_memory(scene: Scene, tmp_path, pause, cause, text) -> None:
    memory = counting(tmp_path / "cgroup", 3, 512 << 20)
    rises = f"open({str(memory / 'memory.events')!r}, 'w').write('oom_kill 4\\n')"
    code, _ = scene.execute("-c", KILLED.format(rises, pause), MEMORY=str(memory))
    assert (code, scene.volume.result.cause) == (EXIT_FAILED, cause)
    assert text in scene.volume.result.message


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A real memory cgroup of version 1 with a limit of 64 MiB."""
    folder = Memory.of_this_process().folder / f"tuning-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(64 << 20))
        with contextlib.suppress(OSError):
            (folder / "memory.memsw.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup of version 1 can be made here: {error}")
    yield folder
    folder.rmdir()


EATS = "x = []\nwhile True:\n    x.append(bytearray(b'x') * (8 << 20))\n"


def test_the_kernels_memory_killer_is_told_with_the_limit(scene: Scene, cgroup: Path) -> None:
    enter = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh")
    code, output = scene.execute("-c", EATS, prefix=enter)
    assert code == EXIT_FAILED, output
    assert scene.volume.result.cause == Cause.OUT_OF_MEMORY, scene.volume.result.message
    assert "memory limit of 64 MiB" in scene.volume.result.message


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ((), "", "."),
        (("a/b",), "0::/a/b\n", "a/b"),
        (("memory/kubepods/x",), "5:cpu,cpuacct:/y\n4:memory:/kubepods/x\n0::/z\n", "memory/kubepods/x"),
        (("memory",), "4:memory:/kubepods/x\n", "memory"),
    ],
)
def test_the_memory_cgroup_is_found_in_both_versions(tmp_path: Path, files, own, expected) -> None:
    for file in files:
        (tmp_path / file).mkdir(parents=True)
    (tmp_path / "own").write_text(own)
    assert Memory.of_this_process(tmp_path, tmp_path / "own").folder == tmp_path / expected


def test_a_container_without_a_limit_and_without_a_count_says_nothing_of_them(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert (Memory(tmp_path).kills(), Memory(tmp_path).limit_in_words()) == (0, "")


def test_a_child_that_dies_of_the_stop_before_it_could_listen_is_stopped(scene: Scene) -> None:
    scene.has_trained(1, 1)
    scene.volume.run.stop_request(1).parent.mkdir(parents=True, exist_ok=True)
    scene.volume.run.stop_request(1).touch()
    mask = "import signal, time; signal.pthread_sigmask(signal.SIG_SETMASK, ()); time.sleep(60)"
    code, _ = scene.execute("-c", mask)
    assert code == EXIT_STOPPED
    result = scene.volume.result
    assert (result.outcome, result.cause, result.step, result.checkpoint_step) == ("Stopped", "", 1, 1)


@pytest.mark.parametrize(("outcome", "code"), [("Failed", EXIT_FAILED), ("Stopped", EXIT_STOPPED)])
def test_a_result_that_the_child_has_written_stays_whatever_it_dies_of(scene: Scene, outcome: str, code: int) -> None:
    written = RunResult("uid", "digest", 1, outcome, 2, 4, 0.0, message="in its own words")
    write_atomically(scene.volume.run.result, written.to_text())
    assert scene.execute("-c", "import os; os.abort()")[0] == code
    assert scene.volume.result == written


def test_a_parent_whose_attempt_was_replaced_writes_no_result(scene: Scene) -> None:
    write_atomically(scene.volume.run.current_attempt, "2\n")
    code, output = scene.execute("-c", "import os; os.abort()")
    assert code == EXIT_FAILED
    assert "no result is written: attempt 2 has replaced this attempt (1)" in output
    assert not scene.volume.run.result.exists()


def test_a_killed_parent_takes_its_child_with_it(scene: Scene) -> None:
    process = scene.scripted(pauses_at="step 2")
    (child,) = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("place", ["check", "evaluate base", "step 3", "evaluate step-000003", "export"])
def test_a_stop_ends_whatever_the_training_process_waits_for(scene: Scene, place: str) -> None:
    process = scene.scripted(pauses_at=place)
    asked = time.monotonic()
    process.terminate()
    output = process.communicate(timeout=30)[0].decode()
    assert process.returncode == EXIT_STOPPED, output
    assert time.monotonic() - asked < 2
    saved = {"check": 0, "evaluate base": 0, "step 3": 2}.get(place, 3)
    assert (scene.volume.result.outcome, scene.volume.result.step) == ("Stopped", saved)
    assert scene.volume.result.final_model == ""
    assert scene.volume.run.stopped(1).exists()


HELD_UP = """
import os, threading, time
from pathlib import Path
from tuning_runner.stopping import Stop, StopError
stop = Stop()
stop.listen()
threading.Thread(target=time.sleep, args=(60,)).start()
try:
    Path(os.environ["TUNING_VOLUME"], "ready").touch()
    time.sleep(60)
except StopError:
    time.sleep(60)  # a library that waits for its threads on the way out
"""


def test_a_library_that_holds_up_the_way_out_is_not_waited_for_when_nothing_is_unsaved(scene: Scene) -> None:
    process = scene.start("-c", HELD_UP)
    wait_for((scene.volume.root / "ready").exists, process)
    asked = time.monotonic()
    process.terminate()
    output = process.communicate(timeout=30)[0].decode()
    assert process.returncode == EXIT_STOPPED, output
    assert time.monotonic() - asked < 3
    assert scene.volume.result.outcome == "Stopped"


def test_an_old_attempt_that_wakes_up_after_the_next_has_begun_changes_nothing(scene: Scene) -> None:
    old = scene.scripted(attempt=1, pauses_at="step 3")
    os.killpg(old.pid, signal.SIGSTOP)
    assert scene.scripted(attempt=2).wait(timeout=60) == 0
    result = scene.volume.run.result.read_text()
    records, checkpoints = scene.volume.records(TRAINER), complete_checkpoints(scene.volume.run.checkpoints)
    assert scene.volume.result.attempt == 2
    (scene.volume.root / "go").touch()
    os.killpg(old.pid, signal.SIGCONT)
    output = old.communicate(timeout=30)[0].decode()
    assert old.returncode == EXIT_FAILED
    assert "attempt 2 has replaced this attempt (1)" in output
    assert scene.volume.run.result.read_text() == result
    assert scene.volume.records(TRAINER) == records
    assert complete_checkpoints(scene.volume.run.checkpoints) == checkpoints
    assert scene.volume.run.stopped(1).exists()


def test_a_second_runner_of_the_same_attempt_trains_nothing(scene: Scene) -> None:
    first = scene.scripted(pauses_at="step 2")
    second = scene.scripted()
    output = second.communicate(timeout=60)[0].decode()
    assert second.returncode == EXIT_FAILED, output
    assert scene.volume.result.cause == Cause.HEAD_LOST
    os.killpg(first.pid, signal.SIGKILL)


def test_a_run_json_that_cannot_be_read_starts_no_child(tmp_path: Path) -> None:
    environment = Volume(tmp_path).environment(a_run_document(), 1)
    Path(environment["TUNING_RUN_DOCUMENT"]).write_text("{}")
    command = [sys.executable, "-m", "tuning_runner"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert process.returncode == EXIT_DRIVER_ERROR
    assert "checkpoint" in process.stderr


def test_the_parent_loads_no_training_library(tmp_path: Path) -> None:
    code = "import sys, tuning_runner.__main__; print({'torch', 'ray', 'trl', 'asyncio', 'aiohttp'} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "operator")}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert process.stdout.strip() == "set()", process.stderr
