"""How a run ends badly, and what of it is shown, on a real API server. The test plays KubeRay and kubelet."""

import pytest

from tests.integration.operator_process import OperatorProcess, wait_for
from tests.integration.stage import CLUSTERS, JOBS, ONCE, PODS, Stage, waiting
from tuning_contract.termination import EXIT_ATTEMPT_LOST, EXIT_DRIVER_ERROR, EXIT_FAILED, TerminationMessage

pytestmark = pytest.mark.control_plane

NOT_FOUND = 'Back-off pulling image "nowhere/agent:1": ErrImagePull: failed to pull: nowhere/agent:1: not found'


def a_failure(
    cause: str = "WorkflowError", message: str = "ValueError: no such tool", step: int = 2
) -> TerminationMessage:
    return TerminationMessage(outcome="Failed", cause=cause, message=message, step=step, target_steps=12)


def test_the_runners_cause_and_the_users_own_words_are_in_the_status(operator: OperatorProcess, stage: Stage) -> None:
    driver = stage.walk_to_running()
    stage.end_driver(driver, a_failure(), EXIT_FAILED)
    status = stage.wait_for_phase("Failed")
    assert status["reason"] == "WorkflowError"
    assert status["message"] == "ValueError: no such tool"
    assert status["history"][0]["cause"] == "WorkflowError"
    assert status["history"][0]["lastStep"] == 2
    assert stage.condition("Succeeded")["status"] == "False"
    assert stage.condition("Finished")["status"] == "True"
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))
    assert stage.children(JOBS)
    wait_for("a Warning", lambda: operator.requests(stage.namespace)["create", "events"])


def test_a_success_short_of_its_target_is_a_failure(operator: OperatorProcess, stage: Stage) -> None:
    driver = stage.walk_to_running()
    stage.end_driver(driver, TerminationMessage(outcome="Succeeded", step=7, target_steps=12))
    assert stage.wait_for_phase("Failed")["reason"] == "IncompleteSteps"


def test_a_driver_that_failed_by_itself_is_left_to_the_job(operator: OperatorProcess, stage: Stage) -> None:
    first = stage.walk_to_running()
    stage.end_driver(first, "Traceback: connection reset", EXIT_DRIVER_ERROR)
    second = stage.run_driver_pod("yyyyy")
    stage.end_driver(second, a_failure("NonFiniteLoss", "the loss is nan"), EXIT_FAILED)
    assert stage.wait_for_phase("Failed")["reason"] == "NonFiniteLoss"


def test_a_pod_that_only_has_the_runs_labels_decides_nothing(operator: OperatorProcess, stage: Stage) -> None:
    driver = stage.walk_to_running()
    other = Stage(stage.api, f"{stage.namespace}-other")
    real = stage.api.get(f"{PODS.format(stage.namespace)}/{driver}")
    done = TerminationMessage(outcome="Succeeded", step=12, target_steps=12)
    for number, here in enumerate((stage, other)):
        # In another namespace the owner can be named as well: it is not looked up there.
        owners = real["metadata"]["ownerReferences"] if here is other else []
        metadata = {"name": f"forged-{number}", "labels": real["metadata"]["labels"], "ownerReferences": owners}
        pod = {"metadata": metadata, "spec": {"containers": [{"name": "driver", "image": "x"}]}}
        here.api.request("POST", PODS.format(here.namespace), pod)
        here.end_driver(metadata["name"], done)
    other.walk_to_running()
    assert stage.status["phase"] == "Running"
    stage.end_driver(driver, a_failure(), EXIT_FAILED)
    assert stage.wait_for_phase("Failed")["reason"] == "WorkflowError"


def test_a_job_that_failed_without_a_word_is_a_lost_driver(operator: OperatorProcess, stage: Stage) -> None:
    driver = stage.walk_to_running(retry=ONCE)
    stage.end_driver(driver, "Killed", EXIT_DRIVER_ERROR)
    stage.fail_job()
    status = stage.wait_for_phase("Failed", 30)
    assert status["reason"] == "DriverLost"
    assert "BackoffLimitExceeded" in status["message"]


def test_a_job_whose_driver_never_started_is_deleted_and_one_that_has_a_log_is_kept(
    operator: OperatorProcess, stage: Stage
) -> None:
    stage.walk_to_the_job(retry=ONCE)
    driver = stage.make_driver_pod()
    stage.set_pod(driver, phase="Pending", containerStatuses=[waiting("driver", "ImagePullBackOff", NOT_FOUND)])
    stage.delete(
        PODS, next(pod["metadata"]["name"] for pod in stage.children(PODS) if "-head-" in pod["metadata"]["name"])
    )
    stage.wait_for_phase("Failed", 60)
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))
    assert stage.children(JOBS)
    stage.set_back_the_end()
    wait_for("a deleted Job", lambda: not stage.children(JOBS))
    kept = Stage(stage.api, f"{stage.namespace}-kept")
    driver = kept.walk_to_running()
    kept.end_driver(driver, a_failure(), EXIT_FAILED)
    kept.wait_for_phase("Failed")
    # The Job does not end, and yet its log must stay: its controller is told to end it, which keeps what has finished.
    assert "activeDeadlineSeconds" not in kept.child(JOBS)["spec"]
    kept.set_back_the_end()
    wait_for("a Job that is to end", lambda: kept.child(JOBS)["spec"].get("activeDeadlineSeconds") == 1)
    assert not operator.refused(stage.namespace)


def test_a_replaced_head_is_a_lost_attempt(operator: OperatorProcess, stage: Stage) -> None:
    driver = stage.walk_to_running(retry=ONCE)
    head = next(pod["metadata"]["name"] for pod in stage.children(PODS) if "-head-" in pod["metadata"]["name"])
    stage.delete(PODS, head)
    stage.run_head_pod("fghij")
    # A driver that ends is heard at once: nothing waits for the time that a living one has.
    stage.end_driver(driver, a_failure("HeadLost", "Ray does not answer"), EXIT_ATTEMPT_LOST)
    status = stage.wait_for_phase("Failed")
    assert status["reason"] == "HeadLost"
    assert "fghij" in status["message"]
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))
    assert operator.writes(stage.namespace)["create", "rayclusters"] == 1


def test_a_head_that_ran_out_of_memory_is_named_so(operator: OperatorProcess, stage: Stage) -> None:
    driver = stage.walk_to_running()
    head = next(pod["metadata"]["name"] for pod in stage.children(PODS) if "-head-" in pod["metadata"]["name"])
    again = waiting("ray-head", "CrashLoopBackOff") | {
        "restartCount": 1,
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
    }
    stage.set_pod(head, containerStatuses=[again])
    stage.end_driver(driver, "", EXIT_ATTEMPT_LOST)
    status = stage.wait_for_phase("Failed", 30)
    assert status["reason"] == "OutOfMemory"
    assert "OOMKilled, limit 16Gi" in status["message"]


def test_a_raycluster_that_somebody_deleted_is_not_made_again(operator: OperatorProcess, stage: Stage) -> None:
    driver = stage.walk_to_running(retry=ONCE)
    stage.delete(CLUSTERS, stage.child(CLUSTERS)["metadata"]["name"])
    stage.end_driver(driver, "", EXIT_ATTEMPT_LOST)
    status = stage.wait_for_phase("Failed", 30)
    assert status["reason"] == "HeadLost"
    assert "was deleted" in status["message"]
    assert not stage.children(CLUSTERS)


def test_an_image_that_does_not_exist_shows_within_thirty_seconds(operator: OperatorProcess, stage: Stage) -> None:
    stage.apply()
    stage.wait_for_phase("Starting")
    head = stage.make_head_pod()["metadata"]["name"]
    stage.set_pod(head, phase="Pending", containerStatuses=[waiting("ray-head", "ImagePullBackOff", NOT_FOUND)])
    degraded = wait_for(
        "shown pull error",
        lambda: stage.condition("Degraded").get("status") == "True" and stage.condition("Degraded"),
        30,
    )
    assert degraded["reason"] == "ImagePullFailed"
    assert "nowhere/agent:1: not found" in stage.status["message"]
    # The kubelet alternates between two reasons for the same trouble: that is no news.
    stage.set_pod(head, containerStatuses=[waiting("ray-head", "ErrImagePull", "nowhere/agent:1: not found")])
    assert operator.writes(stage.namespace)["patch", "tuningruns/status"] == 2


def test_a_worker_whose_image_does_not_exist_is_counted_and_shown(operator: OperatorProcess, stage: Stage) -> None:
    stage.apply(cluster={"workers": [{"name": "agents", "replicas": 2}]})
    stage.wait_for_phase("Starting")
    stage.run_head_pod()
    stage.run_worker_pod("agents", "aaaaa")
    late = stage.make_worker_pod("agents", "bbbbb")
    stage.set_pod(late, phase="Pending", containerStatuses=[waiting("ray-worker", "ImagePullBackOff", NOT_FOUND)])
    stage.set_cluster_ready(workers=1)
    degraded = wait_for(
        "shown pull error",
        lambda: stage.condition("Degraded").get("status") == "True" and stage.condition("Degraded"),
        30,
    )
    assert degraded["reason"] == "ImagePullFailed"
    assert degraded["message"].startswith("ray-worker of group agents: ImagePullBackOff")
    ready = stage.condition("ClusterReady")
    assert (ready["status"], ready["reason"]) == ("False", "Creating")
    assert ready["message"].startswith("the head is ready, 1 of 2 worker pods")
    assert ready["message"].endswith("nowhere/agent:1: not found")
    assert not stage.children(JOBS)
