"""The harness's client of the API server with one connection that is kept: for players that make thousands of requests.

A handshake costs client and server five times what a request does.
"""

import http.client
from types import TracebackType
from typing import Self

from tests.cluster.api import Api
from tests.cluster.control_plane import ControlPlane


class KeptApi(Api):
    """Like `Api`, but for one thread, and a context manager. After an error it connects again by itself."""

    def __init__(self, plane: ControlPlane) -> None:
        """Speak with the administrator's rights; no request is made."""
        identity = plane.authority.client("admin", "admin", ["system:masters"])
        super().__init__(plane.server, plane.authority.certificate, identity)
        self._kept = super()._open()

    def __enter__(self) -> Self:
        """Connect at the first request."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the connection up."""
        self._kept.close()

    def _open(self) -> http.client.HTTPSConnection:
        return self._kept

    def _release(self, connection: http.client.HTTPSConnection) -> None:
        """Keep it."""
