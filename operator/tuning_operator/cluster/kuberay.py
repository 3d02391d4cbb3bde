"""Whether the API server serves RayClusters, and with all the fields that the operator sets.

One task, run by `__main__`; `observe` reads `served` and `lacks`. The schema is read once when RayClusters are served,
and again only while it lacks something: then an upgrade of KubeRay is waited for.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from tuning_operator import errors
from tuning_operator.cluster.client import ApiClient
from tuning_operator.cluster.informer import Informer
from tuning_operator.cluster.resources import RAY_CLUSTERS
from tuning_operator.engine import kuberay
from tuning_operator.engine.world import ClusterView

TICK = 0.5
AGAIN = 3.0
"""Between two looks at a schema that lacks something or could not be read; one that is the same is not sent again."""

UNPUBLISHED = 2.0
"""How long the schema of a new kind is waited for: a busy server tells of it seconds after it serves the kind."""

log = logging.getLogger(__name__)


class KubeRay:
    """What the API server has of KubeRay. All but `run` return at once."""

    def __init__(self, client: ApiClient, clusters: Informer[ClusterView], changed: Callable[[], None]) -> None:
        """Know nothing yet.

        Args:
            client: An open client.
            clusters: Tells whether RayClusters are served.
            changed: Is called when what is known has changed.
        """
        self._client = client
        self._clusters = clusters
        self._changed = changed
        self._known = False
        self._complete = False
        self._tag = ""
        self._served_since: float | None = None
        self.lacks: tuple[str, ...] = ()
        """Fields of RayClusters that would be set and are not there."""
        self.looked = asyncio.Event()
        """Set after the first look, whatever was seen."""

    @property
    def served(self) -> bool:
        """Whether RayClusters are served, and their fields were looked at."""
        return self._clusters.served and self._known

    async def run(self) -> None:
        """Look for ever."""
        await self._clusters.synced.wait()
        told: tuple[bool, tuple[str, ...]] | None = None
        while True:
            pause = await self._look()
            self.looked.set()
            if told != (self.served, self.lacks):
                told = (self.served, self.lacks)
                log.info("RayClusters: %s", self._summary())
                self._changed()
            await asyncio.sleep(pause)

    async def _look(self) -> float:
        """Look once; returns the seconds until the next look."""
        if not self._clusters.served:
            self._known, self._complete, self._tag, self.lacks = False, False, "", ()
            self._served_since = None
            return TICK
        if self._complete:
            return TICK
        try:
            document, self._tag = await self._client.schemas(RAY_CLUSTERS.group, RAY_CLUSTERS.version, self._tag)
        except errors.NotFound:
            return self._unpublished()
        except errors.ApiError as error:
            # What is not known is not held against a run: the server itself refuses a field that it does not have.
            log.warning("the fields of RayClusters are not known: %s", error)
            self._known = True
            return AGAIN
        if document is None:
            return AGAIN
        schema = _schema(document)
        if schema is None:
            return self._unpublished()
        self._known, self.lacks = True, kuberay.lacking(schema)
        self._complete = not self.lacks
        return AGAIN if self.lacks else TICK

    def _unpublished(self) -> float:
        """The server has the kind and not its schema yet."""
        now = time.monotonic()
        self._served_since = now if self._served_since is None else self._served_since
        self._tag = ""
        self._known = self._known or now >= self._served_since + UNPUBLISHED
        return TICK

    def _summary(self) -> str:
        if not self.served:
            return "not served"
        return f"they lack {', '.join(self.lacks)}" if self.lacks else "served"


def _schema(document: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of RayCluster in an OpenAPI document."""
    wanted = {"group": RAY_CLUSTERS.group, "version": RAY_CLUSTERS.version, "kind": RAY_CLUSTERS.kind}
    schemas: dict[str, dict[str, Any]] = (document.get("components") or {}).get("schemas") or {}
    return next((item for item in schemas.values() if wanted in item.get("x-kubernetes-group-version-kind", ())), None)
