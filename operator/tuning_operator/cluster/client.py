"""One client of the API server: bounded connections, JSON by orjson, errors of our own.

Used by `informer` (list, watch) and `execute` (create, patch_status, delete, get). It makes one request a call and
never retries: whoever calls knows what a retry means. A server that asks to wait (429, Retry-After) holds back all
requests but the watches.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self
from urllib.parse import urlencode

import aiohttp
import orjson

from tuning_operator import errors
from tuning_operator.cluster.credentials import Credentials
from tuning_operator.cluster.errors import from_answer, no_answer
from tuning_operator.cluster.resources import Resource

CONNECTIONS = 32
"""A TLS connection costs about 0.3 MiB, and more requests in flight do not make an API server faster."""
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_METHODS = {"list": "GET", "get": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}
_LONGEST_HOLD = 30.0

Manifest = Mapping[str, Any]


class RequestObserver(Protocol):
    """Counts requests; `telemetry` implements it."""

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """One request ended; code 0 when there was no answer."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind a list or watch is about."""

    resource: Resource
    namespace: str = ""
    """Empty: all namespaces."""
    labels: str = ""
    fields: str = ""

    def query(self, **more: str) -> str:
        """The query string of a list or watch."""
        wanted = {"labelSelector": self.labels, "fieldSelector": self.fields} | more
        return urlencode({name: value for name, value in wanted.items() if value})


class ApiClient:
    """Requests to one API server as one identity; an async context manager."""

    def __init__(
        self,
        credentials: Credentials,
        observer: RequestObserver,
        timeout: float = 30.0,
        may_write: Callable[[], None] | None = None,
    ) -> None:
        """Make no connection yet.

        Args:
            credentials: Where to, and as whom.
            observer: Is told of every request.
            timeout: Seconds for a request; watches have their own.
            may_write: Raises Deposed when nothing may be written now; None: everything may, at any time.
        """
        self._credentials = credentials
        self._observer = observer
        self._may_write = may_write
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=10)
        self._session: aiohttp.ClientSession | None = None
        self._hold_until = 0.0

    async def __aenter__(self) -> Self:
        """Open the session."""
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._credentials.tls or False, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, auto_decompress=True, read_bufsize=2**18
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def list_page(self, selection: Selection, limit: int, token: str = "") -> dict[str, Any]:
        """Return one page of a list, with `metadata.continue` when there is more."""
        path = selection.resource.path(selection.namespace)
        query = selection.query(limit=str(limit), **{"continue": token})
        return await self._call("list", selection.resource, f"{path}?{query}")

    async def watch(
        self, selection: Selection, version: str, seconds: int, quiet_seconds: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the events after a resource version until the server ends the watch.

        Args:
            selection: What to watch.
            version: Resource version to start after.
            seconds: The server ends the watch after this time.
            quiet_seconds: With not even a bookmark for this time the connection counts as dead.

        Raises:
            Gone: The version is too old.
            ApiError: Anything else that is no event.
        """
        query = selection.query(
            watch="true", allowWatchBookmarks="true", resourceVersion=version, timeoutSeconds=str(seconds)
        )
        path = f"{selection.resource.path(selection.namespace)}?{query}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=quiet_seconds)
        kind = selection.resource.qualified
        began = time.monotonic()
        try:
            async with self._open("GET", path, timeout=timeout) as response:
                self._observer.requested("watch", selection.resource.plural, response.status, time.monotonic() - began)
                if response.status != 200:
                    self._raise(from_answer("watch", kind, response.status, await _json(response)))
                async for line in _lines(response.content):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        self._raise(from_answer("watch", kind, int(event["object"].get("code", 500)), event["object"]))
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
            raise no_answer("watch", kind, error) from error

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """Read one object."""
        return await self._call("get", resource, resource.path(namespace, name))

    async def schemas(self, group: str, version: str, known: str = "") -> tuple[dict[str, Any] | None, str]:
        """Read the OpenAPI document of one version of a group, as every authenticated user may.

        Args:
            group: Such as `ray.io`.
            version: Such as `v1`.
            known: The tag of the document that the caller has read before.

        Returns:
            The document, None when it still is the known one, and its tag.
        """
        await self._held()
        path, kind, began, code = f"/openapi/v3/apis/{group}/{version}", "openapi", time.monotonic(), 0
        try:
            async with self._open("GET", path, headers={"If-None-Match": known} if known else {}) as response:
                code, tag = response.status, response.headers.get("ETag", "")
                document = await _json(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise no_answer("get", kind, error) from error
        finally:
            self._observer.requested("get", kind, code, time.monotonic() - began)
        if code >= 400:
            self._raise(from_answer("get", kind, code, document))
        return (None if code == 304 else document), tag

    async def create(
        self, resource: Resource, namespace: str, manifest: Manifest, *, strict: bool = False
    ) -> dict[str, Any]:
        """Make an object; returns it as the server keeps it.

        Args:
            resource: Of which kind.
            namespace: Where.
            manifest: The whole object.
            strict: The server refuses a field that it does not know, instead of dropping it.

        Raises:
            AlreadyExists: The name is taken.
            ApiError: Any other answer that is no success.
        """
        path = resource.path(namespace) + ("?fieldValidation=Strict" if strict else "")
        return await self._call("create", resource, path, manifest)

    async def patch_status(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> dict[str, Any]:
        """Merge a patch into the status subresource; returns the whole object."""
        path = resource.path(namespace, name, "status")
        return await self._call("patch", resource, path, patch)

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Manifest) -> dict[str, Any]:
        """Merge a patch into an object itself; returns the whole object."""
        return await self._call("patch", resource, resource.path(namespace, name), patch)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> dict[str, Any]:
        """Delete that very object; Conflict when another one has its name by now."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        return await self._call("delete", resource, resource.path(namespace, name), options)

    def _open(self, method: str, path: str, **more: Any) -> Any:
        if self._session is None:
            raise RuntimeError("the client is not open")
        headers = {"Accept": _JSON, **self._credentials.headers(), **more.pop("headers", {})}
        return self._session.request(method, self._credentials.server + path, headers=headers, **more)

    async def _call(self, verb: str, resource: Resource, path: str, body: Manifest | None = None) -> dict[str, Any]:
        await self._held()
        if self._may_write is not None and _METHODS[verb] != "GET":
            self._may_write()
        more: dict[str, Any] = {}
        if body is not None:
            more = {"data": orjson.dumps(body), "headers": {"Content-Type": _MERGE if verb == "patch" else _JSON}}
        began, code = time.monotonic(), 0
        try:
            async with self._open(_METHODS[verb], path, **more) as response:
                code = response.status
                document = await _json(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise no_answer(verb, resource.qualified, error) from error
        finally:
            self._observer.requested(verb, resource.plural, code, time.monotonic() - began)
        if code >= 400:
            self._raise(from_answer(verb, resource.qualified, code, document, response.headers.get("Retry-After")))
        return document

    def _raise(self, error: errors.ApiError) -> NoReturn:
        if error.status == 401:
            self._credentials.forget_token()
        if error.status == 429 and isinstance(error, errors.ApiUnavailable):
            hold = min(error.retry_after or 1.0, _LONGEST_HOLD)
            self._hold_until = max(self._hold_until, time.monotonic() + hold)
        raise error

    async def _held(self) -> None:
        while (wait := self._hold_until - time.monotonic()) > 0:
            await asyncio.sleep(wait)


async def _json(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """Parse an answer; a body that is no object (a proxy's error page) becomes its message."""
    body = await response.read()
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    return document if isinstance(document, dict) else {"message": body[:500].decode(errors="replace")}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a stream into lines of any length (the reader's own readline has a limit)."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        if b"\n" not in chunk:
            continue
        *lines, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in lines:
            if line.strip():
                yield bytes(line)
