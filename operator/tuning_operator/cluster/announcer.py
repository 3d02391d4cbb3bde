"""Posts Events in the background: best effort, bounded, never in the way of a run.

`execute` tells it what to post after the status is written. An Event has a name that follows from its content, so
the same one told twice (after a restart) is one.
"""

import asyncio
import hashlib
import logging
from datetime import datetime

from tuning_operator import errors
from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.cluster.client import ApiClient, Manifest
from tuning_operator.cluster.resources import EVENTS
from tuning_operator.engine.announcements import Announcement

_WAITING = 1000
_NOTE = 1024
"""The API takes notes of less than 1 kB."""

log = logging.getLogger(__name__)


class Announcer:
    """One task that posts what it was told."""

    def __init__(self, client: ApiClient, instance: str) -> None:
        """Post as this instance of the operator."""
        self._client = client
        self._instance = instance
        self._queue: asyncio.Queue[tuple[str, Manifest]] = asyncio.Queue(_WAITING)

    def tell(self, run: TuningRun, announcement: Announcement, now: datetime) -> None:
        """Post one Event soon; dropped when too many wait."""
        try:
            self._queue.put_nowait((run.namespace, self._event(run, announcement, now)))
        except asyncio.QueueFull:
            log.warning("dropped an Event of %s/%s: %s", run.namespace, run.name, announcement.reason)

    async def run(self) -> None:
        """Post for ever."""
        while True:
            namespace, event = await self._queue.get()
            try:
                await self._client.create(EVENTS, namespace, event)
            except errors.AlreadyExists:
                pass
            except errors.ApiError as error:
                log.info("an Event was not posted: %s", error)

    def _event(self, run: TuningRun, announcement: Announcement, now: datetime) -> Manifest:
        content = f"{run.uid}/{run.status.attempt.number}/{announcement.reason}/{announcement.message}"
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{run.name}.{hashlib.sha256(content.encode()).hexdigest()[:16]}",
                "namespace": run.namespace,
            },
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": f"{meta.GROUP}/operator",
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "type": announcement.type,
            "reason": announcement.reason,
            "note": announcement.message.encode()[: _NOTE - 1].decode(errors="ignore"),
            "regarding": {
                "apiVersion": meta.API_VERSION,
                "kind": meta.KIND,
                "namespace": run.namespace,
                "name": run.name,
                "uid": run.uid,
            },
        }
