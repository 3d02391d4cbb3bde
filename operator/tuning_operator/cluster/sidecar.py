"""Talk with the sidecar in a run's head pod: how far it is, how it ended, and that it shall stop.

Used by `progress` and `execute`. It has a session of its own, so that no credential of the API server ever goes to a
pod. No answer is never an error: the run may be well.
"""

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp

from tuning_contract import environment
from tuning_contract.checks import is_text
from tuning_contract.progress import Progress
from tuning_contract.result import RunResult
from tuning_operator.engine.world import StopAnswer

CONNECTIONS = 16
TIMEOUT = aiohttp.ClientTimeout(total=5, sock_connect=2)
_NOT_IMPLEMENTED = 501
_HUGE = 1e11
_LONGEST_PATH = 1000
_LARGEST = 256 * 1024
"""A pod runs user code: what it sends is bounded."""


class Unreachable(Exception):  # noqa: N818 - a fact, not an error
    """The sidecar gave no usable answer."""


class SidecarClient:
    """Asks sidecars; an async context manager."""

    def __init__(self, port: int = environment.SIDECAR_PORT) -> None:
        """Make no connection yet."""
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session."""
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()

    async def progress(self, address: str) -> Progress:
        """How far the run is. Unreachable when there is no usable answer."""
        body = await self._get(address, "progress")
        try:
            return _checked(Progress.from_text(body or b""))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise Unreachable(f"not a progress document: {error}") from error

    async def result(self, address: str) -> RunResult | None:
        """The run's result document; None when there is none yet. Unreachable when there is no usable answer."""
        body = await self._get(address, "result")
        try:
            return None if body is None else RunResult.from_text(body.decode())
        except (ValueError, TypeError) as error:
            raise Unreachable(str(error)) from error

    async def stop(self, address: str, token: str) -> StopAnswer:
        """Ask the training to save and to stop. Unreachable when that may well work later.

        Args:
            address: Of the head pod.
            token: Of the attempt, from `tuning_contract.stopping`.
        """
        status, _ = await self._call("POST", address, "stop", {"Authorization": f"Bearer {token}"})
        if status == 202:
            return StopAnswer.TAKEN
        if 400 <= status < 500 or status == _NOT_IMPLEMENTED:
            # It has no digest, that of another key, or is of a version that cannot be asked.
            return StopAnswer.REFUSED
        raise Unreachable(f"HTTP {status}")

    async def _get(self, address: str, path: str) -> bytes | None:
        status, body = await self._call("GET", address, path)
        if status == 404:
            return None
        if status != 200:
            raise Unreachable(f"HTTP {status}")
        return body

    async def _call(
        self, method: str, address: str, path: str, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One request: status and body."""
        if self._session is None:
            raise RuntimeError("the client is not open")
        if not address:
            raise Unreachable("no head pod with an address")
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}/{path}"
        try:
            async with self._session.request(method, url, headers=headers, allow_redirects=False) as response:
                return response.status, await _whole(response.content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """The body until its end, however many packets it comes in; Unreachable when it is too large."""
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > _LARGEST:
            raise Unreachable(f"the answer is larger than {_LARGEST} bytes")
    return bytes(body)


def _checked(progress: Progress) -> Progress:
    """The same figures with the types that they promise; raises on anything else, for the pod runs user code."""
    numbers = [progress.updated_at, progress.checkpoint_saved_at, progress.eta_seconds or 0.0]
    numbers += [float(entry["mean"]) for entry in progress.evaluation] + list(progress.values.values())
    if not all(isinstance(value, int | float) and math.isfinite(value) and abs(value) < _HUGE for value in numbers):
        raise ValueError("a figure is no finite number")
    steps = [progress.attempt, progress.step, progress.target_steps, progress.checkpoint_step]
    steps += [entry["step"] for entry in progress.evaluation]
    if not all(isinstance(step, int) and 0 <= step < _HUGE for step in steps):
        raise ValueError("a step is no count")
    texts = [progress.checkpoint_path, *(entry["dataset"] for entry in progress.evaluation)]
    if not all(is_text(text) and len(text) < _LONGEST_PATH for text in texts):
        raise ValueError("a name is no short text")
    return progress
