"""What an exception of user code says: broken service, or the code's own fault.

Used inside worker processes, by the class names of the common client libraries, so that none of them is
imported for it. Standard library only.
"""

import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tuning_runner.episodes.contract import EnvironmentFailure

ENVIRONMENT = "environment"
"""The user's code says itself that its environment failed."""
SERVICE = "service"
"""A service could not be reached, was too slow, or answered 429 or 5xx."""
OWN = "own"
"""Anything else."""

_TRANSPORT = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "grpc.RpcError",
        "http.client.IncompleteRead",
        "httpcore.NetworkError",
        "httpcore.ProtocolError",
        "httpcore.TimeoutException",
        "httpx.TransportError",
        "openai.APIConnectionError",
        "anthropic.APIConnectionError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "requests.exceptions.ChunkedEncodingError",
        "socket.gaierror",
        "ssl.SSLError",
        "urllib3.exceptions.HTTPError",
        "websockets.exceptions.ConnectionClosed",
    }
)
_HEADLINE = 1000
_TRACE = 2900
_OURS = str(Path(__file__).parent)


def describe(error: BaseException) -> dict[str, Any]:
    """The exception as JSON: `{type, text, category}`; the text ends with the traceback, at most 4,000 characters."""
    return {"type": type(error).__name__, "text": _text(error), "category": category(error)}


def category(error: BaseException) -> str:
    """ENVIRONMENT, SERVICE or OWN, by the exception itself and what it was explicitly raised from."""
    leaves = list(_leaves(error))
    if any(isinstance(leaf, EnvironmentFailure) for leaf in leaves):
        return ENVIRONMENT
    return SERVICE if any(_is_service_failure(leaf) for leaf in leaves) else OWN


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exception, its members if it is a group, and the chain of `raise ... from`."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions)
        if current.__cause__ is not None:
            waiting.append(current.__cause__)


def _is_service_failure(error: BaseException) -> bool:
    status = _status(error) if isinstance(error, Exception) else None
    if status is not None:
        return status == 429 or status >= 500
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    # Libraries re-export their classes: openai._exceptions.X is openai.X to its users.
    names |= {f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}" for kind in type(error).__mro__}
    return not _TRANSPORT.isdisjoint(names) or _is_unreachable_url(error, names)


def _is_unreachable_url(error: BaseException, names: set[str]) -> bool:
    return "urllib.error.URLError" in names and isinstance(getattr(error, "reason", None), OSError)


def _status(error: BaseException) -> int | None:
    """HTTP status that an error carries: urllib's `code`, aiohttp's `status`, openai's and httpx's responses."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "status"), (response, "status_code"), (error, "code")):
        value = getattr(holder, name, None)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _text(error: BaseException) -> str:
    """What was raised, then the user's own part of the traceback: whoever cuts the text keeps the first line."""
    try:
        headline = "".join(traceback.format_exception_only(error)).strip()
        trace = "".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__))).strip()
    except Exception as failure:  # the exception's own __str__ may raise
        return f"{type(error).__name__} (its text cannot be printed: {type(failure).__name__})"
    return f"{headline[:_HEADLINE]}\n{trace[-_TRACE:]}"


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside this package and asyncio."""
    current = trace
    while current is not None:
        name = current.tb_frame.f_code.co_filename
        if not name.startswith(_OURS) and "/asyncio/" not in name:
            return current
        current = current.tb_next
    return trace
