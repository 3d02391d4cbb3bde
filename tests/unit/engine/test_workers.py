"""Worker pods: they are waited for, counted and shown, and their own reasons are told."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.worlds import (
    NOW,
    RUNNING,
    STARTING,
    a_cluster,
    a_container,
    a_driver,
    a_head,
    a_job,
    a_running_world,
    a_starting_world,
    a_waiting,
    a_worker,
    seconds,
    some_notes,
)
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.world import Child, ContainerState, PodView, World

GROUP = {"cluster": {"workers": [{"name": "agents", "replicas": 2}]}}
READY = a_cluster(ready_workers=2, desired_workers=2)
NOT_FOUND = a_waiting("ray-worker", "ErrImagePull", "x:1: not found")


def planned(world: World) -> Plan:
    return plan(world, some_settings())


def starting(*workers: PodView, **changes: Any) -> World:
    """The head is ready, these are its workers."""
    world = a_starting_world(run=a_run(status=STARTING, **GROUP), cluster=READY, pods=(a_head(), *workers))
    return replace(world, **changes)


def running(*workers: PodView, **changes: Any) -> World:
    """The Job is made and its driver runs."""
    pods = (a_head(), a_driver(), *workers)
    return replace(a_running_world(run=a_run(status=RUNNING, **GROUP), cluster=READY, pods=pods), **changes)


def shown(world: World, kind: str) -> dict[str, Any]:
    """The condition that the world deserves."""
    write = planned(world).status
    assert write is not None
    found: dict[str, Any] = next(item for item in write.patch["conditions"] if item["type"] == kind)
    return found


@pytest.mark.parametrize(
    ("world", "made"),
    [
        pytest.param(starting(a_worker(1), a_worker(2)), True, id="all are ready"),
        pytest.param(starting(a_worker(1)), False, id="KubeRay is ahead of the pods"),
        pytest.param(starting(a_worker(1), a_worker(2, ready=False)), False, id="one is not ready"),
        pytest.param(starting(a_worker(1), a_worker(2, deleting=True)), False, id="one is going"),
        pytest.param(
            starting(a_worker(1), a_worker(2), cluster=a_cluster(ready_workers=1, desired_workers=2)),
            False,
            id="the pods are ahead of KubeRay",
        ),
        pytest.param(
            starting(a_worker(1), a_worker(2), cluster=a_cluster()), False, id="KubeRay has not counted them yet"
        ),
    ],
)
def test_the_job_waits_for_every_worker_that_the_run_asks_for(world: World, made: bool) -> None:
    assert planned(world).create == ((Child.JOB,) if made else ())


def test_the_status_counts_the_workers_and_gives_the_containers_own_reason() -> None:
    waits = a_worker(2, ready=False, phase="Pending", containers=(NOT_FOUND,))
    ready = shown(starting(a_worker(1), waits), "ClusterReady")
    assert (ready["status"], ready["reason"]) == ("False", "Creating")
    words = "the head is ready, 1 of 2 worker pods ready: ray-worker of group agents: ErrImagePull: x:1: not found"
    assert ready["message"] == words
    write = planned(starting(a_worker(1), waits)).status
    assert write is not None
    assert write.patch["message"] == f"waiting for RayCluster math-agent-3f9a1c-1: {words}"
    unscheduled = a_worker(2, ready=False, phase="Pending", containers=(), unschedulable="0/3 nodes")
    assert shown(starting(a_worker(1), unscheduled), "ClusterReady")["message"].endswith(
        f"1 of 2 worker pods ready: pod {unscheduled.name} is Unschedulable: 0/3 nodes"
    )
    initializing = (a_waiting("ray-worker", "PodInitializing"),)
    making = a_worker(2, ready=False, phase="Pending", containers=initializing, started_at=NOW)
    assert shown(starting(making, pods=(making,)), "ClusterReady")["message"] == (
        "the head is not ready yet, 0 of 2 worker pods ready: ray-worker: PodInitializing"
    )


def test_a_cluster_without_workers_speaks_of_none() -> None:
    assert shown(a_starting_world(), "ClusterReady")["message"] == "the head is not ready yet"


def test_a_worker_that_is_lost_in_training_is_shown_without_haste() -> None:
    assert shown(running(a_worker(1), a_worker(2)), "ClusterReady")["status"] == "True"
    world = running(a_worker(1), a_worker(2))
    write = planned(world).status
    assert write is not None
    told = a_run(status=RUNNING | dict(write.patch), **GROUP)
    lost = running(a_worker(1), run=told, notes=some_notes(config_made=True, status_written=NOW))
    assert planned(lost).status is None
    assert planned(lost).due == NOW + seconds(30)
    later = shown(replace(lost, now=NOW + seconds(30)), "ClusterReady")
    assert (later["status"], later["reason"]) == ("False", "WorkersMissing")
    assert later["message"] == "the head is ready, 1 of 2 worker pods ready"


def settled(world: World) -> World:
    """Its troubles are older than any patience."""
    return replace(world, notes=some_notes(config_made=True, since={"trouble": NOW - seconds(10_000)}))


def test_a_worker_whose_image_does_not_exist_is_shown_and_fails_the_start() -> None:
    waits = a_worker(2, ready=False, phase="Pending", containers=(NOT_FOUND,))
    fresh = starting(a_worker(1), waits, notes=some_notes(config_made=True, since={"trouble": NOW - seconds(20)}))
    degraded = shown(fresh, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ImagePullFailed")
    assert degraded["message"] == "ray-worker of group agents: ErrImagePull: x:1: not found"
    write = planned(settled(starting(a_worker(1), waits))).status
    assert write is not None
    assert (write.patch["phase"], write.patch["reason"]) == ("Failed", "ImagePullFailed")


def test_the_same_trouble_of_another_pod_of_the_group_is_no_news() -> None:
    trouble = {"ready": False, "phase": "Pending", "containers": (NOT_FOUND,)}
    degraded = shown(settled_but_short(starting(a_worker(1), a_worker(2, **trouble))), "Degraded")
    run = a_run(status=STARTING | {"conditions": [degraded]}, **GROUP)
    other = settled_but_short(starting(a_worker(1, **trouble), a_worker(2, **trouble), run=run))
    assert shown(other, "Degraded") == degraded


def settled_but_short(world: World) -> World:
    return replace(world, notes=some_notes(config_made=True, since={"trouble": NOW - seconds(20)}))


def test_a_workers_trouble_in_training_is_shown_and_ends_nothing() -> None:
    waits = a_worker(2, ready=False, phase="Pending", containers=(NOT_FOUND,))
    world = settled(running(a_worker(1), waits))
    write = planned(world).status
    assert write is not None
    assert "phase" not in write.patch
    assert shown(world, "Degraded")["reason"] == "ImagePullFailed"


def test_the_heads_trouble_comes_before_a_workers() -> None:
    head = a_head(phase="Pending", containers=(a_waiting("ray-head", "ErrImagePull", "y:1: not found"),))
    waits = a_worker(2, ready=False, phase="Pending", containers=(NOT_FOUND,))
    world = settled_but_short(starting(waits, pods=(waits, head)))
    assert shown(world, "Degraded")["message"].startswith("ray-head:")


def ended(number: int, reason: str = "Error", **changes: Any) -> PodView:
    """A worker whose Ray container ended; KubeRay deletes it at once."""
    container = a_container(
        "ray-worker", state=ContainerState.TERMINATED, reason=reason, message="no space", memory_limit="4Gi"
    )
    return a_worker(number, phase="Failed", ready=False, containers=(container,), **changes)


@pytest.mark.parametrize(
    ("reason", "cause", "words"),
    [
        ("Error", "WorkerLost", "ray-worker: Error: no space"),
        ("OOMKilled", "OutOfMemory", "ray-worker: OOMKilled, limit 4Gi"),
    ],
)
def test_three_workers_that_end_before_the_cluster_is_ready_are_the_last(reason: str, cause: str, words: str) -> None:
    gone = tuple(ended(number, reason) for number in (1, 2, 3))
    two = starting(a_worker(4), notes=some_notes(config_made=True, departed=gone[:2]))
    assert planned(two).status is None or "Failed" not in str(planned(two).status)
    write = planned(starting(a_worker(4), notes=some_notes(config_made=True, departed=gone))).status
    assert write is not None
    assert (write.patch["history"][0]["outcome"], write.patch["reason"]) == ("Failed", cause)
    assert f"3 worker pods ended before the cluster was ready: {words}" in write.patch["message"]


def test_workers_that_the_cluster_takes_away_or_that_end_in_training_are_not_counted() -> None:
    gone = tuple(ended(number, disruption="PreemptionByScheduler") for number in (1, 2, 3))
    world = starting(a_worker(4), notes=some_notes(config_made=True, departed=gone))
    assert planned(world).status is None or "Failed" not in str(planned(world).status)
    lost = tuple(ended(number) for number in (1, 2, 3))
    world = running(a_worker(4), job=a_job(), notes=some_notes(config_made=True, departed=lost))
    write = planned(world).status
    assert write is None or "phase" not in write.patch
