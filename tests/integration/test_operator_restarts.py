"""Operators that start, die and start again around a run, on a real API server. Each watches one namespace only."""

import json
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.integration.operator_process import OperatorProcess, wait_for
from tests.integration.stage import CLUSTERS, CONFIG_MAPS, JOBS, ONCE, PODS, Stage, waiting
from tuning_contract.termination import EXIT_ATTEMPT_LOST, EXIT_FAILED, TerminationMessage

pytestmark = pytest.mark.control_plane

MakeOperator = Callable[..., OperatorProcess]
NOT_FOUND = 'Back-off pulling image "nowhere/agent:1": ErrImagePull: failed to pull: nowhere/agent:1: not found'
DONE = TerminationMessage(outcome="Succeeded", message="12 of 12 steps are done", step=12, target_steps=12)
FAILURE = TerminationMessage(outcome="Failed", cause="EngineError", message="no memory", step=3, target_steps=12)


def test_an_image_that_does_not_exist_fails_when_the_patience_ends(
    another_operator: MakeOperator, stage: Stage
) -> None:
    another_operator(WATCH_NAMESPACE=stage.namespace, STARTUP_PATIENCE_SECONDS="2").start()
    stage.apply()
    stage.wait_for_phase("Starting")
    head = stage.make_head_pod()["metadata"]["name"]
    stage.set_pod(head, phase="Pending", containerStatuses=[waiting("ray-head", "ImagePullBackOff", NOT_FOUND)])
    status = stage.wait_for_phase("Failed")
    assert status["reason"] == "ImagePullFailed"
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))


def test_a_foreign_object_of_the_clusters_name_is_a_name_conflict(another_operator: MakeOperator, stage: Stage) -> None:
    run = stage.apply()
    name = f"{stage.name}-{run['metadata']['uid'].replace('-', '')[:6]}-1"
    foreign = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name}}
    template = {"spec": {"containers": [{"name": "ray-head", "image": "x"}]}}
    spec = {"headGroupSpec": {"rayStartParams": {}, "template": template}}
    stage.api.request("POST", CLUSTERS.format(stage.namespace), foreign | {"spec": spec})
    another_operator(WATCH_NAMESPACE=stage.namespace).start()
    status = stage.wait_for_phase("Rejected")
    assert status["reason"] == "NameConflict"
    assert name in status["message"]
    assert stage.child(CLUSTERS)["metadata"].get("labels") is None


def test_a_restarted_operator_writes_nothing_for_a_run_that_is_well(
    another_operator: MakeOperator, stage: Stage
) -> None:
    operator = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    driver = stage.walk_to_running(retry=ONCE)
    version = stage.run()["metadata"]["resourceVersion"]
    before = operator.writes(stage.namespace)
    operator.kill()
    operator.start()
    stage.pass_by()
    of_the_other = {("create", kind): 1 for kind in ("rayclusters", "configmaps", "persistentvolumeclaims")}
    assert operator.writes(stage.namespace) - before == {**of_the_other, ("patch", "tuningruns/status"): 1}
    assert stage.run()["metadata"]["resourceVersion"] == version
    stage.end_driver(driver, FAILURE, EXIT_FAILED)
    assert stage.wait_for_phase("Failed")["reason"] == "EngineError"


def test_what_happened_while_no_operator_ran_is_judged_at_the_start(
    another_operator: MakeOperator, stage: Stage
) -> None:
    operator = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    driver = stage.walk_to_running(retry=ONCE)
    operator.kill()
    stage.end_driver(driver, FAILURE, EXIT_FAILED)
    operator.start()
    stage.wait_for_phase("Failed")
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))
    assert operator.writes(stage.namespace)["patch", "tuningruns/status"] == 3


def test_a_crash_between_the_children_and_the_status_makes_no_child_twice(
    another_operator: MakeOperator, stage: Stage
) -> None:
    # The children are there, the status was never written: that is what a crash in between leaves behind.
    first = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    stage.apply()
    stage.wait_for_phase("Starting")
    first.kill()
    path = f"/apis/agenttuning.io/v1alpha1/namespaces/{stage.namespace}/tuningruns/{stage.name}/status"
    stage.api.request("PATCH", path, {"status": None}, "application/merge-patch+json")
    uids = [stage.child(kind)["metadata"]["uid"] for kind in (CLUSTERS, CONFIG_MAPS)]
    second = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    stage.wait_for_phase("Starting")
    assert [stage.child(kind)["metadata"]["uid"] for kind in (CLUSTERS, CONFIG_MAPS)] == uids
    # ConfigMaps are not watched: making it again, and reading whose it is, is the price of a crash.
    assert second.writes(stage.namespace) == {("create", "configmaps"): 1, ("patch", "tuningruns/status"): 1}


def test_lost_history_is_listed_again_and_compared(
    another_operator: MakeOperator, control_plane: ControlPlane, stage: Stage
) -> None:
    """The API server restarts while the operator sleeps; its watch cache then knows nothing of the time before."""
    operator = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    driver = stage.walk_to_running(retry=ONCE)
    os.kill(operator.pid, signal.SIGSTOP)
    try:
        # Without a word of its cause: which of the watches is heard first must not matter.
        stage.end_driver(driver, "", EXIT_ATTEMPT_LOST)
        stage.delete(CLUSTERS, stage.child(CLUSTERS)["metadata"]["name"])
        stage.delete(PODS, stage.pods("head")[0]["metadata"]["name"])
        stage.delete(JOBS, stage.child(JOBS)["metadata"]["name"])
        for number in range(20):
            made = {"metadata": {"name": f"noise-{number}"}, "data": {"a": "b"}}
            stage.api.request("POST", CONFIG_MAPS.format(stage.namespace), made)
        control_plane.processes.stop("kube-apiserver")
        control_plane.start_processes()
        control_plane.wait_ready()
    finally:
        os.kill(operator.pid, signal.SIGCONT)
    status = stage.wait_for_phase("Failed", 60)
    # The deletions were never seen as events; the lists tell them.
    assert status["reason"] == "HeadLost"
    assert "was deleted" in status["message"]
    assert operator.writes(stage.namespace)["create", "rayclusters"] == 1
    assert operator.writes(stage.namespace)["create", "jobs"] == 1


def test_an_operator_that_starts_between_two_attempts_goes_on_where_the_other_stood(
    another_operator: MakeOperator, stage: Stage
) -> None:
    operator = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    stage.lose_the_head(stage.walk_to_running(retry={"backoffSeconds": 2}))
    stage.wait_for_phase("Retrying")
    operator.kill()
    # It went before the cluster was freed, or after it; the status alone tells what is to be done.
    operator.start()
    stage.free(1)
    stage.end_driver(stage.walk_on_to_running(2), DONE)
    status = stage.wait_for_phase("Succeeded")
    assert [record["outcome"] for record in status["history"]] == ["Failed", "Succeeded"]
    stage.free(2)
    assert operator.writes(stage.namespace)["create", "rayclusters"] == 2
    assert operator.writes(stage.namespace)["create", "jobs"] == 2


def test_the_pods_of_a_dead_node_are_waited_for_no_longer_than_the_installation_says(
    another_operator: MakeOperator, stage: Stage
) -> None:
    another_operator(WATCH_NAMESPACE=stage.namespace, NODE_LOST_SECONDS="3").start()
    driver = stage.walk_to_running(retry={"backoffSeconds": 0})
    (head,) = (pod["metadata"]["name"] for pod in stage.pods("head"))
    # No kubelet is left that would end it: it stays for ever.
    stage.take_away(head)
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    stage.set_pod(head, conditions=[taken | {"lastTransitionTime": f"{datetime.now(UTC):%FT%TZ}"}])
    stage.end_driver(driver, "", EXIT_ATTEMPT_LOST)
    record = stage.wait_for_phase("Retrying")["history"][0]
    assert (record["cause"], record["counted"]) == ("NodeLost", False)
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))
    assert stage.status["attempt"]["number"] == 1
    stage.wait_for_attempt(2)
    assert stage.pods("head"), "it is never deleted by force"


def test_a_node_pool_that_goes_between_two_attempts_is_waited_for(another_operator: MakeOperator, stage: Stage) -> None:
    pools = json.dumps([{"name": "cpu"}])
    operator = another_operator(WATCH_NAMESPACE=stage.namespace, NODE_POOLS=pools).start()
    stage.lose_the_head(stage.walk_to_running(retry={"backoffSeconds": 1}, cluster={"head": {"nodePool": "cpu"}}))
    stage.wait_for_phase("Retrying")
    operator.stop()
    without = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    stage.free(1)

    def shown() -> dict[str, Any]:
        degraded = stage.condition("Degraded")
        return degraded if degraded.get("status") == "True" and "cpu" in degraded["message"] else {}

    wait_for("the missing pool", shown)
    assert not stage.children(CLUSTERS)
    assert "Traceback" not in without.log
    without.stop()
    operator.start()
    stage.wait_for_attempt(2)


def test_a_namespace_that_is_being_deleted_leaves_no_traceback(another_operator: MakeOperator, stage: Stage) -> None:
    stage.apply()
    stage.api.request("DELETE", f"/api/v1/namespaces/{stage.namespace}")
    operator = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    wait_for("a refused child", lambda: operator.refused(stage.namespace))
    assert stage.status.get("phase") in (None, "Pending")
    for trace in ("Traceback", "unexpected", "missing permission"):
        assert trace not in operator.log


def test_an_idle_operator_is_small_and_reacts_at_once(another_operator: MakeOperator, stage: Stage) -> None:
    operator = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    stage.walk_to_running()
    events = {
        (event["verb"], event["objectRef"]["resource"]): event["requestReceivedTimestamp"]
        for event in operator.plane.audit_events()
        if (event.get("objectRef") or {}).get("namespace") == stage.namespace and event["verb"] == "create"
    }
    applied, reacted = (_seconds(events["create", kind]) for kind in ("tuningruns", "rayclusters"))
    print(f"reaction {1000 * (reacted - applied):.0f} ms, resident {operator.resident_mib():.1f} MiB")
    assert reacted - applied < 0.5
    assert 'tuningrun_status_phase{namespace="' + stage.namespace in operator.get("metrics")


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
