"""An API server in memory that stands behind the operator's real client code: objects, versions, lists and watches.

`simulated_cluster` plays the controllers on it, `simulated_operator` lets the operator work on it. Every watch may lag
by some events, every write may wait, fail, or succeed with its answer lost.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import Any

from tuning_operator import errors
from tuning_operator.api.conditions import timestamp
from tuning_operator.cluster.client import ApiClient, Manifest, Selection
from tuning_operator.cluster.resources import (
    CLAIMS,
    EVENTS,
    JOBS,
    PODS,
    RAY_CLUSTERS,
    TUNING_RUNS,
    Resource,
)

Raw = dict[str, Any]
WATCHED = (TUNING_RUNS, RAY_CLUSTERS, JOBS, PODS, CLAIMS)
BUSY = 200
"""Writes between two moments of which no operator in its right mind makes so many."""


class Fault(Enum):
    """What becomes of one write of the operator."""

    UNAVAILABLE = auto()
    """The server does not answer, and nothing is done."""
    ANSWER_LOST = auto()
    """It is done, and nobody hears of it."""
    FORBIDDEN = auto()
    INVALID = auto()
    """Refused as such; only what is created can be."""
    CONFLICT = auto()
    """Somebody else has changed the object a moment before; only what is patched can conflict."""


@dataclass(slots=True)
class _Stream:
    """All events of one kind, of which the watches have been sent the first `released`."""

    events: list[tuple[int, Raw]] = field(default_factory=list)
    released: int = 0
    lost: int = 0
    """How often the history was lost."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class SimulatedApi(ApiClient):
    """The server, and the operator's client of it. Objects are never changed in place."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """Hold nothing yet; `now` is the server's clock."""
        self._now = now
        self._objects: dict[tuple[str, str, str], Raw] = {}
        self._streams = {resource.plural: _Stream() for resource in WATCHED}
        self._version = 1000
        self._gate: list[asyncio.Future[None]] = []
        self.slow = False
        """Whether the operator's writes wait until they are let through."""
        self.faults: list[Fault] = []
        """For the next writes of the operator, one each."""
        self.events: dict[str, Raw] = {}
        """Those that were posted for people, by name."""
        self.writes = 0
        """Of the operator, since the last `let_work`."""
        self.chronicle: list[str] = []
        """What happened, for whoever reads of a failure."""
        self.before_create: Callable[[Resource, Manifest], None] = lambda resource, manifest: None
        self.before_status: Callable[[Raw, Raw], None] = lambda before, after: None
        """What the model has to say to a write of the operator, before it is done."""

    # What the world does.

    def note(self, words: str) -> None:
        """Keep in mind what happened."""
        self.chronicle.append(f"{self._now():%d %H:%M:%S} {words}")

    def all(self, resource: Resource) -> list[Raw]:
        """All objects of a kind, in the order of their names."""
        return [self._objects[place] for place in sorted(self._objects) if place[0] == resource.plural]

    def find(self, resource: Resource, namespace: str, name: str) -> Raw | None:
        """The object of that name."""
        return self._objects.get((resource.plural, namespace, name))

    def put(self, resource: Resource, raw: Mapping[str, Any]) -> Raw:
        """Make or change an object; its version is new."""
        place = _place(resource, raw)
        kind = "MODIFIED" if place in self._objects else "ADDED"
        kept = self._versioned(raw)
        self._objects[place] = kept
        self._tell(resource, kind, kept)
        return kept

    def remove(self, resource: Resource, raw: Raw) -> None:
        """Take an object away; the event carries this last state."""
        if self._objects.pop(_place(resource, raw), None) is not None:
            self._tell(resource, "DELETED", self._versioned(raw))

    def lag(self, resource: Resource) -> int:
        """Events that the watch of a kind has not been sent yet."""
        stream = self._streams[resource.plural]
        return len(stream.events) - stream.released

    def deliver(self, resource: Resource, count: int) -> None:
        """Send some more events to the watch of a kind."""
        stream = self._streams[resource.plural]
        stream.released = min(len(stream.events), stream.released + count)
        stream.tell()

    def deliver_all(self) -> None:
        """Send all events."""
        for resource in WATCHED:
            self.deliver(resource, self.lag(resource))

    def lose_history(self, resource: Resource) -> None:
        """End the watches of a kind in such a way that they must list again."""
        stream = self._streams[resource.plural]
        stream.lost += 1
        stream.tell()

    def let_through(self, count: int) -> None:
        """Let that many of the waiting writes be done."""
        for waiting in self._gate[:count]:
            if not waiting.done():
                waiting.set_result(None)
        del self._gate[:count]

    @property
    def waiting(self) -> int:
        """Writes that wait."""
        return len(self._gate)

    # What the operator does.

    async def list_page(self, selection: Selection, limit: int, token: str = "") -> Raw:
        """Return all at once: pages are the informer's own tests' matter."""
        items = [raw for raw in self.all(selection.resource) if _matches(selection, raw)]
        return {"items": items, "metadata": {"resourceVersion": str(self._version)}}

    async def watch(self, selection: Selection, version: str, seconds: int, quiet_seconds: float) -> AsyncIterator[Raw]:
        """Yield the events that were released."""
        stream = self._streams[selection.resource.plural]
        place = bisect_right(stream.events, int(version), key=lambda event: event[0])
        lost = stream.lost
        while True:
            while place < stream.released:
                event = stream.events[place][1]
                place += 1
                if _matches(selection, event["object"]):
                    yield event
            if stream.lost != lost:
                raise errors.Gone("too old resource version", 410)
            await stream.news.wait()

    async def get(self, resource: Resource, namespace: str, name: str) -> Raw:
        """Read one object."""
        found = self.find(resource, namespace, name)
        if found is None:
            raise errors.NotFound(f"{name} not found", 404)
        return found

    async def create(self, resource: Resource, namespace: str, manifest: Manifest, *, strict: bool = False) -> Raw:
        """Make an object."""
        if resource is EVENTS:
            return self.events.setdefault(manifest["metadata"]["name"], dict(manifest))
        name = manifest["metadata"]["name"]
        with self._answer(await self._admitted(), "create", f"{resource.kind} {name}", resource) as fault:
            if fault is Fault.INVALID:
                raise errors.Invalid("a webhook will not have it", 422)
            if self.find(resource, namespace, name) is not None:
                raise errors.AlreadyExists("it is there", 409)
            self.before_create(resource, manifest)
            self._version += 1
            metadata = {"uid": f"{resource.kind}-{self._version}", "creationTimestamp": timestamp(self._now())}
            made = self.put(resource, {**manifest, "metadata": {**manifest["metadata"], **metadata}})
        return made

    async def patch_status(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Raw:
        """Merge a patch into the status."""
        words = {key: patch["status"].get(key) for key in ("phase", "reason", "attempt")}
        with self._answer(await self._admitted(), "patch", f"the status: {words}", resource) as fault:
            before = self._to_patch(resource, namespace, name, patch, fault)
            after = {**before, "status": _merged(before.get("status") or {}, patch["status"])}
            self.before_status(before, after)
            kept = self.put(resource, after)
        return kept

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> Raw:
        """Merge a patch into an object's spec."""
        with self._answer(await self._admitted(), "patch", f"{resource.kind} {name}", resource) as fault:
            before = self._to_patch(resource, namespace, name, patch, fault)
            kept = self.put(resource, {**before, "spec": _merged(before.get("spec") or {}, patch["spec"])})
        return kept

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Raw:
        """Delete that very object; what it owns is the garbage collector's."""
        with self._answer(await self._admitted(), "delete", f"{resource.kind} {name}", resource):
            found = await self.get(resource, namespace, name)
            if found["metadata"]["uid"] != uid:
                raise errors.Conflict("the UID is another", 409)
            if found["metadata"].get("finalizers"):
                gone = {**found["metadata"], "deletionTimestamp": timestamp(self._now())}
                return self.put(resource, {**found, "metadata": gone})
            self.remove(resource, found)
        return {"kind": "Status"}

    async def _admitted(self) -> Fault | None:
        """Wait for the gate; returns what shall go wrong."""
        self.writes += 1
        if self.writes > BUSY:
            raise AssertionError(f"the operator made {BUSY} writes at one moment")
        if self.slow:
            waiting = asyncio.get_running_loop().create_future()
            self._gate.append(waiting)
            await waiting
        return self.faults.pop(0) if self.faults else None

    def _answer(self, fault: Fault | None, verb: str, what: str, resource: Resource) -> "_Answer":
        self.note(f"  the operator: {verb} {what}" + (f", but {fault.name}" if fault else ""))
        return _Answer(fault, verb, resource)

    def _to_patch(self, resource: Resource, namespace: str, name: str, patch: Manifest, fault: Fault | None) -> Raw:
        found = self.find(resource, namespace, name)
        if found is None:
            raise errors.NotFound(f"{name} not found", 404)
        if fault is Fault.CONFLICT:
            found = self.put(resource, found)
        if patch["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise errors.Conflict("the object has been modified", 409)
        return found

    def _versioned(self, raw: Mapping[str, Any]) -> Raw:
        self._version += 1
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(self._version)}}

    def _tell(self, resource: Resource, kind: str, raw: Raw) -> None:
        if resource in WATCHED:
            stream = self._streams[resource.plural]
            stream.events.append((int(raw["metadata"]["resourceVersion"]), {"type": kind, "object": raw}))


class _Answer:
    """What is heard of a write: a fault before it, or an answer that is lost behind it."""

    def __init__(self, fault: Fault | None, verb: str, resource: Resource) -> None:
        self._fault, self._verb, self._resource = fault, verb, resource

    def __enter__(self) -> Fault | None:
        if self._fault is Fault.UNAVAILABLE:
            raise errors.ApiUnavailable("the server does not answer", 503)
        if self._fault is Fault.FORBIDDEN:
            raise errors.Forbidden("no", verb=self._verb, resource=self._resource.qualified)
        return self._fault

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None and self._fault is Fault.ANSWER_LOST:
            raise errors.ApiUnavailable("the connection broke", 0)


def _place(resource: Resource, raw: Mapping[str, Any]) -> tuple[str, str, str]:
    return resource.plural, raw["metadata"]["namespace"], raw["metadata"]["name"]


def _matches(selection: Selection, raw: Raw) -> bool:
    metadata = raw["metadata"]
    labels = metadata.get("labels") or {}
    wanted = list(_pairs(selection.labels))
    fields = {"metadata.name": metadata["name"]}
    return (
        selection.namespace in ("", metadata["namespace"])
        and all(name in labels and value in ("", labels[name]) for name, value in wanted)
        and all(fields[name] == value for name, value in _pairs(selection.fields))
    )


def _pairs(selector: str) -> Iterator[tuple[str, str]]:
    """`a=b,c` as ("a", "b") and ("c", "")."""
    for part in filter(None, selector.split(",")):
        name, _, value = part.partition("=")
        yield name, value


def _merged(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Raw:
    """A JSON merge patch (RFC 7386)."""
    result = dict(old)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            before = result.get(key)
            result[key] = _merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[key] = value
    return result
