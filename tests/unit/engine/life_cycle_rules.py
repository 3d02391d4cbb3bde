"""What must hold at every write of the operator, held against the true state of a simulated cluster.

`test_life_cycle_model` reads `broken`: an exception in the middle of a write would be taken for an error of it.
"""

from datetime import timedelta
from typing import Any

import orjson

from tests.unit.engine.simulated_api import Raw, SimulatedApi
from tests.unit.engine.simulated_cluster import SimulatedCluster
from tests.unit.engine.simulated_training import SimulatedPod
from tuning_contract.result import FAILED
from tuning_operator.api import meta
from tuning_operator.api.conditions import ConditionType, Phase, is_true
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_status import TuningRunStatus
from tuning_operator.cluster.client import Manifest
from tuning_operator.cluster.resources import JOBS, RAY_CLUSTERS, TUNING_RUNS, Resource
from tuning_operator.engine.transitions import is_allowed
from tuning_operator.settings import Settings

STATUS_LIMIT = 8192
_NODE_GONE = ("DeletionByTaintManager", "DeletionByPodGC")


class LifeCycleRules:
    """Looks over the operator's shoulder."""

    def __init__(self, api: SimulatedApi, cluster: SimulatedCluster, settings: Settings) -> None:
        """Look at every write of a server."""
        self._api, self._cluster = api, cluster
        self._patience = timedelta(seconds=settings.node_lost_seconds)
        self._failures, self._saved = 0, 0
        self.broken: list[str] = []
        """What was wrong, in the order of time."""
        self.suspension_is_known = False
        """Whether the run is suspended, and the operator has had the time to see it."""
        api.before_create = self._before_create
        api.before_status = self._before_status

    def _must(self, holds: bool, rule: str) -> None:
        if not holds:
            self.broken.append(rule)

    def _before_create(self, resource: Resource, manifest: Manifest) -> None:
        run = next(iter(self._api.all(TUNING_RUNS)), None)
        if run is None or resource not in (RAY_CLUSTERS, JOBS):
            return
        status, number = _status(run), int(manifest["metadata"]["labels"][meta.ATTEMPT_LABEL])
        attempt, kind = status.attempt, resource.kind
        self._must(number == (attempt.number or 1), f"a {kind} is made for the status's attempt")
        self._must(number not in _numbers(status), f"no {kind} is made for an attempt that is over")
        self._must(not (status.phase and status.phase.terminal), f"no {kind} is made for a run that has ended")
        self._must(not self.suspension_is_known, f"no {kind} is made for a run that is suspended")
        if resource is RAY_CLUSTERS:
            self._must(attempt.ray_cluster_uid is None, "an observed RayCluster is never made again")
            self._must(not self._api.all(RAY_CLUSTERS), "one RayCluster at a time")
            self._must(not self._left_of(number - 1), f"no pod of an earlier attempt: {self._left_of(number - 1)}")

    def _before_status(self, before: Raw, after: Raw) -> None:
        old, new = _status(before), _status(after)
        self._must(before.get("status") != after["status"], "a write changes something")
        size = len(orjson.dumps(after["status"]))
        self._must(size < STATUS_LIMIT, f"a status is small, not {size} bytes")
        self._must(is_allowed(old.phase, new.phase), f"{old.phase} -> {new.phase} is in the table")
        if old.phase is not None and old.phase.terminal:
            self._must(
                (new.phase, new.history, new.attempt) == (old.phase, old.history, old.attempt), "an end is final"
            )
        self._check_attempt(old, new)
        self._check_history(old, new, after["spec"].get("retry", {}).get("maxAttempts", 3))
        self._check_phase(new)

    def _check_attempt(self, old: TuningRunStatus, new: TuningRunStatus) -> None:
        before, after = old.attempt, new.attempt
        self._must((before.number or 1) <= (after.number or 1) <= (before.number or 1) + 1, "attempts count upwards")
        if before.number and after.number == before.number:
            kept = before.ray_cluster_uid in (None, after.ray_cluster_uid)
            self._must(kept, "what was observed stays")
        if after.number > max(before.number, 1):
            nothing = (after.ray_cluster_uid, after.job_uid, after.stop_time, after.running_time)
            self._must(nothing == (None,) * 4, "an attempt begins with nothing")
            self._must((before.number or 1) in _numbers(old), "an attempt begins when the last one is in the history")
            self._must(not self._api.all(RAY_CLUSTERS), "an attempt begins when no RayCluster is left")
            self._must(not self._left_of(before.number or 1), "an attempt begins when no pod is left")

    def _check_history(self, old: TuningRunStatus, new: TuningRunStatus, limit: int) -> None:
        numbers = _numbers(new)
        self._must(numbers == sorted(set(numbers)), "each attempt ends once")
        kept = [record for record in new.history if record.number in _numbers(old)]
        late = new.phase is Phase.SUCCEEDED
        self._must(late or list(old.history)[-len(kept) :] == kept or not kept, "what is in the history stays")
        self._must(late or set(_numbers(old)[-9:]) <= set(numbers), "what is in the history stays there")
        for record in new.history:
            if record.number not in _numbers(old) and record.outcome == FAILED:
                if (new.checkpoint.step or 0) > self._saved:
                    self._failures, self._saved = 0, new.checkpoint.step or 0
                self._failures += record.counted is True
        self._must(self._failures <= limit, f"{self._failures} counted failures, {limit} allowed")

    def _check_phase(self, new: TuningRunStatus) -> None:
        result = self._cluster.volume.result
        if new.phase is Phase.SUCCEEDED:
            self._must(result is not None and result.complete, "success has a complete result")
        if new.phase is Phase.SUSPENDED:
            self._must(not self._api.all(RAY_CLUSTERS), "a run at rest has no RayCluster")
            self._must(not self._left_of(new.attempt.number or 1), "a run at rest has no pods")
        ended = new.phase is not None and new.phase.terminal
        self._must(is_true(new.conditions, ConditionType.FINISHED) == ended, "Finished tells what the phase tells")
        rests = is_true(new.conditions, ConditionType.SUSPENDED)
        self._must(rests == (new.phase is Phase.SUSPENDED), "Suspended tells what the phase tells")

    def _left_of(self, number: int) -> list[str]:
        """Head and worker pods of attempts up to this one that are not known to be on a dead node."""
        ours = (meta.COMPONENT_HEAD, meta.COMPONENT_WORKER)
        pods = (pod for pod in self._cluster.pods.values() if pod.component in ours and pod.attempt <= number)
        return [pod.name for pod in pods if not self._is_gone(pod)]

    def _is_gone(self, pod: SimulatedPod) -> bool:
        if pod.deleted_at is None:
            return False
        given_up = pod.disrupted_at if pod.disruption in _NODE_GONE else None
        moments = [moment for moment in (given_up, pod.deleted_at if pod.node_lost else None) if moment is not None]
        return bool(moments) and self._cluster.now() >= min(moments) + self._patience


def _status(raw: Any) -> TuningRunStatus:
    return TuningRun.from_object(raw).status


def _numbers(status: TuningRunStatus) -> list[int]:
    return [record.number for record in status.history]
