"""What a run leaves at its end: what must not depend on what went wrong on the way, or on who died when.

Used by `tests/integration/test_operator_killed.py` and `test_operator_under_faults.py`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.faults.players import Object, Seen
from tests.faults.requests import Exchange

NAME = "math-agent"
"""Of every run; each has a namespace of its own."""
_CHILD = re.compile(rf"{NAME}-[0-9a-f]{{6}}")
_DIFFERS = ("UID", "Time", "At", "Seconds")
"""Ends of the names of fields that differ from run to run."""


@dataclass(frozen=True)
class End:
    """One run's end."""

    status: Any
    """As it was written last, without times, UIDs and the namespace."""
    children: tuple[str, ...]
    """Kind and name of all that is left."""
    made: Mapping[str, int]
    """How often the server made a RayCluster, and how often a Job, of that name."""
    attempts: tuple[int, ...]
    """The attempt's number after each write of the status."""

    def differences(self, expected: "End") -> list[str]:
        """What is not as it is at the end of another run that has lived the same life."""
        found = [
            f"{name}: {json.dumps(getattr(self, name))} instead of {json.dumps(getattr(expected, name))}"
            for name in ("status", "children", "made")
            if getattr(self, name) != getattr(expected, name)
        ]
        if list(self.attempts) != sorted(self.attempts):
            found.append(f"the attempt's number went back: {self.attempts}")
        return found


class Ends:
    """The ends of many runs, from what the API server and the proxy have recorded."""

    def __init__(self, audit: Iterable[Mapping[str, Any]], exchanges: Iterable[Exchange]) -> None:
        """Sort the records by namespace.

        Args:
            audit: The operator's requests in the API server's audit log.
            exchanges: All that went through the proxy.
        """
        self._made: dict[str, Counter[str]] = {}
        for event in audit:
            about = event.get("objectRef") or {}
            kind = {"rayclusters": "RayCluster", "jobs": "Job"}.get(about.get("resource", ""))
            if kind and event["verb"] == "create" and event["responseStatus"]["code"] == 201:
                self._made.setdefault(about["namespace"], Counter())[f"{kind} {_without_uid(about['name'])}"] += 1
        self._writes: dict[str, list[Exchange]] = {}
        for item in exchanges:
            if item.request.is_write:
                self._writes.setdefault(item.request.namespace, []).append(item)

    def writes(self, namespace: str) -> list[str]:
        """The writes about a run in words, with what the server answered."""
        found = self._writes.get(namespace, [])
        return [
            " ".join(filter(None, (item.request.verb, item.request.resource, str(item.status), item.fault)))
            for item in found
        ]

    def of(self, namespace: str, seen: Seen) -> End:
        """The end of the run in a namespace, of which this is left."""
        statuses = [
            json.loads(item.reply)["status"]
            for item in self._writes.get(namespace, [])
            if item.request.resource == "tuningruns/status" and item.status == 200
        ]
        kinds: tuple[tuple[str, Iterable[Object]], ...] = (
            ("RayCluster", seen.clusters),
            ("Job", seen.jobs),
            ("Pod", seen.pods),
        )
        return End(
            status=_settled(statuses[-1], namespace),
            children=tuple(
                sorted(f"{kind} {_without_uid(item['metadata']['name'])}" for kind, items in kinds for item in items)
            ),
            made=dict(sorted(self._made.get(namespace, {}).items())),
            attempts=tuple(status["attempt"]["number"] for status in statuses),
        )


def _without_uid(text: str) -> str:
    return _CHILD.sub(NAME, text)


def _settled(value: Any, namespace: str, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _settled(item, namespace, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_settled(item, namespace, name) for item in value]
    if name.endswith(_DIFFERS):
        return "..."
    return _without_uid(value).replace(namespace, "...") if isinstance(value, str) else value
