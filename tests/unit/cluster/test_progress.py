"""The sidecar's answers, good and bad."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.builders import UID
from tests.unit.cluster.test_observe import a_pod, some_filled_caches
from tests.unit.engine.worlds import CLUSTER_UID, NOW, some_progress
from tuning_contract.progress import Progress
from tuning_contract.result import RunResult
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.progress import ProgressPoller
from tuning_operator.cluster.queue import WorkQueue
from tuning_operator.cluster.sidecar import SidecarClient, Unreachable
from tuning_operator.engine.world import Reachability, StopAnswer

RESULT = RunResult("u", "d", 1, "Succeeded", 12, 12, 0.0)


class Sidecar:
    """Answers with what the test sets."""

    def __init__(self) -> None:
        self.answers: dict[str, web.Response] = {}
        self.parts: list[bytes] = []
        self.port = 0
        self.headers: list[dict[str, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        if self.parts:
            response = web.StreamResponse()
            await response.prepare(request)
            for part in self.parts:
                await response.write(part)
                await asyncio.sleep(0.02)
            return response
        return self.answers.get(request.path, web.Response(status=404))


@pytest.fixture
async def sidecar() -> AsyncIterator[Sidecar]:
    found = Sidecar()
    application = web.Application()
    application.router.add_route("*", "/{path}", found.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.port = runner.addresses[0][1]
    yield found
    await runner.cleanup()


async def test_progress_and_result_are_read(sidecar: Sidecar) -> None:
    sidecar.answers = {
        "/progress": web.Response(text=some_progress().to_text()),
        "/result": web.Response(text=RESULT.to_text()),
    }
    async with SidecarClient(sidecar.port) as client:
        assert await client.progress("127.0.0.1") == some_progress()
        assert await client.result("127.0.0.1") == RESULT


async def test_an_answer_in_several_packets_is_read_to_its_end(sidecar: Sidecar) -> None:
    text = RESULT.to_text().encode()
    sidecar.parts = [text[:40], text[40:]]
    async with SidecarClient(sidecar.port) as client:
        assert await client.result("127.0.0.1") == RESULT


async def test_an_answer_without_end_is_no_answer(sidecar: Sidecar) -> None:
    sidecar.parts = [b" " * 100_000] * 50
    async with SidecarClient(sidecar.port) as client:
        with pytest.raises(Unreachable, match="larger than"):
            await client.result("127.0.0.1")


async def test_no_result_yet_is_an_answer(sidecar: Sidecar) -> None:
    async with SidecarClient(sidecar.port) as client:
        assert await client.result("127.0.0.1") is None


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=500),
        web.Response(text="[]"),
        web.Response(text="not json"),
        web.Response(text='{"attempt": 1, "step": "three"}'),
        web.Response(text='{"attempt": 1, "values": {"reward_mean": "much"}}'),
        web.Response(text='{"attempt": 1, "updated_at": 1e300}'),
        web.Response(text='{"attempt": 1, "checkpoint_path": "\\ud800"}'),
        web.Response(text="[" * 100_000),
        web.Response(text='{"attempt": 1, "evaluation": [{"dataset": "a"}]}'),
        web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
    ],
)
async def test_an_odd_answer_is_no_answer(sidecar: Sidecar, answer: web.Response) -> None:
    sidecar.answers = {"/progress": answer, "/result": answer}
    async with SidecarClient(sidecar.port) as client:
        with pytest.raises(Unreachable):
            await client.progress("127.0.0.1")
        with pytest.raises(Unreachable):
            await client.result("127.0.0.1")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", ""])
async def test_nobody_there_is_no_answer(address: str) -> None:
    async with SidecarClient(1) as client:
        with pytest.raises(Unreachable):
            await client.progress(address)
        with pytest.raises(Unreachable):
            await client.stop(address, "the-token")


async def test_a_stop_is_asked_with_the_attempts_token_and_counts_when_it_is_taken(sidecar: Sidecar) -> None:
    sidecar.answers = {"/stop": web.Response(status=202)}
    async with SidecarClient(sidecar.port) as client:
        assert await client.stop("127.0.0.1", "the-token") is StopAnswer.TAKEN
    assert sidecar.headers[0]["Authorization"] == "Bearer the-token"


@pytest.mark.parametrize("status", [401, 404, 405, 501])
async def test_a_stop_that_a_sidecar_will_never_take_is_refused(sidecar: Sidecar, status: int) -> None:
    sidecar.answers = {"/stop": web.Response(status=status)}
    async with SidecarClient(sidecar.port) as client:
        assert await client.stop("127.0.0.1", "the-token") is StopAnswer.REFUSED


@pytest.mark.parametrize("status", [200, 500, 503])
async def test_a_stop_that_is_not_taken_now_is_no_answer(sidecar: Sidecar, status: int) -> None:
    sidecar.answers = {"/stop": web.Response(status=status)}
    async with SidecarClient(sidecar.port) as client:
        with pytest.raises(Unreachable, match=str(status)):
            await client.stop("127.0.0.1", "the-token")


@pytest.mark.parametrize("newer", [False, True])
async def test_what_the_sidecar_of_an_attempt_says_when_the_next_has_begun_is_not_noted(newer: bool) -> None:
    class Slow(SidecarClient):
        async def progress(self, address: str) -> Progress:
            if newer:
                memory.of(UID, NOW).begin(2)
            return some_progress()

    caches, memory, queue = some_filled_caches(a_pod("head", CLUSTER_UID, "head")), Memory(), WorkQueue()
    memory.of(UID, NOW).begin(1)
    view = caches.runs.find("ml", "math-agent")
    assert view is not None
    await ProgressPoller(caches, memory, queue, Slow(), lambda: NOW)._poll(view)
    noted = memory.of(UID, NOW).notes()
    assert (noted.progress, noted.metrics) == (
        (None, Reachability.NOT_ASKED) if newer else (some_progress(), Reachability.ANSWERED)
    )
    assert len(queue) == (0 if newer else 1)


async def test_no_credential_goes_to_a_pod(sidecar: Sidecar) -> None:
    async with SidecarClient(sidecar.port) as client:
        await client.result("127.0.0.1")
    assert "Authorization" not in sidecar.headers[0]
