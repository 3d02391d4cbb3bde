"""When the schema of RayCluster is read, and what is known of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests.unit.cluster.server import FakeServer, a_status
from tests.unit.engine.test_kuberay import a_schema, without
from tuning_operator.cluster import kuberay as module
from tuning_operator.cluster.kuberay import KubeRay
from tuning_operator.engine.kuberay import FIELDS


@dataclass
class Clusters:
    """The informer of RayClusters, as far as it is asked."""

    served: bool = True
    synced: asyncio.Event = field(default_factory=asyncio.Event)


def a_document(schema: dict[str, Any] | None, tag: str = '"1"') -> web.Response:
    """The OpenAPI document of ray.io/v1; None: with another kind only."""
    kinds = {"RayJob": {}} | ({} if schema is None else {"RayCluster": schema})
    schemas = {
        f"io.ray.v1.{kind}": body
        | {"x-kubernetes-group-version-kind": [{"group": "ray.io", "version": "v1", "kind": kind}]}
        for kind, body in kinds.items()
    }
    return web.json_response({"components": {"schemas": schemas}}, headers={"ETag": tag})


@asynccontextmanager
async def looking(server: FakeServer, clusters: Clusters, changes: list[str]) -> AsyncIterator[KubeRay]:
    async with server.client() as client:
        found = KubeRay(client, clusters, lambda: changes.append("changed"))  # type: ignore[arg-type]
        task = asyncio.create_task(found.run())
        clusters.synced.set()
        await asyncio.wait_for(found.looked.wait(), 5)
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes seconds here."""
    monkeypatch.setattr(module, "TICK", 0.01)
    monkeypatch.setattr(module, "AGAIN", 0.02)
    monkeypatch.setattr(module, "UNPUBLISHED", 5)


async def until(what: Any) -> None:
    async with asyncio.timeout(5):
        while not what():
            await asyncio.sleep(0.005)


async def test_a_complete_schema_is_read_once() -> None:
    server = FakeServer(answers=[a_document(a_schema(*FIELDS))])
    changes: list[str] = []
    async with looking(server, Clusters(), changes) as kuberay:
        await asyncio.sleep(0.1)
        assert (kuberay.served, kuberay.lacks) == (True, ())
    assert [request.path for request in server.requests] == ["/openapi/v3/apis/ray.io/v1"]
    assert changes == ["changed"]


async def test_a_schema_that_lacks_something_is_read_again_and_only_when_it_is_another() -> None:
    same = web.Response(status=304, headers={"ETag": '"old"'})
    old, new = a_document(without("spec.authOptions"), '"old"'), a_document(a_schema(*FIELDS), '"new"')
    server = FakeServer(answers=[old, same, new])
    changes: list[str] = []
    async with looking(server, Clusters(), changes) as kuberay:
        assert (kuberay.served, kuberay.lacks) == (True, ("spec.authOptions",))
        await until(lambda: not kuberay.lacks)
        await asyncio.sleep(0.1)
    asked = [request.headers.get("If-None-Match") for request in server.requests]
    assert asked == [None, '"old"', '"old"']
    assert changes == ["changed", "changed"]


async def test_nothing_is_asked_while_rayclusters_are_not_served_and_a_new_kind_is_told_a_moment_later() -> None:
    late = web.json_response(a_status(404), status=404)
    server = FakeServer(answers=[late, a_document(None), a_document(a_schema(*FIELDS))])
    clusters, changes = Clusters(served=False), []
    async with looking(server, clusters, changes) as kuberay:
        await asyncio.sleep(0.05)
        assert not kuberay.served
        assert server.requests == []
        clusters.served = True
        await until(lambda: len(changes) == 2)
        assert kuberay.served
        assert len(server.requests) == 3
        clusters.served = False
        await until(lambda: len(changes) == 3)
        assert not kuberay.served


@pytest.mark.parametrize("code", [403, 500])
async def test_a_schema_that_cannot_be_read_is_not_held_against_a_run(code: int) -> None:
    server = FakeServer(
        answers=[web.json_response(a_status(code), status=code), a_document(without("spec.authOptions"))]
    )
    async with looking(server, Clusters(), []) as kuberay:
        assert (kuberay.served, kuberay.lacks) == (True, ())
        await until(lambda: kuberay.lacks)


async def test_a_schema_that_is_published_late_holds_no_run_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNPUBLISHED", 0.05)
    late = [web.json_response(a_status(404), status=404) for _ in range(20)]
    server = FakeServer(answers=[*late, a_document(None), a_document(without("spec.authOptions"))])
    async with looking(server, Clusters(), []) as kuberay:
        assert not kuberay.served
        await until(lambda: kuberay.served)
        assert len(server.answers) > 2
        await until(lambda: kuberay.lacks)
