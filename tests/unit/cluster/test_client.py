"""The client: what goes over the wire, and what errors become."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.unit.cluster.server import Connection, Counted, FakeServer, SlowAnswer, a_status
from tuning_operator import errors
from tuning_operator.cluster.client import ApiClient, Selection
from tuning_operator.cluster.credentials import Credentials
from tuning_operator.cluster.resources import JOBS, PODS, RAY_CLUSTERS, TUNING_RUNS


def an_answer(code: int, message: str = "no", **headers: str) -> web.Response:
    return web.json_response(a_status(code, message), status=code, headers=headers)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, errors.Invalid),
        (401, errors.ApiUnavailable),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.AlreadyExists),
        (410, errors.Gone),
        (422, errors.Invalid),
        (500, errors.ApiUnavailable),
        (503, errors.ApiUnavailable),
        (504, errors.ApiUnavailable),
    ],
)
async def test_every_status_becomes_one_error_of_ours(code: int, kind: type[errors.ApiError]) -> None:
    server = FakeServer(answers=[an_answer(code, "the server's words")])
    async with server.client() as client:
        with pytest.raises(kind, match="the server's words") as caught:
            await client.create(JOBS, "ml", {"kind": "Job"})
        assert caught.value.status == code


async def test_a_missing_right_names_verb_and_resource() -> None:
    server = FakeServer(answers=[an_answer(403)])
    async with server.client() as client:
        with pytest.raises(errors.Forbidden) as caught:
            await client.create(RAY_CLUSTERS, "ml", {"kind": "RayCluster"})
    assert (caught.value.verb, caught.value.resource) == ("create", "rayclusters.ray.io")


async def test_a_namespace_that_is_being_deleted_is_no_missing_right() -> None:
    causes = [{"reason": "NamespaceTerminating", "message": "namespace ml is being terminated", "field": "x"}]
    body = a_status(403, "forbidden: because it is being terminated", "Forbidden") | {"details": {"causes": causes}}
    server = FakeServer(answers=[web.json_response(body, status=403)])
    async with server.client() as client:
        with pytest.raises(errors.ApiUnavailable, match="being terminated"):
            await client.create(RAY_CLUSTERS, "ml", {"kind": "RayCluster"})


async def test_a_conflict_of_a_patch_is_no_taken_name() -> None:
    server = FakeServer(answers=[an_answer(409)])
    async with server.client() as client:
        with pytest.raises(errors.Conflict):
            await client.patch_status(TUNING_RUNS, "ml", "a", {"status": {}})


@pytest.mark.parametrize("answer", [ConnectionResetError(), web.Response(text="<html>bad gateway", status=502)])
async def test_a_broken_connection_or_a_proxys_page_is_no_answer(answer: Any) -> None:
    async with FakeServer(answers=[answer]).client() as client:
        with pytest.raises(errors.ApiUnavailable):
            await client.get(PODS, "ml", "a")


async def test_a_server_that_nobody_answers_for_is_no_answer() -> None:
    async with ApiClient(Credentials(Connection("http://127.0.0.1:1")), Counted()) as client:
        with pytest.raises(errors.ApiUnavailable):
            await client.get(PODS, "ml", "a")


async def test_a_server_that_hangs_is_given_up() -> None:
    server = FakeServer(answers=[SlowAnswer()])
    async with server.client(timeout=0.1) as client:
        with pytest.raises(errors.ApiUnavailable, match="TimeoutError"):
            await client.get(PODS, "ml", "a")


async def test_deletes_name_the_object_by_its_uid() -> None:
    server = FakeServer(answers=[web.json_response({"kind": "Status", "status": "Success"})])
    async with server.client() as client:
        await client.delete(RAY_CLUSTERS, "ml", "a", "the-uid")
    assert server.bodies == [{"preconditions": {"uid": "the-uid"}, "propagationPolicy": "Background"}]
    assert server.requests[0].path == "/apis/ray.io/v1/namespaces/ml/rayclusters/a"


async def test_status_patches_are_merge_patches_of_the_subresource() -> None:
    server = FakeServer(answers=[web.json_response({})])
    async with server.client() as client:
        await client.patch_status(TUNING_RUNS, "ml", "a", {"status": {"phase": "Running"}})
    request = server.requests[0]
    assert (request.method, request.path) == (
        "PATCH",
        "/apis/agenttuning.io/v1alpha1/namespaces/ml/tuningruns/a/status",
    )
    assert request.content_type == "application/merge-patch+json"


async def test_patches_of_an_object_itself_are_merge_patches_too() -> None:
    server = FakeServer(answers=[web.json_response({})])
    async with server.client() as client:
        await client.patch(JOBS, "ml", "a", {"spec": {"activeDeadlineSeconds": 1}})
    request = server.requests[0]
    assert (request.method, request.path) == ("PATCH", "/apis/batch/v1/namespaces/ml/jobs/a")
    assert request.content_type == "application/merge-patch+json"


async def test_too_many_requests_holds_all_requests_back_for_as_long_as_asked() -> None:
    server = FakeServer(answers=[an_answer(429, **{"Retry-After": "1"}), web.json_response({})])
    async with server.client() as client:
        with pytest.raises(errors.ApiUnavailable) as caught:
            await client.get(PODS, "ml", "a")
        assert caught.value.retry_after == 1
        began = asyncio.get_running_loop().time()
        await client.get(PODS, "ml", "b")
        assert asyncio.get_running_loop().time() - began > 0.9


async def test_every_request_is_counted() -> None:
    server, counted = FakeServer(answers=[web.json_response({}), an_answer(404), ConnectionResetError()]), Counted()
    async with server.client(counted) as client:
        await client.get(PODS, "ml", "a")
        with pytest.raises(errors.NotFound):
            await client.get(PODS, "ml", "a")
        with pytest.raises(errors.ApiUnavailable):
            await client.create(JOBS, "ml", {"kind": "Job"})
    assert counted.seen == [("get", "pods", 200), ("get", "pods", 404), ("create", "jobs", 0)]


async def test_a_renewed_token_is_read_when_the_old_one_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    server = FakeServer(answers=[web.json_response({}), an_answer(401), web.json_response({})])
    async with server.serve(), ApiClient(Credentials(Connection(server.url), token), Counted()) as client:
        await client.get(PODS, "ml", "a")
        token.write_text("second\n")
        with pytest.raises(errors.ApiUnavailable):
            await client.get(PODS, "ml", "a")
        await client.get(PODS, "ml", "a")
    sent = [request.headers["Authorization"] for request in server.requests]
    assert sent == ["Bearer first", "Bearer first", "Bearer second"]


async def test_a_watch_that_is_refused_reads_the_token_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    server = FakeServer(answers=[an_answer(401), web.json_response({})])
    async with server.serve(), ApiClient(Credentials(Connection(server.url), token), Counted()) as client:
        with pytest.raises(errors.ApiUnavailable):
            async for _ in client.watch(Selection(PODS), "1", 10, 10):
                pass
        token.write_text("second\n")
        await client.get(PODS, "ml", "a")
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]


async def test_a_strict_create_lets_the_server_refuse_unknown_fields() -> None:
    server = FakeServer(answers=[web.json_response({}), web.json_response({})])
    async with server.client() as client:
        await client.create(RAY_CLUSTERS, "ml", {"kind": "RayCluster"}, strict=True)
        await client.create(JOBS, "ml", {"kind": "Job"})
    assert [dict(request.query) for request in server.requests] == [{"fieldValidation": "Strict"}, {}]


async def test_a_schema_that_is_known_is_not_sent_again() -> None:
    document = web.json_response({"components": {}}, headers={"ETag": '"1"'})
    server, seen = FakeServer(answers=[document, web.Response(status=304, headers={"ETag": '"1"'})]), Counted()
    async with server.client(seen) as client:
        assert await client.schemas("ray.io", "v1") == ({"components": {}}, '"1"')
        assert await client.schemas("ray.io", "v1", '"1"') == (None, '"1"')
    assert seen.seen == [("get", "openapi", 200), ("get", "openapi", 304)]
