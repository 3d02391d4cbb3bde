"""Verdict (b): a head that was lost, in tables from World to Plan."""

from dataclasses import replace

import pytest

from tests.unit.engine.test_verdicts import ENDED, STOPPED, ended, planned
from tests.unit.engine.worlds import (
    NOW,
    a_cluster,
    a_container,
    a_driver,
    a_head,
    a_job,
    a_running_world,
    a_starting_world,
    seconds,
    some_notes,
)
from tuning_contract.termination import (
    EXIT_ATTEMPT_LOST,
    EXIT_STOPPED,
)
from tuning_operator.cluster.informer import QUIET_SECONDS
from tuning_operator.engine.world import ContainerState, Reachability


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        pytest.param(a_head(containers=(a_container(restarts=1),)), "HeadLost", id="restarted in place"),
        pytest.param(
            a_head(containers=(a_container(restarts=1, last_reason="OOMKilled"),)), "OutOfMemory", id="OOMKilled"
        ),
        pytest.param(a_head(uid="other", reason="Evicted"), "Evicted", id="evicted"),
        pytest.param(a_head(uid="other", disruption="PreemptionByScheduler"), "Preempted", id="preempted"),
        pytest.param(a_head(uid="other", disruption="DeletionByTaintManager"), "NodeLost", id="node gone"),
    ],
)
def test_a_lost_head_is_named_by_its_evidence(head: object, reason: str) -> None:
    driver = a_driver("", EXIT_ATTEMPT_LOST)
    assert (
        ended(a_running_world(pods=(head, driver), notes=some_notes(result_asked=Reachability.UNREACHABLE)))[1]
        == reason
    )


def test_the_last_view_of_a_deleted_head_is_evidence() -> None:
    gone = a_head(deleting=True, disruption="EvictionByEvictionAPI")
    world = a_running_world(pods=(a_driver("", EXIT_ATTEMPT_LOST),), notes=some_notes(departed=(gone,)))
    assert ended(world) == ("Failed", "Evicted")


def test_a_living_driver_is_heard_before_a_lost_head_is_judged() -> None:
    world = a_running_world(pods=(a_driver(),), notes=some_notes(since={"loss": NOW}))
    todo = planned(world)
    assert todo.status is None or "phase" not in todo.status.patch
    assert todo.due == NOW + seconds(10)
    assert ended(replace(world, now=NOW + seconds(10))) == ("Failed", "HeadLost")


@pytest.mark.parametrize(
    ("heads", "departed", "reason"),
    [
        pytest.param((), (a_head(phase="Failed", containers=(ENDED,)),), "HeadLost", id="made away with"),
        pytest.param((a_head(phase="Failed", containers=(ENDED,)),), (), "HeadLost", id="ended"),
        pytest.param((a_head(deleting=True, containers=(ENDED,)),), (), "HeadLost", id="on its way out"),
        pytest.param(
            (),
            (
                a_head(uid="first", containers=(ENDED,)),
                a_head(reason="Evicted", message="bye"),
            ),
            "Evicted",
            id="evicted",
        ),
    ],
)
def test_a_head_that_goes_before_the_job_is_made_is_a_lost_attempt(
    heads: object, departed: object, reason: str
) -> None:
    cluster = a_cluster(head_ready=False, provisioned=True)
    notes = some_notes(config_made=True, departed=departed, since={"loss": NOW})
    world = a_starting_world(cluster=cluster, pods=heads, notes=notes)
    assert planned(world).due == NOW + seconds(5)
    write = planned(world).status
    assert write is None or "phase" not in write.patch
    late = planned(replace(world, now=NOW + seconds(5))).status
    assert late is not None
    assert (late.patch["history"][-1]["outcome"], late.patch["reason"]) == ("Failed", reason)
    assert ("no more memory" if reason == "HeadLost" else "bye") in late.patch["message"]


def test_a_head_that_was_never_seen_is_waited_for_longer_than_a_dead_watch_is_noticed() -> None:
    notes = some_notes(config_made=True, since={"loss": NOW})
    world = a_starting_world(cluster=a_cluster(provisioned=True), pods=(), notes=notes)
    assert planned(world).due == NOW + seconds(120)
    write = planned(replace(world, now=NOW + seconds(QUIET_SECONDS + 20))).status
    assert write is None or "phase" not in write.patch
    assert ended(replace(world, now=NOW + seconds(120))) == ("Failed", "HeadLost")


def test_a_head_that_is_replaced_before_the_cluster_was_complete_is_no_loss() -> None:
    notes = some_notes(config_made=True, since={"loss": NOW - seconds(100)})
    write = planned(a_starting_world(pods=(), notes=notes)).status
    assert write is None or "phase" not in write.patch


@pytest.mark.parametrize("disruption", ["EvictionByEvictionAPI", "PreemptionByScheduler"])
def test_a_head_that_is_sent_away_may_use_its_grace_to_save(disruption: str) -> None:
    head = a_head(deleting=True, disruption=disruption)
    world = a_running_world(pods=(head, a_driver()), notes=some_notes(since={"loss": NOW - seconds(149)}))
    assert planned(world).due == NOW + seconds(1)
    assert ended(replace(world, now=NOW + seconds(1)))[1] in ("Evicted", "Preempted")
    # On a node that is dead nothing saves, and a driver that has ended has said all.
    assert ended(replace(world, pods=(replace(head, node_lost=True), a_driver())))[1] in ("Evicted", "Preempted")
    assert ended(replace(world, pods=(head, a_driver(STOPPED, EXIT_STOPPED))))[1] in ("Evicted", "Preempted")


@pytest.mark.parametrize("disruption", ["DeletionByTaintManager", "DeletionByPodGC"])
def test_a_head_that_hangs_on_a_dead_node_is_lost(disruption: str) -> None:
    notes = some_notes(since={"loss": NOW - seconds(30)})
    head = a_head(deleting=True, disruption=disruption)
    assert ended(a_running_world(pods=(head, a_driver()), notes=notes))[1] == "NodeLost"
    for well in (a_head(disruption=disruption), a_head(deleting=True)):
        write = planned(a_running_world(pods=(well, a_driver()), notes=notes)).status
        assert write is None or "phase" not in write.patch


def test_the_third_head_that_ends_before_it_was_ready_is_the_last() -> None:
    dead = a_container(state=ContainerState.TERMINATED, exit_code=1, reason="Error", message="no such option: --ray")
    heads = tuple(a_head(uid=f"head-{n}", phase="Failed", containers=(dead,)) for n in range(3))
    world = a_starting_world(pods=(), notes=some_notes(config_made=True, departed=heads[:2]))
    todo = planned(world).status
    assert todo is None or todo.patch.get("phase") != "Failed"
    world = replace(world, notes=replace(world.notes, departed=heads))
    write = planned(world).status
    assert write is not None
    assert (write.patch["phase"], write.patch["reason"]) == ("Retrying", "HeadLost")
    assert "no such option: --ray" in write.patch["message"]


def test_a_lost_container_is_told_with_its_exit_code_and_its_last_words() -> None:
    ended_now = a_container(state=ContainerState.TERMINATED, exit_code=139, reason="Error", message="core dumped")
    again = a_container(restarts=1, last_exit_code=139, last_reason="Error", last_message="core dumped")
    for container in (ended_now, again):
        head = a_head(containers=(container,), phase="Running" if container is again else "Failed")
        write = planned(a_running_world(pods=(head,))).status
        assert write is not None
        assert "ray-head: Error (exit code 139): core dumped" in write.patch["message"]


def test_a_container_that_had_crashed_before_the_training_began_tells_nothing_of_its_end() -> None:
    before = a_head(containers=(a_container(restarts=1, last_reason="OOMKilled"),))
    notes = some_notes(departed=(before,), since={"loss": NOW - seconds(60)})
    assert ended(a_running_world(pods=(), job=a_job(head_restarts=1), notes=notes))[1] == "HeadLost"
    assert ended(a_running_world(pods=(), job=a_job(head_restarts=0), notes=notes))[1] == "OutOfMemory"
