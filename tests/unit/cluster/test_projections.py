"""What is kept of watched objects, and what is made of odd ones."""

from typing import Any

import pytest

from tests.builders import UID, a_run_object
from tests.unit.engine.worlds import NOW
from tuning_operator.cluster import projections
from tuning_operator.cluster.projections import Raw
from tuning_operator.engine.world import ContainerState

MOMENT = "2026-01-02T12:00:00Z"


def an_object(**more: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "ml", "name": "a", "uid": "u", "resourceVersion": "1"}, **more}


@pytest.mark.parametrize(
    "project", [projections.run, projections.cluster, projections.job, projections.pod, projections.claim]
)
@pytest.mark.parametrize(
    "raw", [an_object(), an_object(spec=None, status=None), an_object(status={"conditions": None})]
)
def test_an_object_without_content_is_a_view_that_says_so(project: Any, raw: Raw) -> None:
    assert project(raw) is not None


def test_a_run_is_kept_without_what_nobody_reads() -> None:
    raw = a_run_object()
    raw["metadata"] |= {"managedFields": [{"big": "x" * 1000}], "annotations": {"a": "b" * 1000}}
    view = projections.run(raw)
    assert len(view.document) < 1000
    assert view.parsed()["spec"] == raw["spec"]
    assert view.uid == UID


def test_a_cluster_is_ready_by_its_condition_and_never_by_its_state() -> None:
    latched = an_object(status={"state": "ready", "readyWorkerReplicas": 2, "desiredWorkerReplicas": 2})
    assert not projections.cluster(latched).ready
    ready = an_object(status={"conditions": [{"type": "HeadPodReady", "status": "True"}], "desiredWorkerReplicas": 0})
    assert projections.cluster(ready).ready


def test_conditions_tell_what_latches_and_what_has_ended() -> None:
    def holding(kind: str) -> dict[str, Any]:
        return an_object(status={"conditions": [{"type": kind, "status": "True"}]})

    assert projections.cluster(holding("RayClusterProvisioned")).provisioned
    assert not projections.cluster(holding("HeadPodReady")).provisioned
    assert (projections.job(holding("Complete")).complete, projections.job(holding("Complete")).failed) == (True, False)
    assert (projections.job(holding("Failed")).complete, projections.job(holding("Failed")).failed) == (False, True)
    raw = holding("Complete")
    assert projections.job(raw).made_at is None
    raw["metadata"]["creationTimestamp"] = "2026-01-02T12:00:00Z"
    assert projections.job(raw).made_at == NOW
    assert projections.pod(holding("PodReadyToStartContainers")).has_sandbox
    assert not projections.pod(holding("PodScheduled")).has_sandbox


@pytest.mark.parametrize(
    ("reason", "component"),
    [("FailedCreateHeadPod", "head"), ("FailedCreateWorkerPod", "worker"), ("FailedDeleteHeadPod", "")],
)
def test_a_cluster_shows_of_which_pods_the_server_will_have_none(reason: str, component: str) -> None:
    condition = {"type": "ReplicaFailure", "status": "True", "reason": reason, "message": f"{reason}\npods are\nbad"}
    view = projections.cluster(an_object(status={"conditions": [condition]}))
    assert (view.refused, view.refusal) == (component, "pods are bad" if component else "")
    over = projections.cluster(an_object(status={"conditions": [condition | {"status": "False"}]}))
    assert (over.refused, over.refusal) == ("", "")


def test_a_pod_shows_the_containers_own_reason() -> None:
    waiting = {"name": "ray-head", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    waiting["lastState"] = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": "bye"}}
    container = {"name": "ray-head", "resources": {"limits": {"memory": "8Gi"}}}
    labels = {"agenttuning.io/attempt": "1", "agenttuning.io/component": "head"}
    raw = an_object(spec={"containers": [container]}, status={"phase": "Running", "containerStatuses": [waiting]})
    raw["metadata"]["labels"] = labels
    view = projections.pod(raw)
    ray = view.container("ray-head")
    assert ray is not None
    assert (ray.state, ray.reason, ray.last_reason) == (ContainerState.WAITING, "CrashLoopBackOff", "OOMKilled")
    assert ray.last_exit_code == 137
    assert (ray.memory_limit, ray.restarts, view.attempt) == ("8Gi", 2, 1)


def test_the_last_lines_of_a_container_come_without_the_colours_of_a_terminal() -> None:
    ended = {"reason": "Error", "exitCode": 137, "message": "\x1b[31mSome processes \x1b[22mexited\x1b[0m"}
    report = {"name": "ray-head", "state": {"terminated": ended}, "lastState": {"terminated": ended}}
    container = projections.pod(an_object(status={"containerStatuses": [report]})).containers[0]
    assert (container.message, container.last_message) == ("Some processes exited", "Some processes exited")


def test_a_worker_shows_its_group_and_whether_it_is_ready() -> None:
    labels = {"agenttuning.io/component": "worker", "ray.io/group": "agents"}
    raw = an_object(status={"conditions": [{"type": "Ready", "status": "True"}]})
    raw["metadata"]["labels"] = labels
    assert (projections.pod(raw).group, projections.pod(raw).ready) == ("agents", True)
    # KubeRay gives the head a group of its own, which is none of the run's.
    raw["metadata"]["labels"] = labels | {"agenttuning.io/component": "head", "ray.io/group": "headgroup"}
    assert projections.pod(raw).group == ""
    assert not projections.pod(an_object()).ready


def test_a_pod_shows_since_when_it_is_being_taken_away() -> None:
    disrupted = {"type": "DisruptionTarget", "reason": "DeletionByTaintManager", "lastTransitionTime": MOMENT}
    raw = an_object(status={"conditions": [disrupted | {"status": "True"}]})
    raw["metadata"]["deletionTimestamp"] = MOMENT
    view = projections.pod(raw)
    assert (view.disruption, view.disrupted_at, view.deleted_at) == ("DeletionByTaintManager", NOW, NOW)
    over = projections.pod(an_object(status={"conditions": [disrupted | {"status": "False"}]}))
    assert (over.disruption, over.disrupted_at, over.deleted_at) == ("", None, None)


@pytest.mark.parametrize(
    ("ready", "reason", "containers", "lost"),
    [
        pytest.param("True", None, "True", False, id="well"),
        pytest.param("False", None, "True", True, id="the node's controller took it away"),
        pytest.param("Unknown", None, "True", True, id="nobody knows"),
        pytest.param("False", "ContainersNotReady", "False", False, id="the kubelet says that a container is not"),
        pytest.param("False", "ReadinessGatesNotReady", "True", False, id="somebody's gate is closed"),
        pytest.param("False", "PodCompleted", "False", False, id="it ended"),
    ],
)
def test_a_pod_whose_kubelet_is_silent_is_told_from_one_that_is_not_ready(
    ready: str, reason: str | None, containers: str, lost: bool
) -> None:
    conditions = [{"type": "Ready", "status": ready}, {"type": "ContainersReady", "status": containers}]
    if reason:
        conditions[0]["reason"] = reason
    assert projections.pod(an_object(status={"conditions": conditions})).node_lost is lost
    assert projections.pod(an_object(status={"conditions": conditions, "reason": "NodeLost"})).node_lost


def test_a_job_shows_its_attempt_and_whether_it_was_asked_to_end() -> None:
    raw = an_object(spec={"activeDeadlineSeconds": 1})
    raw["metadata"]["labels"] = {"agenttuning.io/attempt": "3"}
    assert (projections.job(raw).attempt, projections.job(raw).end_asked) == (3, True)
    assert not projections.job(an_object(spec={})).end_asked


def test_a_claim_shows_whose_it_is_and_what_may_be_done_with_it() -> None:
    raw = an_object(spec={"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]})
    raw["metadata"] |= {"labels": {"agenttuning.io/run-uid": "u"}, "deletionTimestamp": "2026-01-02T12:00:00Z"}
    view = projections.claim(raw)
    assert (view.run_uid, view.access_modes, view.deleting) == ("u", {"ReadWriteOnce", "ReadOnlyMany"}, True)
    assert projections.claim(an_object()).access_modes == frozenset()


def test_only_an_unschedulable_pod_has_the_schedulers_words() -> None:
    def scheduled(status: str, reason: str) -> dict[str, Any]:
        condition = {"type": "PodScheduled", "status": status, "reason": reason, "message": "0/1 nodes"}
        return an_object(status={"conditions": [condition]})

    assert projections.pod(scheduled("False", "Unschedulable")).unschedulable == "0/1 nodes"
    assert projections.pod(scheduled("False", "SchedulingGated")).unschedulable == ""
    assert projections.pod(scheduled("True", "")).unschedulable == ""
