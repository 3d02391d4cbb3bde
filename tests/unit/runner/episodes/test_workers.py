"""Loading user code, and the life of worker processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.runner.documents import a_run_document
from tests.unit.runner.episodes.scripted import AGENTS, a_bench
from tuning_contract.causes import Cause
from tuning_contract.run_document import WorkflowSettings
from tuning_runner.episode_host import EpisodeHost
from tuning_runner.episodes.errors import EntrypointError, RunError, UserCodeError
from tuning_runner.episodes.workers import WorkerPool, WorkerSettings


async def load(workflow: str, judge: str | None = None, start_seconds: float = 60.0) -> RunError | None:
    pool = WorkerPool(WorkerSettings(WorkflowSettings(workflow, judge), size=1, start_seconds=start_seconds))
    try:
        await pool.start()
    except RunError as error:
        return error
    finally:
        await pool.stop()
    return None


@pytest.mark.parametrize(
    ("workflow", "judge", "text"),
    [
        ("no_such_module:run", None, "there is no module no_such_module"),
        (f"{AGENTS}:nothing", None, "has no function 'nothing'"),
        (AGENTS, None, "must read `module:function`"),
        (f"{AGENTS}:not_async", None, "write `async def not_async"),
        (f"{AGENTS}:other_names", None, "lacks the parameter 'task'"),
        (f"{AGENTS}:answers", f"{AGENTS}:two_turns", "workflow.judge .* lacks the parameter 'response'"),
    ],
)
async def test_a_wrong_entry_point_is_a_config_error_that_says_what_to_change(
    workflow: str, judge: str | None, text: str
) -> None:
    error = await load(workflow, judge)
    assert isinstance(error, EntrypointError)
    assert error.cause is Cause.CONFIG_INVALID
    with pytest.raises(EntrypointError, match=text):
        raise error


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import os\nos._exit(7)", "exit code 7"),
        ("raise LookupError('no licence')", "LookupError: no licence"),
        (r"raise LookupError('no \ud83d')", "LookupError: no ?"),
        ("import not_installed_anywhere", "not_installed_anywhere"),
        ("import time\ntime.sleep(60)", "took longer than 1 seconds"),
    ],
)
async def test_a_module_that_fails_at_import_fails_the_run_and_not_the_trainer(
    source: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_agent.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    error = await load("broken_agent:run", start_seconds=1.0 if "sleep" in source else 60.0)
    assert isinstance(error, UserCodeError)
    assert error.cause is Cause.WORKFLOW_ERROR
    assert text in error.message


def test_a_module_that_hangs_at_import_is_ended_with_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "pid"
    source = f"import os, pathlib, time\npathlib.Path({str(started)!r}).write_text(str(os.getpid()))\ntime.sleep(120)"
    (tmp_path / "hanging_agent.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    host = EpisodeHost(a_run_document(workflow=WorkflowSettings("hanging_agent:run")), 1)
    loading = host.load_user_code()
    deadline = time.monotonic() + 60
    while not (started.exists() and started.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    before = time.monotonic()
    host.close()
    assert time.monotonic() - before < 10
    assert not _runs(int(started.read_text()))
    assert isinstance(loading.exception(timeout=0), UserCodeError)


async def test_a_template_that_answers_too_late_is_replaced() -> None:
    tasks = [{"question": "hi", "answer": "hi"}]
    async with a_bench(size=2) as bench:
        await bench.run(tasks)
        template = bench.pool._running()
        template._control.settimeout(0.3)
        os.kill(template._process.pid, signal.SIGSTOP)
        results = await bench.run(tasks, group_size=6, step=4)
        assert [result.record.reward for result in results] == [1.0] * 6
        assert bench.pool._running() is not template
        assert not _runs(template._process.pid)


async def test_workers_are_used_again_and_ended_with_the_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "import os\nfrom tuning_runner.episodes import WorkflowOutput\n"
    source += "async def run(task, model):\n    import sys\n"
    source += "    loaded = [name for name in ('torch', 'trl', 'ray', 'transformers') if name in sys.modules]\n"
    source += "    return WorkflowOutput(reward=os.getpid(), response=loaded)\n"
    (tmp_path / "process_agent.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "process_agent" not in sys.modules
    async with a_bench("run", judge=None, module="process_agent", size=2) as bench:
        results = await bench.run([{}], group_size=10)
        processes = {int(result.record.reward or 0) for result in results}
        assert 1 <= len(processes) <= 2
        assert os.getpid() not in processes
        assert {result.response for result in results} == {"[]"}
    assert [process for process in processes if Path(f"/proc/{process}").exists()] == []
    assert "process_agent" not in sys.modules


async def test_a_killed_template_is_replaced_and_its_workers_end_in_time() -> None:
    tasks = [{"question": "hi", "answer": "hi"}]
    before = _children_of(os.getpid())
    async with a_bench(size=2) as bench:
        await bench.run(tasks)
        (template,) = set(_children_of(os.getpid())) - set(before)
        os.kill(template, signal.SIGKILL)
        results = await bench.run(tasks, group_size=6, step=4)
        assert [result.record.reward for result in results] == [1.0] * 6
        assert template not in _children_of(os.getpid())


def test_a_killed_trainer_leaves_no_worker_behind(tmp_path: Path) -> None:
    script = (
        "import asyncio, os\n"
        "from tests.unit.runner.episodes.scripted import a_bench\n"
        "async def main():\n"
        "    async with a_bench('scripted', size=2, seconds=60) as bench:\n"
        "        work = asyncio.create_task(bench.run([{'question': 'x', 'does': 'loop'}], group_size=2))\n"
        "        while len(bench.policy.requests) < 2:\n"
        "            await asyncio.sleep(0.01)\n"
        "        print('running', flush=True)\n"
        "        await work\n"
        "asyncio.run(main())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"running\n"
        (template,) = _children_of(trainer.pid)
        workers = _children_of(template)
        assert len(workers) == 2
        trainer.kill()
    deadline = time.monotonic() + 5
    while any(_runs(process) for process in (template, *workers)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _children_of(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _runs(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"NO_PROXY": "example.com"},
        {"no_proxy": "example.com"},
        {"NO_PROXY": "*"},
        {"NO_PROXY": "a.b", "no_proxy": ""},
    ],
    ids=str,
)
async def test_clients_of_user_code_reach_the_model_beside_a_proxy(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    for package in ("openai", "httpx", "requests"):
        pytest.importorskip(package)
    for name in ("HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        for spelling in (name, name.lower()):
            monkeypatch.delenv(spelling, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name, hosts in given.items():
        monkeypatch.setenv(name, hosts)
    module = "tests.unit.runner.episodes.client_agents"
    async with a_bench("asks_with_each_client", judge=None, module=module, size=1) as bench:
        (result,) = await bench.run([{"question": "hi"}])
    assert result.record.error is None
    assert result.response == str(["hi"] * 4)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("10.0.0.1", "10.0.0.1")),
        ({"NO_PROXY": "a.b"}, ("a.b,10.0.0.1", "a.b,10.0.0.1")),
        ({"no_proxy": "a.b", "NO_PROXY": "c.d"}, ("a.b,10.0.0.1", "c.d,10.0.0.1")),
        ({"no_proxy": "*"}, ("*", "*")),
    ],
)
async def test_a_run_keeps_the_hosts_that_it_reaches_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], expected: tuple[str, str]
) -> None:
    (tmp_path / "no_proxy_agent.py").write_text(
        "import os\nseen = os.environ['no_proxy'], os.environ['NO_PROXY']\nraise LookupError(repr(seen))"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, hosts in given.items():
        monkeypatch.setenv(name, hosts)
    pool = WorkerPool(WorkerSettings(WorkflowSettings("no_proxy_agent:run"), size=1, gateway_host="10.0.0.1"))
    with pytest.raises(UserCodeError) as caught:
        await pool.start()
    assert repr(expected) in caught.value.message
