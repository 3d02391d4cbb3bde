"""Several attempts of one run on a real API server: lost, stopped, too late, cleaned up. The test plays KubeRay,
kubelets and runner.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.integration.operator_process import OperatorProcess, shared_operator, wait_for
from tests.integration.sidecar import a_sidecar
from tests.integration.stage import CLAIMS, CLUSTERS, CONFIG_MAPS, JOBS, PODS, RUNS, Stage, attempt_of
from tuning_contract.termination import EXIT_FAILED, EXIT_STOPPED, TerminationMessage

pytestmark = pytest.mark.control_plane

AT_ONCE = {"backoffSeconds": 0}
DONE = TerminationMessage(outcome="Succeeded", message="12 of 12 steps are done", step=12, target_steps=12)


def a_stop(step: int) -> TerminationMessage:
    return TerminationMessage(outcome="Stopped", message="stopped", step=step, target_steps=12)


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane) -> Iterator[OperatorProcess]:
    """The module's operator has a key, so that it can ask for stops."""
    with shared_operator(control_plane, "operator-of-attempts", STOP_KEY="the-key") as process:
        yield process


def order(operator: OperatorProcess, namespace: str) -> list[str]:
    """The operator's writes of RayClusters, Jobs and status in one namespace, in their order."""
    return [
        f"{event['verb']} {event['objectRef']['resource']}"
        for event in operator.plane.audit_events(operator.user)
        if event["stage"] == "ResponseComplete"
        and (event.get("objectRef") or {}).get("namespace") == namespace
        and event["verb"] in ("create", "delete", "patch")
        and event["objectRef"]["resource"] in ("rayclusters", "jobs", "tuningruns")
    ]


def test_the_next_attempt_waits_until_the_last_pod_of_the_one_before_is_gone(
    operator: OperatorProcess, stage: Stage
) -> None:
    workers = {"workers": [{"name": "agents", "replicas": 1}]}
    stage.apply(retry=AT_ONCE, cluster=workers)
    stage.wait_for_phase("Starting")
    stage.run_head_pod()
    worker = stage.run_worker_pod("agents", "aaaaa")
    stage.set_cluster_ready(workers=1)
    stage.wait_for_phase("Running")
    stage.lose_the_head(stage.run_driver_pod())
    status = stage.wait_for_phase("Retrying")
    assert status["reason"] == "HeadLost"
    record = status["history"][0]
    assert (record["number"], record["outcome"], record["cause"], record["counted"]) == (1, "Failed", "HeadLost", True)
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))
    stage.take_away(worker)
    stage.pass_by()
    assert stage.status["attempt"]["number"] == 1
    stage.delete(PODS, worker)
    stage.wait_for_attempt(2)
    stage.run_worker_pod("agents", "bbbbb")
    driver = stage.walk_on_to_running(2, workers=1)
    stage.end_driver(driver, DONE)
    status = stage.wait_for_phase("Succeeded")
    assert [record["outcome"] for record in status["history"]] == ["Failed", "Succeeded"]
    stage.free(2)
    assert sorted(map(attempt_of, stage.children(JOBS))) == [1, 2], "both Jobs stay, with their logs"
    seen = [write for write in order(operator, stage.namespace) if write.endswith("rayclusters")]
    # The one that passes by makes one, too.
    assert seen == ["create rayclusters", "delete rayclusters", *["create rayclusters"] * 2, "delete rayclusters"]
    assert not operator.refused(stage.namespace)


def test_the_intent_is_written_before_any_child_of_the_next_attempt(operator: OperatorProcess, stage: Stage) -> None:
    stage.lose_the_head(stage.walk_to_running(retry=AT_ONCE))
    stage.wait_for_phase("Retrying")
    stage.free(1)
    stage.end_driver(stage.walk_on_to_running(2), DONE)
    stage.wait_for_phase("Succeeded")
    stage.free(2)
    writes = order(operator, stage.namespace)
    assert writes == [
        "create rayclusters",
        "patch tuningruns",  # children made
        "create jobs",
        "patch tuningruns",  # Job made
        "patch tuningruns",  # the attempt is over
        "delete rayclusters",
        "patch tuningruns",  # intent
        "create rayclusters",
        "patch tuningruns",
        "create jobs",
        "patch tuningruns",
        "patch tuningruns",  # success
        "delete rayclusters",
    ]
    assert operator.writes(stage.namespace)["create", "configmaps"] == 1
    assert operator.writes(stage.namespace)["create", "persistentvolumeclaims"] == 1


def test_when_every_attempt_was_lost_the_run_fails_and_says_how_many_there_were(
    operator: OperatorProcess, stage: Stage
) -> None:
    stage.lose_the_head(stage.walk_to_running(retry=AT_ONCE | {"maxAttempts": 2}))
    stage.wait_for_phase("Retrying")
    stage.free(1)
    stage.lose_the_head(stage.walk_on_to_running(2))
    status = stage.wait_for_phase("Failed")
    assert status["reason"] == "HeadLost"
    assert "2 attempts" in status["message"]
    assert [record["number"] for record in status["history"]] == [1, 2]
    stage.free(2)
    assert status["attempt"]["number"] == 2


def test_a_rule_of_the_run_lets_a_cause_be_tried_again(operator: OperatorProcess, stage: Stage) -> None:
    rules = [{"causes": ["WorkflowError"], "action": "Retry"}]
    driver = stage.walk_to_running(retry=AT_ONCE | {"rules": rules})
    failure = TerminationMessage(outcome="Failed", cause="WorkflowError", message="no tool", step=2, target_steps=12)
    stage.end_driver(driver, failure, EXIT_FAILED)
    stage.wait_for_phase("Retrying")
    stage.free(1)
    stage.end_driver(stage.walk_on_to_running(2), DONE)
    assert stage.wait_for_phase("Succeeded")["history"][0]["message"] == "no tool"


def test_a_suspended_run_saves_gives_everything_back_and_goes_on(
    operator: OperatorProcess, stage: Stage, tmp_path: Path
) -> None:
    stage.apply()
    stage.wait_for_phase("Starting")
    stage.run_head_pod(address="127.0.0.71")
    stage.set_cluster_ready()
    stage.wait_for_phase("Running")
    driver = stage.run_driver_pod()
    with a_sidecar(stage, tmp_path, "127.0.0.71") as directory:
        stage.change(suspend=True)
        wait_for("the request to stop", directory.stop_request(1).exists)
        assert stage.status["phase"] == "Suspending"
        assert stage.children(CLUSTERS), "it still has to save"
        stage.end_driver(driver, a_stop(7), EXIT_STOPPED)
        stage.free(1)
    status = stage.wait_for_phase("Suspended")
    assert not stage.children(CLUSTERS)
    assert not stage.pods("head")
    assert stage.condition("Suspended")["status"] == "True"
    record = status["history"][0]
    assert (record["outcome"], record.get("cause"), record["lastStep"]) == ("Stopped", None, 7)
    stage.change(suspend=False)
    driver = stage.walk_on_to_running(2)
    assert stage.condition("Suspended")["status"] == "False"
    stage.end_driver(driver, DONE)
    assert stage.wait_for_phase("Succeeded")["attempt"]["number"] == 2


def test_a_head_that_cannot_be_asked_is_stopped_by_taking_it_away_when_the_grace_is_over(
    operator: OperatorProcess, stage: Stage
) -> None:
    # Its address has no sidecar; the kubelet would run the hook.
    driver = stage.walk_to_running(deadlines={"stopGraceSeconds": 1})
    stage.change(suspend=True)
    stage.wait_for_phase("Suspending")
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS), 60)
    stage.end_driver(driver, a_stop(3), EXIT_STOPPED)
    stage.collect_garbage()
    stage.wait_for_phase("Suspended")


def test_a_run_that_is_suspended_from_the_beginning_makes_nothing(operator: OperatorProcess, stage: Stage) -> None:
    stage.apply(suspend=True)
    stage.wait_for_phase("Suspended")
    stage.pass_by()
    names = {item["metadata"]["labels"]["agenttuning.io/run"] for item in stage.children(CLUSTERS)}
    assert names == {"passing-by"}
    stage.change(suspend=False)
    wait_for("its cluster", lambda: len(stage.children(CLUSTERS)) == 2)
    assert stage.wait_for_phase("Starting")["attempt"]["number"] == 1


def test_a_run_that_waits_to_be_tried_again_can_be_suspended(operator: OperatorProcess, stage: Stage) -> None:
    stage.lose_the_head(stage.walk_to_running(retry={"backoffSeconds": 3600}))
    stage.wait_for_phase("Retrying")
    stage.free(1)
    stage.change(suspend=True)
    stage.wait_for_phase("Suspended")
    stage.change(suspend=False)
    # Whoever lets it go on does not wait for the back-off.
    stage.wait_for_attempt(2)


def test_a_cluster_that_does_not_become_ready_in_time_fails_the_run(operator: OperatorProcess, stage: Stage) -> None:
    stage.apply(deadlines={"startSeconds": 2})
    stage.wait_for_phase("Starting")
    stage.make_head_pod()
    status = stage.wait_for_phase("Failed")
    assert status["reason"] == "StartDeadlineExceeded"
    stage.free(1)


def test_a_run_that_trains_for_too_long_saves_before_it_fails(
    operator: OperatorProcess, stage: Stage, tmp_path: Path
) -> None:
    stage.apply(deadlines={"activeSeconds": 2})
    stage.wait_for_phase("Starting")
    stage.run_head_pod(address="127.0.0.72")
    stage.set_cluster_ready()
    stage.wait_for_phase("Running")
    driver = stage.run_driver_pod()
    with a_sidecar(stage, tmp_path, "127.0.0.72") as directory:
        wait_for("the request to stop", directory.stop_request(1).exists)
        assert stage.status["attempt"]["stopReason"] == "DeadlineExceeded"
        stage.end_driver(driver, a_stop(9), EXIT_STOPPED)
        status = stage.wait_for_phase("Failed")
    assert status["reason"] == "DeadlineExceeded"
    assert status["history"][0]["lastStep"] == 9
    stage.free(1)


def test_cluster_and_run_are_kept_for_as_long_as_the_run_asks(operator: OperatorProcess, stage: Stage) -> None:
    driver = stage.walk_to_running(cleanup={"clusterTTLSeconds": 3, "runTTLSeconds": 6})
    stage.end_driver(driver, DONE)
    stage.wait_for_phase("Succeeded")
    stage.pass_by()
    assert len(stage.children(CLUSTERS)) == 2
    wait_for("freed cluster", lambda: len(stage.children(CLUSTERS)) == 1)
    wait_for("deleted run", lambda: not stage.exists(RUNS, stage.name))
    assert stage.exists(CLAIMS, stage.child(CLAIMS)["metadata"]["name"]), "what it made is kept"
    assert not operator.refused(stage.namespace)


def test_a_run_that_is_made_anew_at_once_shares_nothing_with_the_old_one(
    operator: OperatorProcess, stage: Stage
) -> None:
    stage.walk_to_running()
    before = {kind: {item["metadata"]["uid"] for item in stage.children(kind)} for kind in (CLUSTERS, CLAIMS, JOBS)}
    stage.delete_run()
    # Nothing of the old one is collected yet.
    uid = stage.apply()["metadata"]["uid"]
    stage.wait_for_phase("Starting")
    own = stage.name + "-" + uid.replace("-", "")[:6]
    assert stage.exists(CLUSTERS, f"{own}-1")
    assert stage.exists(CLAIMS, own)
    assert stage.exists(CONFIG_MAPS, own)
    for kind, uids in before.items():
        assert uids <= {item["metadata"]["uid"] for item in stage.children(kind)}, "the old one's are not touched"
    assert stage.status["attempt"]["rayClusterName"] == f"{own}-1"
