"""A run from apply to its end, counted in the audit log of a real API server. The test plays KubeRay and kubelet."""

from collections import Counter

import pytest

from tests.integration.operator_process import OperatorProcess, wait_for
from tests.integration.stage import CLAIMS, CLUSTERS, CONFIG_MAPS, JOBS, Stage
from tuning_contract.termination import TerminationMessage

pytestmark = pytest.mark.control_plane

DONE = TerminationMessage(
    outcome="Succeeded",
    message="12 of 12 steps are done",
    step=12,
    target_steps=12,
    checkpoint="ml/math-agent-3f9a1c/checkpoints/step-000012",
    metrics={"reward_mean": 0.91, "policy_loss": 0.0123, "kl": 0.02},
)


def test_a_run_to_its_success_costs_seven_writes_one_delete_and_no_read(
    operator: OperatorProcess, stage: Stage
) -> None:
    driver = stage.walk_to_running()
    stage.end_driver(driver, DONE)
    status = stage.wait_for_phase("Succeeded")
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))
    assert status["reason"] == "Completed"
    assert status["progress"]["summary"] == "12/12"
    assert status["progress"]["reward"] == "0.910"
    assert stage.children(JOBS), "the Job stays, with the training log"
    assert stage.children(CLAIMS)
    # One more pass of everything must not bring another request.
    wait_for("the Event of success", lambda: operator.requests(stage.namespace)["create", "events"] >= 1)
    assert operator.writes(stage.namespace) == Counter(
        {
            ("create", "rayclusters"): 1,
            ("create", "configmaps"): 1,
            ("create", "persistentvolumeclaims"): 1,
            ("create", "jobs"): 1,
            ("patch", "tuningruns/status"): 3,
            ("delete", "rayclusters"): 1,
        }
    )
    assert not operator.reads(stage.namespace)
    assert operator.requests(stage.namespace)["create", "events"] <= 3
    assert not operator.refused(stage.namespace)


def test_the_children_are_made_in_the_order_of_their_lanes(operator: OperatorProcess, stage: Stage) -> None:
    stage.apply()
    stage.wait_for_phase("Starting")
    made = [
        event["objectRef"]["resource"]
        for event in operator.plane.audit_events(operator.user)
        if event["verb"] == "create" and (event.get("objectRef") or {}).get("namespace") == stage.namespace
    ]
    assert made == ["rayclusters", "configmaps", "persistentvolumeclaims"]


def test_no_column_is_empty_from_the_first_status_on(operator: OperatorProcess, stage: Stage) -> None:
    stage.apply()
    status = stage.wait_for_phase("Starting")
    assert status["progress"]["summary"] == "0/12"
    assert status["progress"]["reward"] == status["progress"]["kl"] == "-"
    assert status["display"] == {"model": "tiny", "gpus": "0", "evaluation": "-", "eta": "-"}
    assert status["attempt"]["number"] == 1
    assert status["attempt"]["rayClusterUID"] == stage.child(CLUSTERS)["metadata"]["uid"]
    for condition in status["conditions"]:
        assert condition["reason"]
        assert condition["lastTransitionTime"]
        assert condition["observedGeneration"] == 1


def test_the_job_waits_for_the_head(operator: OperatorProcess, stage: Stage) -> None:
    stage.apply()
    stage.wait_for_phase("Starting")
    stage.run_head_pod()
    stage.set_cluster_ready(False)
    # Its own Job is made by the same watches in the same order, after the one that must not be made yet.
    Stage(stage.api, f"{stage.namespace}-after").walk_to_running()
    assert not stage.children(JOBS)
    stage.set_cluster_ready()
    status = stage.wait_for_phase("Running")
    assert status["attempt"]["headPodUID"]
    assert status["attempt"]["headRestartCount"] == 0
    assert status["attempt"]["jobUID"] == stage.child(JOBS)["metadata"]["uid"]


def test_the_job_waits_for_every_worker(operator: OperatorProcess, stage: Stage) -> None:
    stage.apply(cluster={"workers": [{"name": "agents", "replicas": 2}]})
    stage.wait_for_phase("Starting")
    stage.run_head_pod()
    stage.run_worker_pod("agents", "aaaaa")
    stage.set_cluster_ready(workers=1)
    # Its own Job is made by the same watches in the same order, after the one that must not be made yet.
    Stage(stage.api, f"{stage.namespace}-after").walk_to_running()
    assert not stage.children(JOBS)
    stage.run_worker_pod("agents", "bbbbb")
    stage.set_cluster_ready(workers=2)
    stage.wait_for_phase("Running")
    assert stage.condition("ClusterReady")["status"] == "True"


def test_a_job_that_was_deleted_is_made_again_while_its_head_lives(operator: OperatorProcess, stage: Stage) -> None:
    stage.walk_to_running()
    first = stage.child(JOBS)["metadata"]
    stage.api.request("DELETE", f"{JOBS.format(stage.namespace)}/{first['name']}?propagationPolicy=Background")
    second = wait_for(
        "second Job", lambda: next((j for j in stage.children(JOBS) if j["metadata"]["uid"] != first["uid"]), None)
    )
    wait_for("its UID in the status", lambda: stage.status["attempt"]["jobUID"] == second["metadata"]["uid"])
    assert stage.status["phase"] == "Running"


def test_a_deleted_run_costs_no_request(operator: OperatorProcess, stage: Stage) -> None:
    stage.walk_to_running()
    before = operator.requests(stage.namespace)
    stage.delete_run()
    # What the garbage collector would do; this profile has none.
    stage.delete(JOBS, stage.child(JOBS)["metadata"]["name"])
    stage.delete(CLUSTERS, stage.child(CLUSTERS)["metadata"]["name"])
    owners = stage.child(CONFIG_MAPS)["metadata"]["ownerReferences"]
    assert [owner["kind"] for owner in owners] == ["TuningRun"]
    other = Stage(stage.api, f"{stage.namespace}-next")
    other.apply()
    other.wait_for_phase("Starting")
    assert operator.requests(stage.namespace) == before
