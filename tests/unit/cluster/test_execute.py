"""What becomes of a plan: the requests that are made, in which order, and what is noted of the answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from tests.builders import UID, a_run_object, some_settings
from tests.unit.cluster.caches import an_observer, some_caches
from tests.unit.cluster.server import FakeServer, a_status
from tests.unit.cluster.test_observe import a_pod, an_object
from tests.unit.engine.worlds import CLUSTER_UID, JOB_UID, NAME, NOW, RUNNING
from tuning_contract.stopping import stop_token
from tuning_operator import errors
from tuning_operator.cluster import projections
from tuning_operator.cluster.announcer import Announcer
from tuning_operator.cluster.client import ApiClient
from tuning_operator.cluster.execute import Executor, Hands, next_stage
from tuning_operator.cluster.memory import Memory, RunMemory
from tuning_operator.cluster.queue import Lane
from tuning_operator.cluster.sidecar import SidecarClient, Unreachable
from tuning_operator.engine.plan import Plan, StatusWrite
from tuning_operator.engine.world import Child, ClusterView, JobView, StopAnswer, World


class Sidecars(SidecarClient):
    """Sidecars of which each gives the answer that is set."""

    def __init__(self, answer: StopAnswer | Unreachable = StopAnswer.TAKEN) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    async def stop(self, address: str, token: str) -> StopAnswer:
        self.asked.append((address, token))
        if isinstance(self.answer, Unreachable):
            raise self.answer
        return self.answer


class Hall:
    """An executor before a server that answers as told, with a running run in its copies."""

    def __init__(self, client: ApiClient, sidecars: Sidecars, stop_key: str) -> None:
        self.caches, self.memory = some_caches(client), Memory()
        settings = some_settings(stop_key=stop_key)
        announcer = Announcer(client, "test")
        self.executor = Executor(Hands(client, self.caches, self.memory, sidecars, announcer, lambda: NOW), settings)
        self.caches.runs.put(a_run_object(status=RUNNING))
        self.caches.clusters.put(an_object(NAME, CLUSTER_UID, UID))
        self.caches.jobs.put(an_object(NAME, JOB_UID, CLUSTER_UID, UID))
        self.caches.pods.put(a_pod("head", CLUSTER_UID, "head"))

    def world(self) -> World:
        return an_observer(self.caches, self.memory).observe(projections.run(a_run_object(status=RUNNING)), NOW)

    @property
    def notes(self) -> RunMemory:
        return self.memory.of(UID, NOW)

    async def carry_out(self, plan: Plan, world: World | None = None) -> None:
        stage = next_stage(plan)
        assert stage is not None
        await self.executor.carry_out(stage, world or self.world(), plan)


@asynccontextmanager
async def a_hall(
    server: FakeServer | None = None, sidecars: Sidecars | None = None, stop_key: str = "key"
) -> AsyncIterator[Hall]:
    async with (server or FakeServer()).client() as client:
        yield Hall(client, sidecars or Sidecars(), stop_key)


WRITE = StatusWrite({"phase": "Suspending"}, ())


@pytest.mark.parametrize(
    ("plan", "lane"),
    [
        (Plan(read=("a",), create=(Child.JOB,)), Lane.CLUSTER),
        (Plan(create=(Child.JOB,), look=True), Lane.JOB),
        (Plan(look=True, status=WRITE), Lane.STATUS),
        (Plan(status=WRITE, ask_stop=True, delete_cluster=True), Lane.STATUS),
        (Plan(ask_stop=True), Lane.CLEANUP),
        (Plan(delete_earlier=(ClusterView("a", "u"),)), Lane.CLEANUP),
        (Plan(end_jobs=(JobView("a", "u"),)), Lane.CLEANUP),
        (Plan(delete_run=True), Lane.CLEANUP),
    ],
)
def test_the_first_stage_of_a_plan_is_in_its_lane(plan: Plan, lane: Lane) -> None:
    stage = next_stage(plan)
    assert stage is not None
    assert stage.lane is lane


def test_a_plan_that_only_waits_has_no_stage() -> None:
    assert next_stage(Plan(due=NOW)) is None


@pytest.mark.parametrize("answer", [StopAnswer.TAKEN, StopAnswer.REFUSED])
async def test_the_head_is_asked_to_stop_with_the_token_of_the_attempt(answer: StopAnswer) -> None:
    sidecars = Sidecars(answer)
    async with a_hall(sidecars=sidecars) as hall:
        await hall.carry_out(Plan(ask_stop=True))
        assert sidecars.asked == [("10.0.0.7", stop_token("key", UID, 1))]
        assert (hall.notes.stop, hall.notes.stop_asked_at) == (answer, NOW)


async def test_a_sidecar_that_does_not_answer_is_noted_and_nothing_is_raised() -> None:
    async with a_hall(sidecars=Sidecars(Unreachable("no route"))) as hall:
        await hall.carry_out(Plan(ask_stop=True))
        assert (hall.notes.stop, hall.notes.stop_asked_at) == (StopAnswer.UNREACHABLE, NOW)


async def test_without_a_key_no_sidecar_is_asked_since_none_would_obey() -> None:
    sidecars = Sidecars()
    async with a_hall(sidecars=sidecars, stop_key="") as hall:
        await hall.carry_out(Plan(ask_stop=True))
        assert hall.notes.stop is StopAnswer.REFUSED
    assert sidecars.asked == []


async def test_a_job_is_ended_by_a_patch_of_that_very_job() -> None:
    ended = an_object(NAME, JOB_UID, CLUSTER_UID, UID, resourceVersion="6") | {"spec": {"activeDeadlineSeconds": 1}}
    server = FakeServer(answers=[web.json_response(ended)])
    async with a_hall(server) as hall:
        job = hall.world().job
        assert job is not None
        assert not job.end_asked
        await hall.carry_out(Plan(end_jobs=(job,)))
        after = hall.world().job
        assert after is not None
        assert after.end_asked
    assert server.bodies == [
        {"metadata": {"uid": JOB_UID, "resourceVersion": "5"}, "spec": {"activeDeadlineSeconds": 1}}
    ]


async def test_a_job_that_changed_is_looked_at_again_before_it_is_ended() -> None:
    server = FakeServer(answers=[web.json_response(a_status(409), status=409)])
    async with a_hall(server) as hall:
        job = hall.world().job
        assert job is not None
        with pytest.raises(errors.Conflict):
            await hall.carry_out(Plan(end_jobs=(job,)))


@pytest.mark.parametrize("code", [403, 404])
async def test_a_job_that_cannot_be_ended_stops_nothing(code: int) -> None:
    server = FakeServer(answers=[web.json_response(a_status(code), status=code)])
    async with a_hall(server) as hall:
        job = hall.world().job
        assert job is not None
        await hall.carry_out(Plan(end_jobs=(job,)))
        assert ("delete" in hall.notes.refusals) is (code == 403)
        assert (hall.world().job is None) is (code == 404)


async def test_clusters_of_earlier_attempts_and_the_run_itself_are_deleted_by_their_uids() -> None:
    server = FakeServer(answers=[web.json_response({"kind": "Status"}) for _ in range(2)])
    second = dict(RUNNING) | {"attempt": {"number": 2}}
    async with a_hall(server) as hall:
        hall.caches.runs.put(a_run_object(metadata={"resourceVersion": "1001"}, status=second))
        world = an_observer(hall.caches, hall.memory).observe(projections.run(a_run_object(status=second)), NOW)
        await hall.carry_out(Plan(delete_earlier=world.earlier_clusters), world)
        await hall.carry_out(Plan(delete_run=True), world)
        assert len(hall.caches.clusters) == len(hall.caches.runs) == 0
    paths = [request.path.rpartition("/namespaces/ml/")[2] for request in server.requests]
    assert paths == [f"rayclusters/{NAME}", "tuningruns/math-agent"]
    assert [body["preconditions"]["uid"] for body in server.bodies] == [CLUSTER_UID, UID]


async def test_a_look_brings_what_the_watches_have_not_told_yet() -> None:
    late = a_pod("late", CLUSTER_UID, "worker", resourceVersion="9")
    page = {"metadata": {"resourceVersion": "9"}}
    clusters = [web.json_response(page | {"items": []}), web.json_response(a_status(404), status=404)]
    for answer in clusters:
        server = FakeServer(answers=[answer, web.json_response(page | {"items": [late]})])
        async with a_hall(server) as hall:
            await hall.carry_out(Plan(look=True))
            assert [pod.name for pod in hall.world().pods] == ["head", "late"]
            # What is gone, the watch tells: it knows the last state.
            assert hall.world().cluster is not None
            assert hall.notes.looked_at == NOW
        asked = [dict(request.query)["labelSelector"] for request in server.requests]
        assert asked == [f"agenttuning.io/run-uid={UID}"] * 2
        assert [request.path.rpartition("/")[2] for request in server.requests] == ["rayclusters", "pods"]


@pytest.mark.parametrize("child", [Child.CLUSTER, Child.CONFIG, Child.JOB])
async def test_a_child_that_is_being_deleted_is_not_taken_for_the_one_that_is_wanted(child: Child) -> None:
    going = an_object("any", "u", UID, deletionTimestamp="2026-01-02T12:00:00Z")
    found: Any = going if child is Child.CONFIG else {"metadata": {"resourceVersion": "9"}, "items": [going]}
    server = FakeServer(answers=[web.json_response(a_status(409), status=409), web.json_response(found)])
    async with a_hall(server) as hall:
        with pytest.raises(errors.Conflict):
            await hall.carry_out(Plan(create=(child,)))
        assert not hall.notes.config_made
        assert not hall.notes.refusals


async def test_nothing_is_noted_of_a_namespace_that_goes() -> None:
    causes = {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}
    going = web.json_response(a_status(403, "because it is being terminated") | causes, status=403)
    for answer in (going, web.json_response(a_status(404, 'namespaces "ml" not found'), status=404)):
        async with a_hall(FakeServer(answers=[answer])) as hall:
            with pytest.raises(errors.ApiError):
                await hall.carry_out(Plan(create=(Child.CONFIG,)))
            assert not hall.notes.refusals


def test_a_later_attempts_cluster_shows_that_our_run_is_an_old_one_and_is_left_alone() -> None:
    run = a_run_object(status=dict(RUNNING) | {"attempt": {"number": 2}})
    caches = some_caches()
    for number in (1, 2, 3):
        caches.clusters.put(an_object(f"{NAME[:-1]}{number}", f"uid-{number}", UID))
        caches.jobs.put(an_object(f"{NAME[:-1]}{number}", f"uid-{number}", UID))
    world = an_observer(caches).observe(projections.run(run), NOW)
    assert world.cluster is not None
    assert world.cluster.uid == "uid-2"
    assert [cluster.uid for cluster in world.earlier_clusters] == ["uid-1"]
    assert [job.uid for job in world.earlier_jobs] == ["uid-1"]


@pytest.mark.parametrize(("state", "kept"), [({}, True), ({"type": "Complete", "status": "True"}, False)])
def test_of_an_ended_run_nothing_is_kept_in_memory_once_its_job_has_ended(state: dict[str, Any], kept: bool) -> None:
    ended = dict(RUNNING) | {"phase": "Succeeded"}
    caches, memory = some_caches(), Memory()
    caches.jobs.put(an_object(NAME, JOB_UID, UID) | {"status": {"conditions": [state]}})
    memory.of(UID, NOW).begin(1)
    memory.of(UID, NOW).note_departure(projections.pod(a_pod("driver", JOB_UID, "driver")))
    world = an_observer(caches, memory).observe(projections.run(a_run_object(status=ended)), NOW)
    assert bool(world.notes.departed) is bool(memory.of(UID, NOW).departed) is kept


def test_an_attempts_memory_does_not_outlive_it() -> None:
    memory = Memory().of(UID, NOW)
    memory.begin(1)
    memory.stop, memory.looked_at, memory.config_made = StopAnswer.TAKEN, NOW, True
    memory.note_departure(projections.pod(a_pod("head", CLUSTER_UID, "head")))
    first = memory.notes()
    memory.begin(1)
    assert memory.notes() == first
    memory.begin(2)
    # A pod of the attempt before that goes late says nothing about this one.
    memory.note_departure(projections.pod(a_pod("head", CLUSTER_UID, "head")))
    second = memory.notes()
    assert second == replace(first, stop=StopAnswer.NOT_ASKED, looked_at=None, departed=(), since={})
    assert second.config_made
