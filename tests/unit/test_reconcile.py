"""The loop around the decisions: what an error makes of a key, and that no request is made twice."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from tests.builders import UID, a_run_object, merged, some_settings
from tests.unit.cluster.caches import an_observer, some_caches
from tests.unit.cluster.server import FakeServer, a_status
from tests.unit.engine.worlds import NOW
from tuning_operator.api import meta
from tuning_operator.cluster.announcer import Announcer
from tuning_operator.cluster.client import ApiClient
from tuning_operator.cluster.execute import Executor, Hands
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.observe import Caches
from tuning_operator.cluster.queue import Lane, WorkQueue
from tuning_operator.cluster.sidecar import SidecarClient
from tuning_operator.engine.plan import Plan
from tuning_operator.engine.world import World
from tuning_operator.reconcile import Reconciler
from tuning_operator.settings import Settings
from tuning_operator.telemetry import Telemetry


class Desk:
    """A reconciler whose copies are filled by hand, before a server that answers as told."""

    def __init__(self, client: ApiClient) -> None:
        self.caches: Caches = some_caches()
        self.queue, self.memory = WorkQueue(), Memory()
        announcer = Announcer(client, "test")
        hands = Hands(client, self.caches, self.memory, SidecarClient(), announcer, lambda: NOW)
        observer = an_observer(self.caches, self.memory)
        executor = Executor(hands, some_settings())
        self.reconciler = Reconciler(
            self.queue, observer, executor, self.memory, Telemetry(), some_settings(), lambda: NOW
        )

    async def look(self, lane: Lane = Lane.CLEANUP) -> None:
        """Let one worker pass over the run until nothing is to be done now."""
        self.queue.add(UID, lane)
        task = asyncio.create_task(self.reconciler.work())
        for _ in range(500):
            await asyncio.sleep(0.01)
            if not len(self.queue) and not self.queue._active:
                break
        task.cancel()
        await asyncio.wait([task])


def a_child(kind: str, name: str, version: int = 5, run_uid: str = UID, owner: str = UID, **more: Any) -> web.Response:
    return web.json_response(a_child_object(kind, name, version, run_uid, owner) | more)


def a_child_object(kind: str, name: str, version: int = 5, run_uid: str = UID, owner: str = UID) -> dict[str, Any]:
    labels = {meta.RUN_UID_LABEL: run_uid}
    metadata = {
        "ownerReferences": [{"uid": owner, "controller": True}],
        "namespace": "ml",
        "name": name,
        "uid": f"uid-{kind}",
        "resourceVersion": str(version),
        "labels": labels,
    }
    return {"kind": kind, "metadata": metadata}


def paths(server: FakeServer) -> list[str]:
    return [f"{request.method} {request.path.rpartition('/namespaces/ml/')[2]}" for request in server.requests]


NAME = "math-agent-3f9a1c"


def a_written_run() -> web.Response:
    return web.json_response(a_run_object(metadata={"resourceVersion": "1001"}, status={"phase": "Starting"}))


async def test_an_own_write_is_known_before_its_echo() -> None:
    # The fifth answer would be for a request too many.
    answers = [a_child("RayCluster", f"{NAME}-1"), a_child("ConfigMap", NAME), a_child("PersistentVolumeClaim", NAME)]
    server = FakeServer(answers=[*answers, a_written_run()])
    async with server.client() as client:
        desk = Desk(client)
        desk.caches.runs.put(a_run_object())
        await desk.look()
    assert paths(server)[:4] == [
        "POST rayclusters",
        "POST configmaps",
        "POST persistentvolumeclaims",
        "PATCH tuningruns/math-agent/status",
    ]
    assert server.bodies[3]["metadata"] == {"resourceVersion": "1000"}


@pytest.mark.parametrize("stranger", [{"run_uid": "another"}, {"owner": "another"}])
async def test_an_object_of_the_childs_name_that_is_not_ours_is_a_conflict_that_is_not_tried_in_a_circle(
    stranger: dict[str, str],
) -> None:
    found = a_child_object("RayCluster", f"{NAME}-1", **stranger)
    server = FakeServer(answers=[web.json_response(a_status(409), status=409)])
    server.pages = [{"metadata": {"resourceVersion": "9"}, "items": [found]}]
    async with server.client() as client:
        desk = Desk(client)
        desk.caches.runs.put(a_run_object())
        desk.caches.clusters.put(found)
        await desk.reconciler.reconcile(UID, Lane.CLEANUP)
        refusal = desk.memory.of(UID, NOW).refusals["RayCluster"]
    assert refusal.kind == "NameConflict"


@pytest.mark.parametrize(
    ("code", "delay"),
    [
        pytest.param(409, (0.1, 0.2), id="the status is newer: plan again soon"),
        pytest.param(500, (0.1, 0.2), id="the server stumbles"),
        pytest.param(403, (30, 40), id="no right to write the status"),
    ],
)
async def test_a_refused_status_write_comes_again_later(code: int, delay: tuple[float, float]) -> None:
    server = FakeServer(answers=[web.json_response(a_status(code), status=code)])
    async with server.client() as client:
        desk = Desk(client)
        desk.caches.runs.put(a_run_object(engine={"type": "Trinity"}))
        desk.queue.add(UID)
        uid, lane = await desk.queue.get()
        asked: list[float] = []
        failed = desk.queue.failed
        desk.queue.failed = lambda key, at_least=0.0: asked.append(failed(key, at_least)) or asked[-1]  # type: ignore[method-assign,func-returns-value]
        await desk.reconciler._guarded(uid, lane)
    assert delay[0] <= asked[0] <= delay[1]


async def test_a_bug_is_logged_and_counted_and_its_key_comes_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(world: World, settings: Settings) -> Plan:
        raise ZeroDivisionError

    monkeypatch.setattr("tuning_operator.reconcile.plan", broken)
    async with FakeServer().client() as client:
        desk = Desk(client)
        desk.caches.runs.put(a_run_object())
        assert await desk.reconciler._guarded(UID, Lane.CLUSTER) == "bug"
        assert desk.queue.deadlines == 1
    assert "ZeroDivisionError" in caplog.text


async def test_what_is_left_of_an_ended_run_is_deleted_by_its_uid_the_cluster_first() -> None:
    ended = a_run_object(status={"phase": "Failed", "attempt": {"number": 1}})
    server = FakeServer(answers=[web.json_response({"kind": "Status"}), web.json_response({"kind": "Status"})])
    async with server.client() as client:
        desk = Desk(client)
        desk.caches.runs.put(ended)
        desk.memory.of(UID, NOW - timedelta(seconds=80))
        desk.caches.clusters.put(a_child_object("RayCluster", f"{NAME}-1"))
        desk.caches.jobs.put(a_child_object("Job", f"{NAME}-1"))
        # A driver that never started: there is no log to keep.
        pod = a_child_object("Pod", f"{NAME}-1-zzzzz", owner="uid-Job")
        pod["metadata"]["labels"] |= {meta.COMPONENT_LABEL: meta.COMPONENT_DRIVER, meta.ATTEMPT_LABEL: "1"}
        desk.caches.pods.put(pod)
        await desk.look()
    assert paths(server) == [f"DELETE rayclusters/{NAME}-1", f"DELETE jobs/{NAME}-1"]
    assert [body["preconditions"]["uid"] for body in server.bodies] == ["uid-RayCluster", "uid-Job"]
    assert server.bodies[1]["propagationPolicy"] == "Background"


async def test_a_run_that_is_gone_is_forgotten() -> None:
    async with FakeServer().client() as client:
        desk = Desk(client)
        desk.memory.of(UID, NOW)
        desk.queue.set_deadline(UID, 60)
        await desk.reconciler.reconcile(UID, Lane.CLUSTER)
        assert desk.memory.peek(UID) is None
        assert desk.queue.deadlines == 0


@pytest.mark.parametrize("readable", [True, False])
async def test_a_run_that_went_before_its_status_was_written_is_forgotten(readable: bool) -> None:
    server = FakeServer(answers=[web.json_response(a_status(404), status=404)])
    raw = a_run_object(engine={"type": "Trinity"})
    if not readable:
        del raw["spec"]["algorithm"]
    async with server.client() as client:
        desk = Desk(client)
        desk.caches.runs.put(raw)
        await desk.look()
        assert len(server.requests) == 1
        assert len(desk.caches.runs) == 0
        assert desk.memory.peek(UID) is None


async def test_a_spec_that_cannot_be_read_is_rejected_without_a_trace() -> None:
    raw = a_run_object()
    del raw["spec"]["algorithm"]
    server = FakeServer(answers=[web.json_response(raw | {"metadata": raw["metadata"] | {"resourceVersion": "1001"}})])
    async with server.client() as client:
        desk = Desk(client)
        desk.caches.runs.put(raw)
        assert await desk.reconciler._guarded(UID, Lane.CLUSTER) == "ok"
    assert server.bodies[0]["status"]["phase"] == "Rejected"
    assert "algorithm" in server.bodies[0]["status"]["message"]


@pytest.mark.parametrize(
    "status",
    [
        # It ended before it had a RayCluster.
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        # It waits for its next attempt.
        {"phase": "Retrying", "history": [{"number": 1, "outcome": "Failed"}]},
    ],
)
async def test_a_run_that_began_is_left_alone_when_another_version_cannot_read_it(status: dict[str, Any]) -> None:
    raw = a_run_object(status=status)
    del raw["spec"]["algorithm"]
    server = FakeServer()
    async with server.client() as client:
        desk = Desk(client)
        desk.caches.runs.put(raw)
        assert await desk.reconciler._guarded(UID, Lane.CLUSTER) == "ok"
    assert server.requests == []


class ServerThatKeeps(FakeServer):
    """Keeps the status of the one run that it has."""

    def __init__(self, run: dict[str, Any], answers: list[Any]) -> None:
        super().__init__(answers=answers)
        self.run = run

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            version = {"resourceVersion": str(2000 + len(self.requests))}
            self.run = merged(self.run, {"metadata": version, "status": (await request.json())["status"]})
            self.answers.insert(0, web.json_response(self.run))
        return await super()._handle(request)


async def test_a_right_to_read_that_goes_while_a_configmap_is_missing_costs_one_request() -> None:
    run = a_run_object(dataset={"train": {"image": None, "configMap": {"name": "tasks"}}})
    server = ServerThatKeeps(run, answers=[web.json_response(a_status(404), status=404)])
    async with server.client() as client:
        desk = Desk(client)
        desk.caches.runs.put(run)
        await desk.look()
        assert paths(server) == ["GET configmaps/tasks", "PATCH tuningruns/math-agent/status"]
        # Five seconds later.
        known = desk.memory.of(UID, NOW)
        known.references["tasks"] = replace(known.references["tasks"], read_at=NOW - timedelta(seconds=5))
        server.answers = [web.json_response(a_status(403), status=403) for _ in range(50)]
        await desk.look()
        assert desk.queue.deadlines == 1
    assert paths(server).count("GET configmaps/tasks") == 2
    assert server.run["status"]["reason"] == "ReferenceNotFound"


async def test_under_load_a_write_of_a_slow_lane_waits_for_the_fast_ones() -> None:
    async with FakeServer().client() as client:
        desk = Desk(client)
        desk.caches.runs.put(a_run_object(engine={"type": "Trinity"}))
        desk.queue.add("another run", Lane.CLUSTER)
        await desk.reconciler.reconcile(UID, Lane.CLUSTER)
        assert await desk.queue.get() == ("another run", Lane.CLUSTER)
        assert await desk.queue.get() == (UID, Lane.STATUS)
