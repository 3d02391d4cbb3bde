"""One POST to a remote-write receiver, and what its answer means for the sender.

`remote_write` calls it and owns retries. Proxies of the environment are never used.
"""

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import Enum

_NEVER = frozenset({400, 409, 413, 422})
"""The same request will be refused again."""
_BUSY = frozenset({429, 502, 503, 504})
"""The receiver is not to blame for the request: wait."""
_REFUSALS = ("too old sample", "out of order sample", "out of bounds", "duplicate sample")
"""Refusals that some receivers wrap into a 500 (Prometheus 2.42 does for the first)."""


class Reply(Enum):
    """What to do next."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """Do not send it again."""
    BUSY = "busy"
    """Not reached or overloaded: try again for long."""
    BROKEN = "broken"
    """An error inside the receiver, or one that a person must repair: try again a few times."""


@dataclass(frozen=True)
class Answer:
    """A reply with its reason and the wait that the receiver asks for, in seconds."""

    reply: Reply
    reason: str = ""
    wait: float = 0.0


class RemoteWriteClient:
    """One receiver."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def send(self, body: bytes, timeout: float) -> Answer:
        """POST one snappy block; never raises for what network or receiver do."""
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked by the API
            self._url,
            data=body,
            headers={
                "Content-Type": "application/x-protobuf",
                "Content-Encoding": "snappy",
                "X-Prometheus-Remote-Write-Version": "0.1.0",
                "User-Agent": "agent-tuning-sidecar",
            },
        )
        try:
            with self._opener.open(request, timeout=timeout) as response:
                response.read()
            return Answer(Reply.ACCEPTED)
        except urllib.error.HTTPError as error:
            with error:
                return _classify(error)
        except (OSError, http.client.HTTPException) as error:
            return Answer(Reply.BUSY, str(error) or type(error).__name__)


def _classify(error: urllib.error.HTTPError) -> Answer:
    try:
        text = error.read(2000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        text = ""
    reason = f"HTTP {error.code}: {text[:300]}"
    if error.code in _NEVER or any(refusal in text for refusal in _REFUSALS):
        return Answer(Reply.REFUSED, reason)
    if error.code in _BUSY:
        asked = error.headers.get("Retry-After", "")
        return Answer(Reply.BUSY, reason, float(asked) if asked.isdigit() else 0.0)
    return Answer(Reply.BROKEN, reason)
