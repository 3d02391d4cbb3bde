"""A small client of the API server for the harness itself: one request, one answer.

Called by the profiles to wait for things and to apply manifests without a process per request. Tests use the official
client or `kubectl`; the operator has a client of its own.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.certificates import Certificate

FIELD_MANAGER = "agent-tuning-cluster"
REQUEST_SECONDS = 90
"""A busy machine takes half a minute for one of the CRDs, which are a megabyte each."""


class ApiError(Exception):
    """The API server answered with an error, or not at all (`status` 0)."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the HTTP status and the server's message."""
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """Requests to one API server as one user."""

    def __init__(self, server: str, authority: Path, client: Certificate) -> None:
        """Load the certificates; no request is made."""
        parts = urlsplit(server)
        self._host, self._port = str(parts.hostname), int(parts.port or 443)
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._tls.load_cert_chain(client.certificate, client.key)

    def request(
        self, method: str, path: str, body: object = None, kind: str = "application/json", accept: str = "*/*"
    ) -> Any:
        """Make a request; returns the parsed answer.

        Args:
            method: GET, POST, PATCH, DELETE.
            path: With its query, from the root.
            body: A string goes out as it is, anything else as JSON.
            kind: The body's content type.
            accept: In which form the answer may come.

        Raises:
            ApiError: Any answer from 400 on, and no answer.
        """
        text = body if isinstance(body, str | None) else json.dumps(body)
        headers = {"Accept": accept} | ({"Content-Type": kind} if text is not None else {})
        connection = self._open()
        try:
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ApiError(0, repr(error)) from error
        self._release(connection)
        if answer.status >= 400:
            raise ApiError(answer.status, content.decode(errors="replace")[:2000])
        return json.loads(content) if content.startswith(b"{") else content.decode()

    def get(self, path: str) -> Any:
        """Read one path."""
        return self.request("GET", path)

    def found(self, path: str) -> Any | None:
        """Read one path; None when it is not there or the server is not ready to say."""
        try:
            return self.get(path)
        except ApiError:
            return None

    def apply(self, path: str, manifest: Mapping[str, Any] | str) -> Any:
        """Apply a manifest (an object, or YAML text) on the server's side; takes over fields of others."""
        query = f"{path}?fieldManager={FIELD_MANAGER}&force=true"
        return self.request("PATCH", query, manifest, "application/apply-patch+yaml")

    def _open(self) -> http.client.HTTPSConnection:
        """A connection for one request."""
        return http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=REQUEST_SECONDS)

    def _release(self, connection: http.client.HTTPSConnection) -> None:
        """The request is answered."""
        connection.close()

    def is_ready(self) -> bool:
        """Whether the server says that it is ready."""
        return self.found("/readyz") == "ok"
