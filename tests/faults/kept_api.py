"""The harness's client of the API server that keeps its connections: for players that make thousands of requests.

A handshake costs client and server five times what a request does.
"""

import http.client
import threading
import time
from types import TracebackType
from typing import Self

from tests.cluster.api import Api
from tests.cluster.control_plane import ControlPlane

IDLE_SECONDS = 20.0
"""A connection that was not used for so long is opened anew: the server closes idle ones."""


class KeptApi(Api):
    """Like `Api`, but a context manager, with one connection for each thread. After an error it connects again."""

    def __init__(self, plane: ControlPlane) -> None:
        """Speak with the administrator's rights; no request is made."""
        identity = plane.authority.client("admin", "admin", ["system:masters"])
        super().__init__(plane.server, plane.authority.certificate, identity)
        self._mine = threading.local()
        self._all: list[http.client.HTTPSConnection] = []

    def __enter__(self) -> Self:
        """Connect at the first request."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the connections up."""
        for connection in self._all:
            connection.close()

    def _open(self) -> http.client.HTTPSConnection:
        if not hasattr(self._mine, "connection"):
            self._mine.connection = super()._open()
            self._all.append(self._mine.connection)
            self._mine.used = 0.0
        found: http.client.HTTPSConnection = self._mine.connection
        if time.monotonic() - self._mine.used > IDLE_SECONDS:
            found.close()
        self._mine.used = time.monotonic()
        return found

    def _release(self, connection: http.client.HTTPSConnection) -> None:
        """Keep it."""
