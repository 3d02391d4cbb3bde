"""Episodes on the worker nodes of a real Ray cluster on this machine: where they run, how they are confined, losses."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.unit.runner.documents import a_run_document
from tests.unit.runner.episodes.scripted import (
    AGENTS,
    Bench,
    CharacterRenderer,
    ScriptedPolicy,
    a_bench,
)
from tests.unit.runner.local_ray import LocalRay, a_local_ray, descendants_of
from tuning_contract.causes import Cause
from tuning_contract.outcomes import Outcome
from tuning_contract.run_document import ExpectedCluster, Sampling, WorkflowSettings
from tuning_runner import ray_cluster
from tuning_runner.episode_host import EpisodeHost
from tuning_runner.episodes.batch import EpisodeBatch
from tuning_runner.episodes.errors import EntrypointError, RunError, UserCodeError
from tuning_runner.episodes.node import EpisodeNode
from tuning_runner.episodes.workers import WorkerSettings
from tuning_runner.ray_workers import Patience, RayWorkerPool

pytestmark = [
    # Ray's own, of the code that starts nodes.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
]

TASK = {"question": "hi", "answer": "hi"}


@pytest.fixture(scope="module")
def local_ray() -> Iterator[LocalRay]:
    with a_local_ray(nodes=2) as local, ray_cluster.joined(ExpectedCluster(3, 0, 2), print):
        yield local


@pytest.fixture(scope="class")
def said() -> list[str]:
    return []


def a_ray_pool(said: list[str], without_nodes: float = 60.0) -> Callable[[WorkerSettings], RayWorkerPool]:
    return lambda settings: RayWorkerPool(settings, said.append, Patience(0.2, again=2.0, without_nodes=without_nodes))


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def bench(local_ray: LocalRay, said: list[str]) -> AsyncIterator[Bench]:
    """For the tests that harm no node: its workflow does what a task says."""
    async with a_bench("scripted", size=6, seconds=2.0, make_pool=a_ray_pool(said)) as bench:
        yield bench


@pytest.mark.asyncio(loop_scope="class")
class TestNodesThatAreWell:
    """They share one pool."""

    async def test_episodes_run_on_all_nodes_and_are_judged_there(self, bench: Bench, said: list[str]) -> None:
        assert "episode workers on 2 nodes" in said[-1]
        long = "x" * 2_000_000
        tasks = [TASK | {"does": "where"}, {"question": "yo", "answer": "no"}, TASK | {"context": long}]
        results = await bench.run(tasks, group_size=4)
        records = [result.record for result in results]
        assert [record.reward for record in records] == [1.0] * 4 + [0.0] * 4 + [1.0] * 4
        assert {record.outcome for record in records} == {Outcome.COMPLETED}
        assert {len(record.judge_digest) for record in records} == {16}
        assert len({record.metrics["template"] for record in records if "template" in record.metrics}) == 2

    async def test_user_code_that_dies_hangs_or_raises_on_a_node_harms_no_other_episode(self, bench: Bench) -> None:
        deeds = {
            "exit": Outcome.LOST,
            "segfault": Outcome.LOST,
            "loop": Outcome.LIMIT_REACHED,
            "raise": Outcome.AGENT_ERROR,
            "sys.exit": Outcome.AGENT_ERROR,
            "connection": Outcome.ENVIRONMENT_ERROR,
            "sleep": Outcome.LIMIT_REACHED,
        }
        healthy = [{"question": f"number {place}", "answer": f"number {place}"} for place in range(8)]
        results = await bench.run([*(TASK | {"does": does} for does in deeds), *healthy])
        assert [result.record.reward for result in results[-8:]] == [1.0] * 8
        assert [result.record.outcome for result in results[:-8]] == list(deeds.values())
        texts = [result.record.error.text if result.record.error else "" for result in results]
        assert "exit code 3" in texts[0]
        assert "SIGSEGV" in texts[1]
        assert texts[3].startswith("ValueError: cannot use hi\n")

    async def test_an_abandoned_step_ends_its_workers_on_the_nodes_too(self, bench: Bench, local_ray: LocalRay) -> None:
        bench.policy.requests.clear()
        running = asyncio.create_task(bench.run([TASK | {"does": "loop"}], group_size=6))
        while len(bench.policy.requests) < 6:
            await asyncio.sleep(0.01)
        before = workers_of(local_ray)
        bench.runner.abandon()
        results = await running
        assert [result.record.outcome for result in results] == [Outcome.LOST] * 6
        assert len(before) >= 6
        assert len(set(before) & set(workers_of(local_ray))) == len(before) - 6
        (result,) = await bench.run([TASK], step=4)
        assert result.record.reward == 1.0


@pytest.mark.parametrize(
    ("workflow", "error", "text"),
    [
        ("no_such_module:run", EntrypointError, "there is no module no_such_module"),
        ("broken_agent:run", UserCodeError, "LookupError: no licence"),
    ],
)
async def test_user_code_that_cannot_be_loaded_on_a_node_fails_the_start_in_its_own_words(
    local_ray: LocalRay, workflow: str, error: type[RunError], text: str
) -> None:
    for node in local_ray.nodes:
        (node.modules / "broken_agent.py").write_text("raise LookupError('no licence')")
    pool = a_ray_pool([])(WorkerSettings(WorkflowSettings(workflow), size=2))
    with pytest.raises(error, match=text):
        await pool.start()
    await pool.stop()


async def test_nodes_whose_judges_are_not_the_same_are_a_config_error(local_ray: LocalRay) -> None:
    for node in local_ray.nodes:
        code = f"async def judge(task, response): ...  # {node.modules}"
        (node.modules / "moved_judge.py").write_text(code)
    pool = a_ray_pool([])(WorkerSettings(WorkflowSettings(f"{AGENTS}:answers", "moved_judge:judge"), size=2))
    with pytest.raises(RunError, match="head and workers must run one image") as caught:
        await pool.start()
    assert caught.value.cause is Cause.CONFIG_INVALID
    await pool.stop()


async def test_a_host_with_episode_nodes_serves_the_model_on_its_nodes_address_and_prints_what_they_print(
    local_ray: LocalRay, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = WorkflowSettings(f"{AGENTS}:prints", f"{AGENTS}:exact")
    host = EpisodeHost(a_run_document(workflow=workflow, cluster=ExpectedCluster(3, 0, 2)), 1)
    host.load_user_code().result()
    host.serve(ScriptedPolicy(), CharacterRenderer())
    batch = EpisodeBatch(step=1, tasks=[TASK], group_size=4, policy_version=0, sampling=Sampling())
    assert [result.record.reward for result in host.run(batch)] == [1.0] * 4
    assert host._gateway is not None
    assert host._gateway.url.startswith(f"http://{ray_cluster.own_address()}:")
    printed = ""

    def all_printed() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return f"an agent was asked hi, with no proxy for {ray_cluster.own_address()}" in printed

    await until(all_printed)
    assert "episode workers on 2 nodes" in printed
    host.close()
    assert workers_of(local_ray) == []


class HeldPolicy(ScriptedPolicy):
    """Answers nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()

    async def generate(self, request: Any) -> Any:
        waiting = self.free.wait()
        self.requests.append(request)
        await waiting
        self.requests.pop()
        return await super().generate(request)


async def test_the_episodes_of_a_lost_node_are_run_on_another_and_a_node_that_is_back_is_used(
    local_ray: LocalRay,
) -> None:
    policy, said = HeldPolicy(), list[str]()
    options: dict[str, Any] = {"policy": policy, "size": 4, "max_attempts": 3, "seconds": 60.0}
    async with a_bench("tells_its_node", judge=None, make_pool=a_ray_pool(said), **options) as bench:
        running = asyncio.create_task(bench.run([TASK], group_size=4))
        await until(lambda: len(policy.requests) == 4)
        local_ray.kill(local_ray.nodes[0])
        await until(lambda: "lost the episode workers on node" in said[-1])
        policy.free.set()
        records = [result.record for result in await running]
        assert {record.outcome for record in records} == {Outcome.COMPLETED}
        assert len({record.reward for record in records}) == 1
        assert sorted(record.tries for record in records) == [1, 1, 2, 2]

        local_ray.add()
        await until(lambda: "episode workers on 2 nodes" in said[-1])
        again = [result.record for result in await bench.run([TASK], group_size=4, step=4)]
        assert {record.outcome for record in again} == {Outcome.COMPLETED}
        assert len({record.reward for record in again}) == 2


async def test_an_actor_that_dies_alone_leaves_nothing_behind_and_its_node_is_used_again(local_ray: LocalRay) -> None:
    policy, said = HeldPolicy(), list[str]()
    options: dict[str, Any] = {"policy": policy, "size": 4, "max_attempts": 3, "seconds": 60.0}
    async with a_bench("tells_its_node", judge=None, make_pool=a_ray_pool(said), **options) as bench:
        running = asyncio.create_task(bench.run([TASK], group_size=4))
        await until(lambda: len(policy.requests) == 4)
        node = local_ray.nodes[0]
        (actor,) = [process for process in node.processes() if b"ray::EpisodeActor" in command_of(process)]
        theirs = descendants_of(actor)
        assert len(theirs) == 3  # the template with two workers
        os.kill(actor, signal.SIGKILL)
        await until(lambda: "lost the episode workers on node" in said[-1])
        await until(lambda: "episode workers on 2 nodes" in said[-1])
        await until(lambda: not any(map(command_of, theirs)))
        policy.free.set()
        assert {result.record.outcome for result in await running} == {Outcome.COMPLETED}
        again = [result.record for result in await bench.run([TASK], group_size=4, step=4)]
        assert len({record.reward for record in again}) == 2


async def test_a_node_that_cannot_load_the_code_harms_nobody_until_no_other_is_left(
    local_ray: LocalRay, caplog: pytest.LogCaptureFixture
) -> None:
    for node in local_ray.nodes:
        (node.modules / "agent_of_old_nodes.py").write_text("async def run(task, model): raise ValueError('ran')")
    old = list(local_ray.nodes)
    pool = a_ray_pool([], without_nodes=1.0)
    async with a_bench("run", judge=None, module="agent_of_old_nodes", max_attempts=3, make_pool=pool) as bench:
        local_ray.add()
        await until(lambda: "there is no module agent_of_old_nodes" in caplog.text)
        (result,) = await bench.run([TASK])
        assert result.record.outcome is Outcome.AGENT_ERROR
        for node in old:
            local_ray.kill(node)
        with pytest.raises(EntrypointError, match="there is no module agent_of_old_nodes"):
            await bench.run([TASK], step=4)


async def test_a_run_without_any_node_fails_as_a_lost_worker_that_says_where_to_look(local_ray: LocalRay) -> None:
    policy = HeldPolicy()
    options: dict[str, Any] = {"policy": policy, "size": 1, "max_attempts": 3, "seconds": 60.0}
    async with a_bench("scripted", make_pool=a_ray_pool([], without_nodes=1.0), **options) as bench:
        policy.free.set()
        running = asyncio.create_task(bench.run([TASK, TASK | {"does": "loop"}]))
        await until(lambda: len(policy.requests) == 2)
        for node in list(local_ray.nodes):
            local_ray.kill(node)
        with pytest.raises(RunError, match=r"for 1 s: see why the pods of `cluster.workers` do not run") as caught:
            await running
    assert caught.value.cause is Cause.WORKER_LOST
    assert [record.episode for record in caught.value.records] == ["3.0.0"]


async def test_an_order_that_arrives_after_its_lease_has_ended_is_not_carried_out() -> None:
    node = EpisodeNode(WorkerSettings(WorkflowSettings(f"{AGENTS}:answers"), size=1))
    await node.give_up(7)
    assert "given up" in await node.order(7, "workflow", "{}", 1.0, [])


def test_a_host_without_episode_nodes_does_not_import_ray() -> None:
    code = "import sys, tuning_runner.attempt, tuning_runner.episode_host; print('ray' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout == "False\n"


def workers_of(local_ray: LocalRay) -> list[int]:
    """Worker processes on all nodes: what the templates forked."""
    below = [process for node in local_ray.nodes for process in node.processes()]
    templates = [process for process in below if b"worker_process" in command_of(process)]
    return [process for process in templates if any(process in descendants_of(other) for other in templates)]


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.02)
