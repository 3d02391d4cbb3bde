"""Runs that go wrong: each ends, says why in the user's own words, and frees its cluster."""

from collections import Counter

import pytest

from tests.e2e.conftest import Installation
from tests.e2e.runs import a_tiny_run, cluster_is_gone, journal, start, the_end, the_run, with_workflow
from tests.harness import Object, condition, moment, wait_for

pytestmark = pytest.mark.cluster


def test_a_workflow_that_starts_raising_in_step_two_fails_with_its_own_words(installation: Installation) -> None:
    run = a_tiny_run(installation, "raises-in-two")
    start(installation, *with_workflow(run, "raises_in_step_two.py"))
    run = the_end(installation, "raises-in-two")
    assert run["status"]["phase"] == "Failed"
    assert run["status"]["reason"] == "WorkflowError"
    assert "the licence of the calculator ran out" in run["status"]["message"]
    assert run["status"]["progress"]["step"] == 1
    assert condition(run, "Succeeded")["status"] == "False"
    cluster_is_gone(installation, "raises-in-two")


def test_blocking_endless_and_exiting_episodes_do_not_stop_the_others(installation: Installation) -> None:
    run = a_tiny_run(installation, "misbehaves")
    run["spec"]["algorithm"] |= {"steps": 1, "batchSize": 16, "groupSize": 2, "saveEverySteps": 1}
    run["spec"]["dataset"] = run["spec"]["dataset"] | {"order": "Sequential", "evaluation": []}
    run["spec"]["rollout"] = {"maxAttempts": 1, "maxFailedRatio": 0.9, "limits": {"turns": 4, "seconds": 8}}
    start(installation, *with_workflow(run, "misbehaves.py"))
    run = the_end(installation, "misbehaves", 300)
    assert run["status"]["phase"] == "Succeeded", run["status"]
    records = [record for record in journal(installation, run) if record["mode"] == "train"]
    outcomes = Counter(record["outcome"] for record in records)
    assert outcomes == {"Completed": 28, "JudgeError": 2, "Lost": 2}, outcomes
    assert all(record["reward"] is None for record in records if record["outcome"] != "Completed")


def test_a_dataset_that_does_not_exist_is_named_within_a_minute_of_the_pods_start(installation: Installation) -> None:
    run = a_tiny_run(installation, "no-dataset")
    run["spec"]["dataset"] = run["spec"]["dataset"] | {"train": {"image": {"path": "/opt/data/absent.jsonl"}}}
    start(installation, run)
    selector = "agenttuning.io/run=no-dataset,ray.io/node-type=head"
    head = wait_for("head pod", lambda: started_pods(installation, selector), 120)[0]
    run = the_end(installation, "no-dataset")
    ended = condition(run, "Finished")["lastTransitionTime"]
    assert moment(ended) - moment(head["status"]["startTime"]) < 60
    assert run["status"]["reason"] == "DatasetInvalid"
    assert "/opt/data/absent.jsonl" in run["status"]["message"]
    cluster_is_gone(installation, "no-dataset")


def started_pods(here: Installation, selector: str) -> list[Object]:
    """Pods that the kubelet has taken up."""
    pods = here.cluster.objects("pods", here.namespace, selector)
    return [pod for pod in pods if "startTime" in pod["status"]]


def test_an_image_that_does_not_exist_shows_its_pull_error_within_30_seconds(installation: Installation) -> None:
    run = a_tiny_run(installation, "no-image")
    registry = installation.images["tiny"].split("/")[0]
    run["spec"]["workflow"]["image"] = f"{registry}/agent-tuning/absent:1"
    start(installation, run)

    def shown() -> str | None:
        message = the_run(installation, "no-image").get("status", {}).get("message", "")
        return message if "agent-tuning/absent" in message else None

    message = wait_for("pull error", shown, 30)
    assert "not found" in message, message
    installation.cluster.kubectl("delete", "trun", "no-image", "--namespace", installation.namespace)
    cluster_is_gone(installation, "no-image", 60)
