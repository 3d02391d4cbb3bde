"""What goes wrong, and how often: seeded chances for `proxy`."""

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from tests.faults.requests import Fault, Request

ANY_REQUEST = (Fault.SERVER_ERROR, Fault.TOO_MANY, Fault.RESET_BEFORE, Fault.RESET_AFTER)
ANY_LIST = (*ANY_REQUEST, Fault.LIST_GONE)
ANY_EVENT = (Fault.WATCH_DROPPED, Fault.WATCH_GONE)


class Rule(Protocol):
    """Decides about every request and every event of a watch, in the order in which they come."""

    def of_request(self, request: Request) -> Fault | None:
        """What goes wrong with a request."""

    def of_event(self, request: Request) -> Fault | None:
        """What goes wrong in place of the next event of a watch."""


class Nothing:
    """All goes well."""

    def of_request(self, request: Request) -> Fault | None:
        """Nothing goes wrong."""
        return None

    def of_event(self, request: Request) -> Fault | None:
        """Nothing goes wrong."""
        return None


class Chances:
    """Each fault has its chance wherever it can happen; the same seed draws the same numbers."""

    def __init__(self, chances: Mapping[Fault, float], seed: int = 0) -> None:
        """Set the chances, each from 0 to 1, of one request or one event."""
        self._chances = chances
        self._random = random.Random(seed)

    def of_request(self, request: Request) -> Fault | None:
        """Draw for a request."""
        return self._draw(ANY_LIST if request.verb == "list" else ANY_REQUEST)

    def of_event(self, request: Request) -> Fault | None:
        """Draw for an event."""
        return self._draw(ANY_EVENT)

    def _draw(self, possible: Sequence[Fault]) -> Fault | None:
        number = self._random.random()
        for fault in possible:
            number -= self._chances.get(fault, 0.0)
            if number < 0:
                return fault
        return None
