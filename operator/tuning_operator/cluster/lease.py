"""Which of several operators acts: the one that holds a Lease. The others keep their local copies true and wait.

`__main__` makes one `Election`; its `confirm` is asked before every write of the main client. Moments of other machines
are never compared: a Lease is free when it has not changed for its duration by the clock of the one that looks at it.
"""

import asyncio
import logging
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from tuning_operator import errors
from tuning_operator.cluster.client import ApiClient
from tuning_operator.cluster.resources import LEASES

REQUEST_SECONDS = 4.0
"""Time-out of the client that is given to an election, so that a leader can try more than once before it gives up."""
_STEP_DOWN_SECONDS = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. What the leader may need to stop must fit between `patience` and `duration`."""

    duration: float = 15.0
    """How long the others wait after the last sign of life of the leader."""
    patience: float = 10.0
    """A leader that could not renew for so long leads no more."""
    renew: float = 4.0
    """Between two signs of life."""
    retry: float = 2.0
    """Between two looks of those who wait, and between two tries of a leader that cannot renew."""


class Election:
    """The part that one process takes in the election; an async context manager that steps down at its end."""

    def __init__(self, client: ApiClient, namespace: str, name: str, identity: str, pace: Pace | None = None) -> None:
        """Hold nothing yet.

        Args:
            client: One of its own, so that no other request is in the way of a sign of life.
            namespace: Of the Lease; empty: there are no others, and this process leads.
            name: Of the Lease.
            identity: No other process ever has the same.
            pace: The usual one by default.
        """
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._pace = pace or Pace()
        self._until = 0.0 if namespace else float("inf")
        self._ours: dict[str, Any] | None = None
        """The Lease as we wrote it last, while nothing speaks against it."""
        self._seen: dict[str, Any] = {}
        self._seen_at = 0.0

    async def __aenter__(self) -> Self:
        """Nothing to open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let another process take over at once."""
        await self.step_down()

    @property
    def leads(self) -> bool:
        """Whether this process may act now."""
        return time.monotonic() < self._until

    def confirm(self) -> None:
        """Raise Deposed unless this process may act now."""
        if not self.leads:
            raise errors.Deposed(f"the Lease {self._namespace}/{self._name} is not held: another operator may lead")

    async def attempt(self) -> bool:
        """Take the Lease, or renew it; returns whether this process leads."""
        if not self._namespace:
            return True
        # What counts is when we asked: the server may have waited before it wrote.
        began = time.monotonic()
        try:
            written = await self._write()
        except (errors.Conflict, errors.AlreadyExists) as error:
            log.debug("another operator was quicker: %s", error)
            written = None
        except errors.ApiError as error:
            log.warning("the Lease %s/%s: %s", self._namespace, self._name, error)
            written = None
        self._ours = written
        if written is not None:
            self._until = began + self._pace.patience
        return written is not None

    async def win(self) -> None:
        """Wait until this process leads."""
        while not await self.attempt():
            await asyncio.sleep(self._pause())
        log.info("leading as %s", self._identity)

    async def keep(self) -> None:
        """Give a sign of life for ever; without others nobody waits for one.

        Raises:
            Deposed: There was none for too long, or another process holds the Lease.
        """
        while self._namespace:
            # A process that has slept finds out here before it asks.
            await asyncio.sleep(min(self._pace.renew, max(0.0, self._until - time.monotonic())))
            self.confirm()
            try:
                async with asyncio.timeout(self._until - time.monotonic()):
                    while not await self.attempt():
                        self._refuse_another_holder()
                        await asyncio.sleep(self._pace.retry)
            except TimeoutError:
                self._until = 0.0
                self.confirm()

    async def step_down(self) -> None:
        """Give the Lease back if we hold it. Best effort: otherwise the others wait for its end."""
        if not self._namespace or not self.leads:
            return
        self._until = 0.0
        try:
            async with asyncio.timeout(_STEP_DOWN_SECONDS):
                await self._give_back()
        except (errors.ApiError, TimeoutError) as error:
            log.warning("the Lease was not given back: %s", error)

    async def _write(self) -> dict[str, Any] | None:
        """Write that we hold the Lease; returns it, or None while another one holds it."""
        if self._ours is not None:
            return await self._patch(self._ours, {"renewTime": _now()})
        try:
            found = await self._client.get(LEASES, self._namespace, self._name)
        except errors.NotFound:
            return await self._client.create(LEASES, self._namespace, self._new())
        self._look_at(found["spec"])
        holder = self._seen.get("holderIdentity")
        if holder == self._identity:
            return await self._patch(found, {"renewTime": _now()})
        if holder and self._remaining() > 0:
            return None
        return await self._patch(found, self._term(int(self._seen.get("leaseTransitions") or 0) + 1))

    def _look_at(self, spec: dict[str, Any]) -> None:
        if spec != self._seen:
            if (holder := spec.get("holderIdentity")) not in (self._seen.get("holderIdentity"), self._identity, None):
                log.info("standing by: %s leads", holder)
            self._seen, self._seen_at = spec, time.monotonic()

    def _remaining(self) -> float:
        """Seconds until a Lease that does not change is free."""
        return self._seen_at + float(self._seen.get("leaseDurationSeconds") or 0) - time.monotonic()

    def _pause(self) -> float:
        retry = self._pace.retry * random.uniform(0.9, 1.1)  # noqa: S311 - no secret
        remaining = self._remaining()
        return min(retry, remaining) if remaining > 0 else retry

    def _refuse_another_holder(self) -> None:
        if self._ours is None and self._seen.get("holderIdentity") not in (None, "", self._identity):
            self._until = 0.0
            self.confirm()

    async def _give_back(self) -> None:
        for _ in range(2):
            # A sign of life that was under way may have changed it.
            lease = self._ours or await self._client.get(LEASES, self._namespace, self._name)
            self._ours = None
            if lease["spec"].get("holderIdentity") != self._identity:
                return
            try:
                await self._patch(lease, {"holderIdentity": None, "renewTime": _now()})
            except errors.Conflict:
                continue
            log.info("gave the Lease back")
            return

    async def _patch(self, lease: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        """Change the Lease unless it changed meanwhile."""
        patch = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
        return await self._client.patch(LEASES, self._namespace, self._name, patch)

    def _term(self, transitions: int) -> dict[str, Any]:
        now = _now()
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._pace.duration)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _new(self) -> dict[str, Any]:
        return {
            "apiVersion": f"{LEASES.group}/{LEASES.version}",
            "kind": LEASES.kind,
            "metadata": {"name": self._name},
            "spec": self._term(0),
        }


def _now() -> str:
    """For people who read the Lease; no process trusts it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
