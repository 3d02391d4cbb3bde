"""The local copy of a kind, against a server that lists, watches, breaks and forgets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from tests.unit.cluster.server import FakeServer, a_status, an_object
from tuning_operator.cluster import informer as informers
from tuning_operator.cluster.client import Selection
from tuning_operator.cluster.informer import Informer, Subject
from tuning_operator.cluster.resources import JOBS


@dataclass
class Heard:
    """What the informer told."""

    changed: list[str] = field(default_factory=list)
    departed: list[tuple[str, str]] = field(default_factory=list)


async def until(look: Callable[[], object], seconds: float = 3.0) -> None:
    async with asyncio.timeout(seconds):
        while not look():
            await asyncio.sleep(0.005)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@asynccontextmanager
async def running(server: FakeServer, heard: Heard, quiet: float = 10.0) -> AsyncIterator[Informer[str]]:
    def departed(key: str, view: str) -> None:
        heard.departed.append((key, view))

    subject = Subject(
        Selection(JOBS),
        project=lambda raw: str(raw.get("note", "")),
        key_of=lambda raw: str(raw.get("key", "")),
        changed=heard.changed.append,
        departed=departed,
    )
    async with server.client() as client:
        informer = Informer(client, subject, quiet)
        task = asyncio.create_task(informer.run())
        try:
            await until(informer.synced.is_set)
            yield informer
        finally:
            task.cancel()
            await asyncio.wait([task])


def of(name: str, version: int, key: str = "k", note: str = "", uid: str = "") -> dict[str, Any]:
    return an_object(name, version, uid, key=key, note=note)


async def test_all_pages_of_a_list_are_read_before_the_copy_counts_as_complete(heard: Heard) -> None:
    server = FakeServer()
    server.pages = [
        {"metadata": {"resourceVersion": "9", "continue": "1"}, "items": [of("a", 1)]},
        {"metadata": {"resourceVersion": "9", "continue": "2"}, "items": [of("b", 2)]},
        {"metadata": {"resourceVersion": "9"}, "items": [of("c", 3)]},
    ]
    async with running(server, heard) as informer:
        assert len(informer) == 3
        assert heard.changed == ["k", "k", "k"]
        await until(lambda: server.watches == 1)
        assert server.requests[-1].query["resourceVersion"] == "9"
        assert server.requests[-1].query["allowWatchBookmarks"] == "true"


async def test_events_change_the_copy_and_wake_the_key(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5, of("a", 1))
    async with running(server, heard) as informer:
        heard.changed.clear()
        server.send(("MODIFIED", of("a", 6, note="new")), ("ADDED", of("b", 7, key="other")))
        await until(lambda: informer.find("ml", "b") is not None)
        assert informer.find("ml", "a") == "new"
        assert heard.changed == ["k", "other"]
        assert informer.of("other") == [""]


async def test_the_last_state_of_a_deleted_object_is_told(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5, of("a", 1))
    async with running(server, heard) as informer:
        server.send(("DELETED", of("a", 6, note="evicted")))
        await until(lambda: heard.departed)
        assert heard.departed == [("k", "evicted")]
        assert informer.find("ml", "a") is None
        assert informer.of("k") == []


async def test_the_echo_of_an_own_write_wakes_nobody(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5)
    async with running(server, heard) as informer:
        informer.put(of("a", 8, note="mine"))
        assert informer.find("ml", "a") == "mine"
        server.send(("ADDED", of("a", 7, note="older")), ("MODIFIED", of("a", 8, note="mine")))
        server.send(("ADDED", of("b", 9, key="b")))
        await until(lambda: "b" in heard.changed)
        assert heard.changed == ["b"]
        assert informer.find("ml", "a") == "mine"


async def test_late_news_of_an_object_that_we_deleted_is_ignored(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5, of("a", 1))
    async with running(server, heard) as informer:
        informer.drop("ml", "a", "uid-a")
        server.send(("MODIFIED", of("a", 6)), ("DELETED", of("a", 7)), ("ADDED", of("a", 8, uid="next", note="second")))
        await until(lambda: informer.find("ml", "a") is not None)
        assert informer.find("ml", "a") == "second"
        assert heard.departed == []


async def test_the_reply_to_a_write_that_comes_after_the_deletion_brings_nothing_back(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5, of("a", 1))
    async with running(server, heard) as informer:
        server.send(("DELETED", of("a", 7)))
        await until(lambda: informer.find("ml", "a") is None)
        informer.put(of("a", 6, note="the reply to a patch"))
        assert len(informer) == 0
        informer.put(of("a", 8, uid="next", note="made since"))
        assert informer.find("ml", "a") == "made since"


async def test_what_was_gone_before_we_heard_that_it_is_gone_leaves_no_trace(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5, of("a", 1))
    async with running(server, heard) as informer:
        server.send(("DELETED", of("a", 7)))
        await until(lambda: informer.find("ml", "a") is None)
        informer.drop("ml", "a", "uid-a")
        assert not informer._deleted


async def test_the_deletion_of_an_older_object_of_the_name_does_not_touch_the_newer_one(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5, of("a", 1, uid="old"))
    async with running(server, heard) as informer:
        informer.put(of("a", 9, uid="new"))
        server.send(("DELETED", of("a", 8, uid="old")), ("ADDED", of("b", 10)))
        await until(lambda: informer.find("ml", "b") is not None)
        assert informer.find("ml", "a") is not None


async def test_a_watch_that_ends_goes_on_from_where_it_came(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5)
    async with running(server, heard) as informer:
        server.send(("BOOKMARK", an_object("", 70)))
        server.end_watch()
        await until(lambda: server.watches == 2)
        assert server.requests[-1].query["resourceVersion"] == "70"
        assert informer.lists == 1


async def test_a_broken_watch_is_opened_again_without_a_new_list(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5)
    server.answers = []
    async with running(server, heard) as informer:
        await until(lambda: server.watches == 1)
        server.answers = [web.json_response(a_status(500), status=500), ConnectionResetError()]
        server.end_watch()
        await until(lambda: server.watches == 2, 5)
        assert informer.lists == 1


@pytest.mark.parametrize("by_event", [True, False])
async def test_lost_history_is_listed_again_and_what_is_gone_departs(heard: Heard, by_event: bool) -> None:
    server = FakeServer()
    server.set_list(5, of("a", 1), of("b", 2, key="b"))
    async with running(server, heard) as informer:
        await until(lambda: server.watches == 1)
        server.set_list(50, of("b", 40, key="b", note="changed"))
        if by_event:
            server.send(("ERROR", a_status(410, "too old resource version", "Expired")))
        else:
            server.answers = [web.json_response(a_status(410, "too old", "Expired"), status=410)]
            server.end_watch()
        await until(lambda: informer.lists == 2)
        assert informer.find("ml", "a") is None
        assert informer.find("ml", "b") == "changed"
        assert heard.departed == [("k", "")]
        await until(lambda: server.watches == 2)
        assert server.requests[-1].query["resourceVersion"] == "50"


async def test_one_of_the_same_name_in_place_of_another_departs_the_first(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5, an_object("a", 3, uid="first", key="k", note="before"))
    async with running(server, heard) as informer:
        server.set_list(9, an_object("a", 8, uid="second", key="k", note="after"))
        server.send(("ERROR", a_status(410)))
        await until(lambda: informer.find("ml", "a") == "after")
        assert heard.departed == [("k", "before")]
        assert informer.version("ml", "a") == "8"


async def test_what_was_written_after_a_list_was_taken_survives_it(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5)
    async with running(server, heard) as informer:
        await until(lambda: server.watches == 1)
        informer.put(of("mine", 60))
        server.set_list(50)
        server.send(("ERROR", a_status(410)))
        await until(lambda: informer.lists == 2)
        assert informer.find("ml", "mine") is not None


async def test_a_silent_watch_is_opened_again(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5)
    async with running(server, heard, quiet=0.1) as informer:
        await until(lambda: server.watches >= 2)
        assert informer.lists == 1


async def test_a_kind_that_the_server_does_not_know_counts_as_empty_and_is_looked_for_again(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "MISSING_KIND_SECONDS", 0.05)
    server = FakeServer()
    server.set_list(5, of("a", 1))
    server.answers = [web.json_response(a_status(404), status=404)]
    async with running(server, heard) as informer:
        assert not informer.served
        assert len(informer) == 0
        await until(lambda: informer.served)
        assert len(informer) == 1


async def test_a_kind_that_goes_takes_its_objects_along(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informers, "MISSING_KIND_SECONDS", 10)
    server = FakeServer()
    server.set_list(5, of("a", 1))
    async with running(server, heard) as informer:
        await until(lambda: server.watches == 1)
        server.answers = [web.json_response(a_status(404), status=404)]
        server.end_watch()
        await until(lambda: not informer.served)
        assert len(informer) == 0
        assert heard.departed == [("k", "")]


async def test_an_object_that_changes_its_key_wakes_both(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5, of("a", 1, key="old"))
    async with running(server, heard) as informer:
        heard.changed.clear()
        server.send(("MODIFIED", of("a", 6, key="new")))
        await until(lambda: len(heard.changed) == 2)
        assert heard.changed == ["old", "new"]
        assert informer.of("old") == []
        assert len(informer.of("new")) == 1


async def test_a_line_longer_than_any_buffer_is_read_whole(heard: Heard) -> None:
    server = FakeServer()
    server.set_list(5)
    async with running(server, heard) as informer:
        server.send(("ADDED", of("big", 6, note="x" * 3_000_000)))
        await until(lambda: informer.find("ml", "big") is not None)
        assert len(informer.find("ml", "big") or "") == 3_000_000


async def test_an_error_that_was_not_foreseen_does_not_end_the_watch(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(informers, "LONGEST_DELAY", 0.02)
    server = FakeServer()
    server.pages = [{"metadata": {"resourceVersion": "5"}, "items": [{"no": "metadata"}]}]

    async def repair() -> None:
        await until(lambda: "unexpected" in caplog.text)
        server.set_list(6, of("a", 1))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(repair())
        async with running(server, heard) as informer:
            assert len(informer) == 1
