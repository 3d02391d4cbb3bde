"""How the operator proves who it is to the API server.

`handlers` gets the connection from kopf's login (ServiceAccount or kubeconfig) and makes `Credentials` of it;
`client` uses them. kopf itself is not imported here.
"""

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_TOKEN_SECONDS = 60.0
"""A bound token is replaced in its file long before it ends; reading it once a minute is enough."""


class Connection(Protocol):
    """What is read of kopf's ConnectionInfo."""

    server: str
    ca_path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None
    ca_data: str | bytes | None
    insecure: bool | None
    token: str | None
    certificate_path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None
    certificate_data: str | bytes | None
    private_key_path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None
    private_key_data: str | bytes | None

    def as_http_headers(self) -> dict[str, str]:
        """The Authorization header, if any."""


class Credentials:
    """Address, trust and identity for one API server."""

    def __init__(self, connection: Connection, token_path: Path | None = None) -> None:
        """Load certificates.

        Args:
            connection: What the login found.
            token_path: File of a token that is replaced while we run; None for a fixed identity.
        """
        self.server = connection.server.rstrip("/")
        self.tls = _context(connection) if self.server.startswith("https:") else None
        self._fixed = connection.as_http_headers()
        self._token_path = token_path
        self._read_at = 0.0

    def headers(self) -> dict[str, str]:
        """The header that proves the identity; it never goes to anything but the API server."""
        if self._token_path is not None and time.monotonic() - self._read_at >= _TOKEN_SECONDS:
            self._fixed = {"Authorization": f"Bearer {self._token_path.read_text(encoding='utf-8').strip()}"}
            self._read_at = time.monotonic()
        return self._fixed

    def forget_token(self) -> None:
        """Read the token again at the next request: the server has refused the one at hand."""
        self._read_at = 0.0


def _context(connection: Connection) -> ssl.SSLContext:
    authority = _decoded(connection.ca_data)
    context = ssl.create_default_context(cafile=connection.ca_path, cadata=authority.decode() if authority else None)
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with (
        _as_file(connection.certificate_path, connection.certificate_data) as certificate,
        _as_file(connection.private_key_path, connection.private_key_data) as key,
    ):
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    return context


def _decoded(data: str | bytes | None) -> bytes | None:
    """Return PEM bytes of what a kubeconfig carries: base64, or PEM as it is."""
    if not data:
        return None
    raw = data.encode() if isinstance(data, str) else data
    return raw if raw.lstrip().startswith(b"-----BEGIN") else base64.b64decode(raw)


@contextmanager
def _as_file(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None, data: str | bytes | None
) -> Iterator[str | None]:
    """The ssl module reads certificates from files only."""
    content = _decoded(data)
    if content is None:
        yield os.fsdecode(path) if path is not None else None
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file.name
