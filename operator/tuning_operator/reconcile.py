"""One pass over one run: observe, plan, carry out the first stage. Level-triggered: what woke us does not matter.

`handlers` runs a few of these loops over one queue. Decisions are in `engine`, requests in `cluster`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from tuning_operator import errors
from tuning_operator.api.conditions import Phase
from tuning_operator.api.meta import KIND
from tuning_operator.cluster.execute import Executor, next_stage
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.observe import Observer
from tuning_operator.cluster.projections import RunView
from tuning_operator.cluster.queue import Lane, WorkQueue
from tuning_operator.engine import status
from tuning_operator.engine.plan import plan
from tuning_operator.settings import Settings

_NO_RIGHT_SECONDS = 30.0
"""Before something is tried again for which a permission is missing."""

log = logging.getLogger(__name__)


class PassObserver(Protocol):
    """Counts passes; `telemetry` implements it."""

    def passed(self, outcome: str, seconds: float) -> None:
        """One pass ended: ok, retry, conflict, forbidden or bug."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Makes the world more like the runs say, one stage a pass."""

    queue: WorkQueue
    observer: Observer
    executor: Executor
    memory: Memory
    passes: PassObserver
    settings: Settings
    clock: Callable[[], datetime]

    async def work(self) -> None:
        """Take keys for ever. What fails comes again later; nothing that happens to one run stops another."""
        while True:
            uid, lane = await self.queue.get()
            began = self.clock()
            try:
                outcome = await self._guarded(uid, lane)
            finally:
                self.queue.done(uid)
            self.passes.passed(outcome, (self.clock() - began).total_seconds())

    async def reconcile(self, uid: str, lane: Lane) -> None:
        """Look at one run and do the next thing for it."""
        view = self.observer.find(uid)
        if view is None:
            self._forget(uid)
            return
        try:
            world = self.observer.observe(view, self.clock())
        except errors.SpecRejected as error:
            await self._reject(view, str(error))
            return
        todo = plan(world, self.settings)
        stage = next_stage(todo)
        if stage is None:
            self.queue.set_deadline(uid, None if todo.due is None else (todo.due - self.clock()).total_seconds())
        elif stage.lane > lane and not self.queue.is_first(stage.lane):
            self.queue.add(uid, stage.lane)
        else:
            await self.executor.carry_out(stage, world, todo)
            self.queue.add(uid, stage.then)

    async def _guarded(self, uid: str, lane: Lane) -> str:
        try:
            await self.reconcile(uid, lane)
        except errors.Conflict as error:
            log.debug("%s: planning again: %s", uid, error)
            self.queue.failed(uid)
            return "conflict"
        except errors.Forbidden as error:
            log.warning("missing permission: %s %s: %s", error.verb, error.resource, error)
            self.queue.failed(uid, _NO_RIGHT_SECONDS)
            return "forbidden"
        except errors.ApiError as error:
            asked = error.retry_after if isinstance(error, errors.ApiUnavailable) else None
            delay = self.queue.failed(uid, asked or 0.0)
            log.info("%s: %s; again in %.1f s", uid, error, delay)
            return "retry"
        except Exception:
            log.exception("%s: unexpected", uid)
            self.queue.failed(uid, 1.0)
            return "bug"
        self.queue.succeeded(uid)
        return "ok"

    def _forget(self, uid: str) -> None:
        self.queue.forget(uid)
        self.memory.forget(uid)

    async def _reject(self, view: RunView, message: str) -> None:
        """Show that the object cannot be read, unless it runs or has ended: then another version of us accepted it."""
        raw = view.parsed()
        ended = view.phase in (Phase.SUCCEEDED, Phase.FAILED)
        if ended or raw["status"].get("history") or (raw["status"].get("attempt") or {}).get("rayClusterUID"):
            log.error("%s %s/%s cannot be read, it is left alone: %s", KIND, view.namespace, view.name, message)
            return
        metadata = raw["metadata"]
        patch = status.unreadable(raw["status"], metadata.get("generation", 1), message, self.clock())
        if patch and "deletionTimestamp" not in metadata:
            await self.executor.patch_unreadable(view, metadata["resourceVersion"], patch)
