"""Everybody but the operator, for many runs side by side: each run has a stage and a life of its own.

Level-triggered like the operator: what is there decides what is done next, so it does not matter when the operator
comes to anything, or how often it dies. Only what a player did before is remembered, by UID. Used by
`tests/integration/test_operator_killed.py` and `test_operator_under_faults.py`.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from tests.cluster.api import Api
from tests.integration.stage import MERGE, Stage, attempt_of
from tuning_contract.causes import Cause
from tuning_contract.termination import (
    EXIT_ATTEMPT_LOST,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_SUCCEEDED,
    TerminationMessage,
)

RUNS = "/apis/agenttuning.io/v1alpha1/tuningruns"
CLUSTERS = "/apis/ray.io/v1/rayclusters"
JOBS = "/apis/batch/v1/jobs"
PODS = "/api/v1/pods"
OURS = "?resourceVersion=0&labelSelector=agenttuning.io/run-uid"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

STEPS = 12
"""Of the run that `a_spec` describes."""
STEPS_OF_AN_ATTEMPT = 4
"""Done, and saved, by an attempt that does not come to the end."""

HANDS = 6
"""Players that act at a time."""

Object = Mapping[str, Any]


class Ending(StrEnum):
    """How one attempt ends."""

    SUCCEEDS = "succeeds"
    FAILS = "fails"
    """For a reason that another attempt would not change."""
    LOSES_HEAD = "loses its head"
    SUSPENDED = "is suspended by its user, who goes on as soon as it is"


@dataclass(frozen=True)
class Life:
    """What happens to a run, attempt by attempt; the last ending is the run's."""

    endings: tuple[Ending, ...]
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """What is there of one run. Children come with their metadata only."""

    run: Object | None
    clusters: tuple[Object, ...] = ()
    jobs: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()

    @property
    def status(self) -> Object:
        """The run's status."""
        return (self.run or {}).get("status") or {}

    @property
    def owners(self) -> set[str]:
        """UIDs of all that may own something."""
        found = [*self.clusters, *self.jobs, *([self.run] if self.run else [])]
        return {item["metadata"]["uid"] for item in found}


class Player:
    """KubeRay, Job controller, kubelet, garbage collector and user of one run."""

    def __init__(self, stage: Stage, life: Life) -> None:
        """Apply the run."""
        self.stage = stage
        self.life = life
        self._served: set[str] = set()
        """RayClusters that have a head, Jobs that have a driver."""
        self._drivers: dict[str, str] = {}
        """Names of the drivers that run, by the UID of their Job."""
        stage.apply(**life.spec)

    def act(self, seen: Seen) -> None:
        """Do the next things."""
        self._collect_garbage(seen)
        cluster, job = _newest(seen.clusters), _newest(seen.jobs)
        if cluster is not None and _uid(cluster) not in self._served:
            self._served.add(_uid(cluster))
            self.stage.run_head_pod()
            self.stage.set_cluster_ready()
        if job is not None and _uid(job) not in self._served:
            self._served.add(_uid(job))
            self._drivers[_uid(job)] = self.stage.run_driver_pod()
        elif job is not None and _uid(job) in self._drivers:
            self._train(seen, job)
        if seen.status.get("phase") == "Suspended":
            self.stage.change(suspend=False)

    def is_over(self, seen: Seen) -> bool:
        """Whether the run has come to its end and everything that it held is given back."""
        ended = seen.run is None or seen.status.get("phase") in ("Succeeded", "Failed", "Rejected")
        heads = [pod for pod in seen.pods if _component(pod) == "head"]
        if self.life.spec.get("cleanup", {}).get("runTTLSeconds"):
            return seen.run is None and not (seen.clusters or seen.jobs or seen.pods)
        return ended and not seen.clusters and not heads

    def _train(self, seen: Seen, job: Object) -> None:
        """Come to the attempt's end, once the operator has told that it runs."""
        number = attempt_of(dict(job))
        if seen.status.get("phase") != "Running" or seen.status["attempt"].get("jobUID") != _uid(job):
            return
        match self.life.endings[number - 1]:
            case Ending.SUCCEEDS:
                self._end(job, "Succeeded", EXIT_SUCCEEDED, STEPS)
            case Ending.FAILS:
                self._end(job, "Failed", EXIT_FAILED, cause=Cause.WORKFLOW_ERROR)
            case Ending.LOSES_HEAD:
                head = next(pod for pod in seen.pods if _component(pod) == "head" and attempt_of(dict(pod)) == number)
                self._delete(PODS, head)
                self._end(job, "Failed", EXIT_ATTEMPT_LOST, cause=Cause.HEAD_LOST)
            case Ending.SUSPENDED:
                self.stage.change(suspend=True)

    def _end(self, job: Object, outcome: str, code: int, steps: int = 0, cause: str = "") -> None:
        """Let the driver end with that word."""
        done = steps or STEPS_OF_AN_ATTEMPT * attempt_of(dict(job))
        checkpoint = f"{self.stage.namespace}/{job['metadata']['name'].rpartition('-')[0]}/checkpoints/step-{done:06}"
        word = TerminationMessage(outcome, cause, f"{done} steps are done", done, STEPS, checkpoint)
        self.stage.end_driver(self._drivers.pop(_uid(job)), word, code)
        self._end_job(job, code == EXIT_SUCCEEDED)

    def _end_job(self, job: Object, complete: bool) -> None:
        """The Job ends with its driver: every other end than success is one that no other pod could change."""
        moment = "2026-01-01T00:00:00Z"
        kinds = ("SuccessCriteriaMet", "Complete") if complete else ("FailureTarget", "Failed")
        reason = "CompletionsReached" if complete else "PodFailurePolicy"
        base = {"status": "True", "reason": reason, "message": "the driver has ended", "lastTransitionTime": moment}
        status: dict[str, Any] = {"startTime": moment, "conditions": [base | {"type": kind} for kind in kinds]}
        status |= {"succeeded": 1, "completionTime": moment} if complete else {"failed": 1}
        path = f"{self._path(JOBS, job)}/status"
        self.stage.api.request("PATCH", path, {"status": status}, MERGE)

    def _collect_garbage(self, seen: Seen) -> None:
        """Delete what has lost its owner; a head that goes asks the training to save first, as its hook does."""
        for pod in seen.pods:
            if _owners(pod) & seen.owners:
                continue
            if _component(pod) == "head":
                self._stop_training(seen, attempt_of(dict(pod)))
            self._delete(PODS, pod)
        for job in seen.jobs:
            if not _owners(job) & seen.owners:
                self._delete(JOBS, job)

    def _stop_training(self, seen: Seen, attempt: int) -> None:
        for job in seen.jobs:
            if attempt_of(dict(job)) == attempt and _uid(job) in self._drivers:
                self._end(job, "Stopped", EXIT_STOPPED)

    def _delete(self, collection: str, item: Object) -> None:
        # A Job would wait for a controller that leaves its pods behind.
        options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        self.stage.api.request("DELETE", self._path(collection, item), options)

    def _path(self, collection: str, item: Object) -> str:
        group, _, plural = collection.rpartition("/")
        return f"{group}/namespaces/{self.stage.namespace}/{plural}/{item['metadata']['name']}"


class Cast:
    """The players of many runs, which look at the API server together: one list of each kind a round.

    A context manager.
    """

    def __init__(self, api: Api, name: str, lives: Mapping[str, Life]) -> None:
        """Apply a run of that name in each namespace, which is made.

        Args:
            api: Used by several threads at a time.
            name: Of every run.
            lives: By namespace.
        """
        self.api = api
        self._hands = ThreadPoolExecutor(HANDS)
        made = self._hands.map(lambda namespace: Player(Stage(api, namespace, name), lives[namespace]), lives)
        self.players = {player.stage.namespace: player for player in made}

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the players go."""
        self._hands.shutdown()

    def play(self, waiting: Collection[str] = ()) -> set[str]:
        """Let everybody act once, but for the runs of some namespaces; returns the namespaces whose run goes on."""
        seen = self.look()
        on = {name for name, player in self.players.items() if not player.is_over(seen[name])}
        list(self._hands.map(lambda name: self.players[name].act(seen[name]), sorted(on - set(waiting))))
        return on

    def look(self) -> dict[str, Seen]:
        """What is there of each run, by namespace."""
        runs = {item["metadata"]["namespace"]: item for item in self.api.get(f"{RUNS}?resourceVersion=0")["items"]}
        clusters, jobs, pods = (self._metadata(kind) for kind in (CLUSTERS, JOBS, PODS))
        return {
            name: Seen(runs.get(name), *(tuple(kind.get(name, ())) for kind in (clusters, jobs, pods)))
            for name in self.players
        }

    def _metadata(self, collection: str) -> dict[str, list[Object]]:
        found: dict[str, list[Object]] = {}
        for item in self.api.request("GET", collection + OURS, accept=METADATA)["items"] or ():
            found.setdefault(item["metadata"]["namespace"], []).append(item)
        return found


def _newest(children: Collection[Object]) -> Object | None:
    return max(children, key=lambda item: attempt_of(dict(item)), default=None)


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])


def _component(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["agenttuning.io/component"])


def _owners(item: Object) -> set[str]:
    return {owner["uid"] for owner in item["metadata"]["ownerReferences"]}
