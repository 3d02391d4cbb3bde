"""Worlds with valid defaults: `a_world(head=a_head(...))` says only what a test is about."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.builders import UID, a_run, merged
from tuning_contract.progress import Progress
from tuning_contract.termination import TerminationMessage
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_status import TuningRunStatus
from tuning_operator.engine.plan import plan
from tuning_operator.engine.transitions import is_allowed
from tuning_operator.engine.world import (
    ClaimView,
    ClusterView,
    ContainerState,
    ContainerView,
    JobView,
    Notes,
    PodView,
    World,
)
from tuning_operator.settings import Settings

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
CLUSTER_UID = "cluster-uid"
JOB_UID = "job-uid"
HEAD_UID = "head-uid"
NAME = "math-agent-3f9a1c-1"
OWN_CLAIM: Mapping[str, ClaimView] = {"math-agent-3f9a1c": ClaimView(UID, frozenset({"ReadWriteMany"}))}
"""The claim that is made for the run."""

STARTING: Mapping[str, Any] = {
    "phase": "Starting",
    "attempt": {
        "number": 1,
        "rayClusterName": NAME,
        "rayClusterUID": CLUSTER_UID,
        "jobName": NAME,
        "rayJobId": NAME,
        "startTime": "2026-01-02T11:50:00Z",
    },
}
RUNNING: Mapping[str, Any] = {
    "phase": "Running",
    "attempt": {
        **STARTING["attempt"],
        "jobUID": JOB_UID,
        "headPodUID": HEAD_UID,
        "headRestartCount": 0,
        "runningTime": "2026-01-02T11:51:00Z",
    },
}


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def some_notes(**changes: Any) -> Notes:
    return replace(Notes(first_seen=NOW - timedelta(hours=1)), **changes)


def lost_long_ago() -> Notes:
    return some_notes(since={"loss": NOW - seconds(100)})


def a_container(name: str = "ray-head", **changes: Any) -> ContainerView:
    """A container that runs and is ready, unless its state is another."""
    ready = changes.get("state", ContainerState.RUNNING) is ContainerState.RUNNING
    return replace(ContainerView(name, ContainerState.RUNNING, ready=ready), **changes)


def a_waiting(name: str, reason: str, message: str = "", **changes: Any) -> ContainerView:
    return a_container(name, state=ContainerState.WAITING, reason=reason, message=message, **changes)


def a_head(**changes: Any) -> PodView:
    pod = PodView(
        name=f"{NAME}-head-abcde",
        uid=HEAD_UID,
        component="head",
        attempt=1,
        phase="Running",
        ip="10.0.0.7",
        started_at=NOW - seconds(600),
        containers=(a_container(),),
    )
    return replace(pod, **changes)


def a_worker(number: int = 1, **changes: Any) -> PodView:
    """A pod of the group `agents`, ready unless it says otherwise."""
    pod = PodView(
        name=f"{NAME}-agents-worker-{number}",
        uid=f"worker-uid-{number}",
        component="worker",
        group="agents",
        attempt=1,
        phase="Running",
        started_at=NOW - seconds(600),
        containers=(a_container("ray-worker"),),
        ready=True,
    )
    return replace(pod, **changes)


def a_claim(*modes: str, **changes: Any) -> ClaimView:
    """Somebody's claim with these access modes."""
    return replace(ClaimView(access_modes=frozenset(modes or ("ReadWriteMany",))), **changes)


def a_driver(message: TerminationMessage | str | None = None, code: int = 0, **changes: Any) -> PodView:
    """A driver pod: running without a message, ended with one."""
    pod = PodView(name=f"{NAME}-zzzzz", uid="driver-uid", component="driver", attempt=1, phase="Running")
    if message is None:
        return replace(pod, **{"containers": (a_container("driver"),)} | changes)
    text = message if isinstance(message, str) else message.to_text()
    ended = a_container("driver", state=ContainerState.TERMINATED, exit_code=code, message=text)
    return replace(pod, phase="Failed" if code else "Succeeded", containers=(ended,), **changes)


def a_cluster(**changes: Any) -> ClusterView:
    return replace(ClusterView(NAME, CLUSTER_UID, head_ready=True), **changes)


def a_job(**changes: Any) -> JobView:
    return replace(JobView(NAME, JOB_UID, head_pod_uid=HEAD_UID, head_restarts=0), **changes)


def a_new_world(run: TuningRun | None = None, **changes: Any) -> World:
    """Nothing is made yet."""
    return replace(World(now=NOW, run=run or a_run(), notes=some_notes()), **changes)


def a_starting_world(**changes: Any) -> World:
    """The children are made and recorded."""
    world = World(
        now=NOW,
        run=a_run(status=STARTING),
        notes=some_notes(config_made=True),
        cluster=a_cluster(head_ready=False),
        claims=OWN_CLAIM,
        pods=(a_head(),),
    )
    return replace(world, **changes)


def a_running_world(**changes: Any) -> World:
    """The Job is made and recorded, its driver runs."""
    world = a_starting_world(run=a_run(status=RUNNING), cluster=a_cluster(), job=a_job(), pods=(a_head(), a_driver()))
    return replace(world, **changes)


def some_progress(**changes: Any) -> Progress:
    progress = Progress(
        attempt=1,
        step=3,
        target_steps=12,
        updated_at=NOW.timestamp() - 1,
        eta_seconds=277.4,
        values={"reward_mean": 0.4321, "policy_loss": 0.00012, "kl": 0.01},
    )
    return replace(progress, **changes)


def after_the_write(world: World, settings: Settings) -> World:
    """The world once the status of its plan is written; the write must be there, and be an allowed step."""
    write = plan(world, settings).status
    assert write is not None, "nothing is written"
    status = TuningRunStatus.model_validate(merged(world.run.status.to_object(), write.patch))
    assert is_allowed(world.run.status.phase, status.phase), (world.run.status.phase, status.phase)
    return replace(world, run=world.run.model_copy(update={"status": status}))


def cleared(world: World, **changes: Any) -> World:
    """The same world when everything of its attempt but the Job is gone, and the API server has said so."""
    notes = replace(world.notes, looked_at=world.now, since={"remains": world.now})
    return replace(world, **{"cluster": None, "pods": (), "notes": notes} | changes)
