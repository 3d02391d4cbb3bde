"""A local copy of all objects of one kind, kept true by LIST and WATCH.

One informer per kind is run by `handlers`; `observe` reads the copies, `execute` adds what the operator has just
written, so that its own writes are known before their echo comes. What is kept of an object is decided by the
projection that is passed in; nothing here knows what the objects mean.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from tuning_operator import errors
from tuning_operator.cluster.client import ApiClient, Selection

PAGE = 50
"""Objects of one page. Parsing a large page takes memory that is not given back: 500 cost 35 MiB more than 50."""
WATCH_SECONDS = 300
QUIET_SECONDS = 90.0
"""A server sends a bookmark every 60 to 75 seconds, so a watch that is silent for longer is dead."""
MISSING_KIND_SECONDS = 2.0
"""So that a run that waits for KubeRay goes on within seconds."""
FIRST_DELAY = 0.1
LONGEST_DELAY = 10.0

Raw = Mapping[str, Any]
Place = tuple[str, str]
"""Namespace and name."""

View = TypeVar("View")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subject(Generic[View]):
    """What an informer watches, what it keeps and whom it tells."""

    selection: Selection
    project: Callable[[Raw], View]
    """Makes what is kept of an object."""
    key_of: Callable[[Raw], str]
    """Queue key of an object; empty for objects that concern nobody."""
    changed: Callable[[str], None]
    """Is told the key of every object that came, changed or went."""
    departed: Callable[[str, View], None] | None = None
    """Is told the last view of every object that went."""


@dataclass(slots=True)
class _Entry(Generic[View]):
    view: View
    uid: str
    version: int
    key: str


class Informer(Generic[View]):
    """The copy of one kind. All methods but `run` return at once."""

    def __init__(self, client: ApiClient, subject: Subject[View], quiet_seconds: float = QUIET_SECONDS) -> None:
        """Make an empty copy.

        Args:
            client: An open client.
            subject: What to watch, keep and tell.
            quiet_seconds: A watch that is silent for longer is opened again.
        """
        self._client = client
        self._subject = subject
        self._quiet_seconds = quiet_seconds
        self._entries: dict[Place, _Entry[View]] = {}
        self._by_key: dict[str, set[Place]] = {}
        self._deleted: set[str] = set()
        self.synced = asyncio.Event()
        """Set after the first complete list, and when the server does not know the kind."""
        self.served = True
        """False while the server does not know the kind."""
        self.lists = 0
        self._version = ""
        self._advanced = False
        self._heard_at = time.monotonic()

    def __len__(self) -> int:
        """Objects in the copy."""
        return len(self._entries)

    @property
    def kind(self) -> str:
        """The kind that is watched."""
        return self._subject.selection.resource.kind

    @property
    def silence(self) -> float:
        """Seconds since the server last showed that this copy is true."""
        return time.monotonic() - self._heard_at

    def find(self, namespace: str, name: str) -> View | None:
        """The object of that name."""
        entry = self._entries.get((namespace, name))
        return entry.view if entry else None

    def version(self, namespace: str, name: str) -> str:
        """Resource version of the object of that name as it is known; empty when it is not."""
        entry = self._entries.get((namespace, name))
        return str(entry.version) if entry else ""

    def of(self, key: str) -> list[View]:
        """All objects with that queue key, in the order of their names."""
        return [self._entries[place].view for place in sorted(self._by_key.get(key, ()))]

    def views(self) -> Iterator[View]:
        """All objects."""
        return (entry.view for entry in tuple(self._entries.values()))

    def put(self, raw: Raw) -> None:
        """Take over the server's reply to a write of ours; tells nobody, since the writer knows."""
        seen = self._version and int(raw["metadata"]["resourceVersion"]) <= int(self._version)
        if seen and _place(raw) not in self._entries:
            # The watch is past this reply and left nothing behind: the object was deleted meanwhile.
            return
        self._store(raw)

    def drop(self, namespace: str, name: str, uid: str) -> None:
        """An object is gone, as a reply of the server tells; late news of it is ignored."""
        entry = self._entries.get((namespace, name))
        if entry is not None and entry.uid == uid:
            self._deleted.add(uid)
            self._remove((namespace, name))

    def start_over(self) -> None:
        """Let the next `run` begin with a list: what a watch has told may be late. Not while `run` runs."""
        self._version = ""
        self.synced.clear()

    async def look(self, namespace: str, labels: str) -> None:
        """Take over what the server has now of some objects, without waiting for the watch; nothing is dropped.

        Args:
            namespace: Where they lie.
            labels: A selector, instead of that of the watch.
        """
        try:
            async for page in self._pages(replace(self._subject.selection, namespace=namespace, labels=labels)):
                for raw in page["items"]:
                    self.put(raw)
        except errors.NotFound:
            # Without the kind there is none of it.
            return

    async def run(self) -> None:
        """List, then watch, for ever. A broken watch goes on where it ended; only lost history lists again."""
        # A watch that ended for a bug must go on, too.
        failures = 0
        while True:
            try:
                self._version = self._version or await self._list()
                await self._watch()
                failures = 0
            except errors.NotFound:
                self._kind_is_missing()
                await asyncio.sleep(MISSING_KIND_SECONDS)
            except Exception as error:
                failures = 1 if self._advanced else failures + 1
                self._advanced = False
                await asyncio.sleep(self._judge(error, failures))

    def _judge(self, error: Exception, failures: int) -> float:
        """Log the end of a list or watch; returns the seconds to wait."""
        delay: float = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 20))
        if isinstance(error, errors.Gone):
            self._version = ""
            delay = 0.0 if failures == 1 else delay
        if not isinstance(error, errors.ApiError):
            self._version = ""
            log.exception("%s: unexpected", self.kind, exc_info=error)
            return LONGEST_DELAY
        level = logging.INFO if failures < 5 else logging.WARNING
        log.log(level, "%s: %s; again in %.1f s", self.kind, error, delay)
        return delay * random.uniform(1.0, 1.5)  # noqa: S311 - no secret

    async def _list(self) -> str:
        """Read all pages and drop what is not in them; returns the list's resource version."""
        seen: set[Place] = set()
        version = ""
        async for page in self._pages(self._subject.selection):
            self._heard_at = time.monotonic()
            # Every page speaks of the same moment: the version of the first one.
            version = version or page["metadata"]["resourceVersion"]
            for raw in page["items"]:
                seen.add(_place(raw))
                self._news(raw)
        for place, entry in list(self._entries.items()):
            # What we wrote after the list was taken is not in it and yet exists.
            if place not in seen and entry.version <= int(version):
                self._went(place)
        self._deleted.clear()
        self.lists += 1
        self.served = True
        self.synced.set()
        return version

    async def _pages(self, selection: Selection) -> AsyncIterator[dict[str, Any]]:
        """All pages of a list."""
        token = ""
        while True:
            page = await self._client.list_page(selection, PAGE, token)
            yield page
            token = page["metadata"].get("continue", "")
            if not token:
                return

    async def _watch(self) -> None:
        """Follow the events until the server ends the watch; `_version` is how far we came."""
        seconds = WATCH_SECONDS + random.randrange(60)  # noqa: S311 - no secret
        selection = self._subject.selection
        async for event in self._client.watch(selection, self._version, seconds, self._quiet_seconds):
            self._heard_at = time.monotonic()
            raw = event["object"]
            if event["type"] == "DELETED":
                self._deletion(raw)
            elif event["type"] != "BOOKMARK":
                self._news(raw)
            self._version = raw["metadata"]["resourceVersion"]
            self._advanced = True
        # The server ended the watch in good order, so the copy was true until now.
        self._heard_at = time.monotonic()

    def _news(self, raw: Raw) -> None:
        before = self._entries.get(_place(raw))
        if not self._store(raw):
            return
        now = self._entries[_place(raw)]
        if before is not None and before.uid != now.uid and self._subject.departed is not None:
            # One of the same name took its place while nobody watched.
            self._subject.departed(before.key, before.view)
        if before is not None and before.key != now.key:
            self._tell(before.key)
        self._tell(now.key)

    def _deletion(self, raw: Raw) -> None:
        metadata = raw["metadata"]
        self._deleted.discard(metadata["uid"])
        entry = self._entries.get(_place(raw))
        if entry is not None and entry.uid == metadata["uid"]:
            # The last state travels with the event: what ended a pod is often only told here.
            entry.view = self._subject.project(raw)
            self._went(_place(raw))

    def _store(self, raw: Raw) -> bool:
        """Keep an object unless something newer is known; returns whether it was news."""
        metadata = raw["metadata"]
        place, version = _place(raw), int(metadata["resourceVersion"])
        entry = self._entries.get(place)
        if metadata["uid"] in self._deleted or (entry is not None and entry.version >= version):
            return False
        key = self._subject.key_of(raw)
        if entry is not None and entry.key != key:
            self._by_key[entry.key].discard(place)
        self._entries[place] = _Entry(self._subject.project(raw), metadata["uid"], version, key)
        self._by_key.setdefault(key, set()).add(place)
        return True

    def _went(self, place: Place) -> None:
        entry = self._remove(place)
        if self._subject.departed is not None:
            self._subject.departed(entry.key, entry.view)
        self._tell(entry.key)

    def _remove(self, place: Place) -> _Entry[View]:
        entry = self._entries.pop(place)
        places = self._by_key[entry.key]
        places.discard(place)
        if not places:
            del self._by_key[entry.key]
        return entry

    def _kind_is_missing(self) -> None:
        self._heard_at = time.monotonic()
        if self.served:
            log.warning("the API server does not serve %s; looking again every %.0f s", self.kind, MISSING_KIND_SECONDS)
        self.served = False
        self._version = ""
        for place in list(self._entries):
            self._went(place)
        self.synced.set()

    def _tell(self, key: str) -> None:
        if key:
            self._subject.changed(key)


def _place(raw: Raw) -> Place:
    metadata = raw["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
