"""What a request to the API server is about, read from its path and body; and the record of how it ended.

Used by `proxy`, `rules` and `gate`. Nothing here makes a request.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qs, urlsplit

WRITES = frozenset({"create", "update", "patch", "delete"})
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PATH = re.compile(
    r"/apis?/(?P<group>[^/]+/)?v[0-9a-z]+(/namespaces/(?P<namespace>[^/]+))?/"
    r"(?P<plural>[a-z]+)(/(?P<name>[^/]+)(/(?P<subresource>[a-z]+))?)?"
)
_CHILD = re.compile(r"-[0-9a-f]{6}(-[0-9]+)?$")


class Fault(StrEnum):
    """What goes wrong with one request, or with one event of a watch."""

    SERVER_ERROR = "500"
    """Answered without the server."""
    TOO_MANY = "429"
    """Answered without the server, with Retry-After: 1."""
    RESET_BEFORE = "reset before"
    """The connection breaks, and the server never hears of the request."""
    RESET_AFTER = "reset after"
    """The connection breaks when the server has done what was asked: the reply is lost."""
    LIST_GONE = "list gone"
    """A list is answered with 410: its continuation is too old."""
    WATCH_DROPPED = "watch dropped"
    """The connection of a watch breaks in place of an event."""
    WATCH_GONE = "watch gone"
    """A watch says in place of an event that its resource version is too old, and ends."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as RBAC would see it."""

    verb: str
    """create, update, patch, delete, get, list, watch; of a path that is no object's: the method in small letters."""
    resource: str
    """Plural with its subresource, such as `tuningruns/status`; of any other path the path."""
    namespace: str = ""
    name: str = ""
    """Of a create it is the name in the body."""

    @property
    def is_write(self) -> bool:
        """Whether it changes an object; Events, which are sent and forgotten, do not count."""
        return self.verb in WRITES and self.resource != "events"

    @property
    def run(self) -> str:
        """Name of the run to which the object belongs, as names of children tell."""
        return self.name if self.resource.startswith("tuningruns") else _CHILD.sub("", self.name)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what became of it."""

    request: Request
    status: int
    """What the server answered; 0 when it never heard of the request or did not answer."""
    fault: Fault | None = None
    reply: bytes = b""
    """The server's answer to a write, whether or not its sender ever got it."""


def parse(method: str, target: str, body: bytes = b"") -> Request:
    """Read a request.

    Args:
        method: Of HTTP.
        target: Path with its query.
        body: JSON, or nothing.
    """
    parts = urlsplit(target)
    found = _PATH.fullmatch(parts.path)
    if found is None:
        return Request(method.lower(), parts.path)
    resource = "/".join(filter(None, (found["plural"], found["subresource"])))
    verb = _VERBS.get(method, "get" if found["name"] else "list")
    if parse_qs(parts.query).get("watch") == ["true"]:
        verb = "watch"
    name = found["name"] or ""
    if verb == "create" and not name:
        name = str(json.loads(body)["metadata"].get("name", ""))
    return Request(verb, resource, found["namespace"] or "", name)


def counted(exchanges: Iterable[Exchange]) -> Counter[tuple[str, str, int]]:
    """How often each verb and resource ended with which status of the server."""
    return Counter((item.request.verb, item.request.resource, item.status) for item in exchanges)
