"""A plain HTTP client for the two services in the head pod: Ray's dashboard and our sidecar.

Used by `ray_jobs` and `sidecar`. `http.client` knows nothing of proxies, which is the point: variables such
as `HTTP_PROXY` in a cluster must never send in-cluster requests outside. Retries are the caller's business.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


class UnreachableError(Exception):
    """No usable answer: a transport error, a refused token or a server that is not itself."""


@dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""

    @property
    def text(self) -> str:
        """The body for people and for comparisons; bytes that are not UTF-8 are replaced."""
        return self.body.decode(errors="replace")

    def document(self) -> dict[str, Any]:
        """The body as a JSON object; UnreachableError when it is none."""
        try:
            document = json.loads(self.body)
        except ValueError as error:
            raise UnreachableError(f"answer {self.status} is not JSON: {self.text[:200]!r}") from error
        if not isinstance(document, dict):
            raise UnreachableError(f"answer {self.status} is no JSON object: {self.text[:200]!r}")
        return document


class HttpClient:
    """Requests to one server, a connection for each: a call a second needs no pool."""

    def __init__(self, base_url: str, token: str = "", timeout: float = 5.0) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no http address")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout = timeout

    def get(self, path: str) -> Answer:
        """GET; UnreachableError on a transport error, whatever the status is otherwise."""
        return self._request("GET", path, None)

    def post(self, path: str, document: Mapping[str, Any]) -> Answer:
        """POST a JSON object; errors as in `get`."""
        return self._request("POST", path, json.dumps(document).encode())

    def _request(self, method: str, path: str, body: bytes | None) -> Answer:
        connection = self._kind(self._host, self._port, timeout=self._timeout)
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            connection.request(method, self._prefix + path, body=body, headers=headers)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, response.read(), received)
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{method} {path}: {error or type(error).__name__}") from error
        finally:
            connection.close()
