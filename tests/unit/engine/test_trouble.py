"""What keeps pods from running: what is shown of it, since when, and for how long it is borne."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.worlds import (
    NOW,
    RUNNING,
    STARTING,
    a_cluster,
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
from tuning_operator.engine.world import PodView, World

NOT_FOUND = a_waiting("ray-head", "ErrImagePull", "x:1: not found")
REFUSED = a_waiting("ray-head", "ErrImagePull", "dial tcp: connection refused")
AN_HOUR_AGO = "2026-01-02T11:00:00Z"


def planned(world: World) -> Plan:
    return plan(world, some_settings())


def degraded(reason: str, message: str, since: str = AN_HOUR_AGO) -> dict[str, Any]:
    return {
        "type": "Degraded",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
        "observedGeneration": 1,
    }


def a_troubled_world(head: PodView, shown: dict[str, Any], age: float) -> World:
    """Its trouble is known for some seconds, its status shows what was written an hour ago."""
    notes = some_notes(config_made=True, since={"trouble": NOW - seconds(age)})
    return a_starting_world(run=a_run(status=STARTING | {"conditions": [shown]}), notes=notes, pods=(head,))


def the_degraded(todo: Plan) -> dict[str, Any]:
    assert todo.status is not None
    found: dict[str, Any] = next(item for item in todo.status.patch["conditions"] if item["type"] == "Degraded")
    return found


@pytest.mark.parametrize(
    "earlier",
    [
        degraded("Unschedulable", "pod x is Unschedulable: 0/3 nodes"),
        degraded("ImagePullFailed", "ray-head: ErrImagePull: dial tcp: connection refused"),
        degraded("ImagePullFailed", "tuning-sidecar: ErrImagePull: y:1: not found"),
    ],
)
def test_an_earlier_trouble_does_not_use_up_the_patience_with_a_new_one(earlier: dict[str, Any]) -> None:
    head = a_head(phase="Pending", containers=(NOT_FOUND,))
    todo = planned(a_troubled_world(head, earlier, age=20))
    assert todo.status is not None
    assert "phase" not in todo.status.patch
    shown = the_degraded(todo)
    assert shown["message"] == "ray-head: ErrImagePull: x:1: not found"
    assert shown["lastTransitionTime"] == "2026-01-02T12:00:00Z"
    # The patience counts from when this trouble began, which a restarted operator knows by the condition.
    after = a_troubled_world(head, shown, age=0)
    assert planned(replace(after, now=NOW + seconds(299))).due == NOW + seconds(300)
    late = planned(replace(after, now=NOW + seconds(300))).status
    assert late is not None
    assert (late.patch["phase"], late.patch["reason"]) == ("Failed", "ImagePullFailed")


def test_the_kubelets_other_sentence_for_the_same_trouble_changes_nothing() -> None:
    shown = degraded("ImagePullFailed", "ray-head: ImagePullBackOff: Back-off: x:1: not found", "2026-01-02T11:58:00Z")
    for container in (NOT_FOUND, REFUSED):
        todo = planned(a_troubled_world(a_head(phase="Pending", containers=(container,)), shown, age=20))
        assert the_degraded(todo) == shown


LONG = f"registry.example.com/{'team/' * 40}agent:{'1' * 40}"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ErrImagePull", f'failed to pull and unpack image "{LONG}": failed to resolve "{LONG}": {LONG}: not found'),
        ("ImagePullBackOff", f'Back-off pulling image "{LONG}": ErrImagePull: resolve "{LONG}": {LONG}: not found'),
        (
            "ImagePullBackOff",
            f'Back-off pulling image "{LONG}": ErrImagePull: failed to resolve reference "{LONG}": pull access denied, '
            "repository does not exist or may require authorization: server message: insufficient_scope: "
            "authorization failed",
        ),
        ("InvalidImageName", f'Failed to apply default image tag "{LONG}": couldn\'t parse image name "{LONG}": no'),
    ],
)
def test_the_trouble_with_a_long_image_name_is_known_again_by_what_was_kept_of_it(reason: str, words: str) -> None:
    head = a_head(phase="Pending", containers=(a_waiting("ray-head", reason, words),))
    todo = planned(a_troubled_world(head, degraded("Unschedulable", "pod x is Unschedulable: 0/3 nodes"), age=20))
    shown = the_degraded(todo)
    assert shown["message"].startswith(f"ray-head: {reason}")
    assert shown["message"].endswith(words[-20:])
    assert todo.status is not None
    whole = todo.status.patch["message"]
    assert len(whole) > len(shown["message"])
    # A restarted operator bears it no longer for that, and the status keeps its words.
    after = a_troubled_world(head, shown, age=0)
    run = a_run(status=STARTING | {"conditions": [shown], "reason": "ImagePullFailed", "message": whole})
    after = replace(after, run=run)
    assert planned(replace(after, now=NOW + seconds(299))).due == NOW + seconds(300)
    later = planned(replace(after, now=NOW + seconds(200))).status
    assert later is None or not {"reason", "message"} & later.patch.keys()
    late = planned(replace(after, now=NOW + seconds(300))).status
    assert late is not None
    assert late.patch["phase"] == "Failed"


def test_a_pod_with_a_long_name_that_finds_no_node_is_told_once() -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu, " * 9
    head = a_head(name="n" * 63, phase="Pending", containers=(), unschedulable=words)
    earlier = degraded("ImagePullFailed", "ray-head: ErrImagePull: x:1: not found")
    shown = the_degraded(planned(a_troubled_world(head, earlier, age=20)))
    other = replace(head, unschedulable=words.replace("3 Insufficient", "2 Insufficient"))
    assert the_degraded(planned(a_troubled_world(other, shown, age=20))) == shown
    another = replace(other, name="m" * 63)
    assert the_degraded(planned(a_troubled_world(another, shown, age=20))) != shown


def a_sidecar_in_trouble(**changes: Any) -> PodView:
    sidecar = a_waiting("tuning-sidecar", "CrashLoopBackOff", restarts=5, last_message="no volume")
    return a_head(containers=(sidecar, *a_head().containers), **changes)


def test_a_sidecar_that_crashes_does_not_end_a_training_but_is_shown() -> None:
    notes = some_notes(config_made=True, since={"trouble": NOW - seconds(10_000)})
    todo = planned(a_running_world(pods=(a_sidecar_in_trouble(), a_driver()), notes=notes))
    assert todo.status is not None
    assert "phase" not in todo.status.patch
    assert "no volume" in the_degraded(todo)["message"]
    # Before there is a training, nothing would ever be known of it.
    write = planned(a_starting_world(pods=(a_sidecar_in_trouble(),), notes=notes)).status
    assert write is not None
    assert (write.patch["phase"], write.patch["history"][0]["outcome"]) == ("Retrying", "Failed")


def test_a_driver_in_trouble_is_not_hidden_by_a_sidecar_in_trouble() -> None:
    notes = some_notes(config_made=True, since={"trouble": NOW - seconds(10_000)})
    driver = a_driver(phase="Pending")
    driver = replace(driver, containers=(a_waiting("driver", "ErrImagePull", "y:1: not found"),))
    write = planned(
        a_running_world(run=a_run(status=RUNNING), pods=(a_sidecar_in_trouble(), driver), notes=notes)
    ).status
    assert write is not None
    assert (write.patch["phase"], write.patch["reason"]) == ("Failed", "ImagePullFailed")


def being_made(age: float, **changes: Any) -> World:
    containers = (a_waiting("ray-head", "PodInitializing"),)
    pod = a_head(phase="Pending", started_at=NOW - seconds(age), containers=containers, **changes)
    return a_starting_world(pods=(pod,), notes=some_notes(config_made=True, since={"trouble": NOW - seconds(1000)}))


def test_a_pod_that_is_not_made_in_ten_minutes_is_shown() -> None:
    early = planned(being_made(599))
    assert early.status is None or early.status.patch["reason"] == "Creating"
    assert early.due == NOW + seconds(1)
    late = planned(being_made(600)).status
    assert late is not None
    assert late.patch["reason"] == "PodNotCreated"
    name = being_made(600).pods[0].name
    words = f"volumes, network or images of pod {name} are not ready yet: see kubectl describe pod {name}"
    assert late.patch["message"] == words
    assert late.patch.get("phase", "Starting") == "Starting"


def test_a_large_image_that_takes_long_is_no_trouble() -> None:
    write = planned(being_made(1000, has_sandbox=True)).status
    assert write is None or write.patch["reason"] == "Creating"


NO_CLASS = 'pods "math-agent-3f9a1c-1-head-" is forbidden: no PriorityClass with name urgent was found'
NO_MOUNT = 'Pod "a-head-x7k2p" is invalid: spec.containers[0].volumeMounts[6].name: Not found: "scratch"'
NO_QUOTA = 'pods "a-head-x7k2p" is forbidden: exceeded quota: compute, requested: requests.cpu=8, used: 0, limited: 4'
NO_HOOK = 'Internal error occurred: failed calling webhook "policy.example.com": service "policy" not found'
WITH_WORKERS = {"cluster": {"workers": [{"name": "agents", "replicas": 2}]}}


def a_refusing_world(words: str, component: str = "head", age: float = 20, **changes: Any) -> World:
    """KubeRay may not make a pod of the component, for some seconds already."""
    cluster = a_cluster(head_ready=False, refused=component, refusal=words)
    notes = some_notes(config_made=True, since={"trouble": NOW - seconds(age)})
    return a_starting_world(**{"cluster": cluster, "notes": notes, "pods": ()} | changes)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param(NO_CLASS, "ConfigInvalid", id="forbidden"),
        pytest.param(NO_MOUNT, "ConfigInvalid", id="invalid"),
        pytest.param('admission webhook "policy" denied the request: no', "ConfigInvalid", id="denied"),
        pytest.param('namespaces "ml" not found', "ConfigInvalid", id="not found"),
        pytest.param(NO_QUOTA, "PodNotCreated", id="a quota may have room later"),
        pytest.param(NO_HOOK, "PodNotCreated", id="a webhook may come back"),
        pytest.param("etcdserver: request timed out", "PodNotCreated", id="the server stumbles"),
    ],
)
def test_a_pod_that_the_server_refuses_is_shown_and_given_up_unless_it_may_pass(words: str, reason: str) -> None:
    todo = planned(a_refusing_world(words))
    assert todo.status is not None
    assert todo.status.patch.get("phase", "Starting") == "Starting"
    assert todo.status.patch["reason"] == reason
    assert todo.status.patch["message"] == f"the API server refuses a head pod: {words}"
    assert the_degraded(todo)["reason"] == reason
    hopeless = reason == "ConfigInvalid"
    # What may pass is waited for until the start takes too long.
    assert todo.due == NOW + seconds(280 if hopeless else 3000)
    # A restarted operator knows by the status since when it is so, though each try has another name for the pod.
    run = a_run(status=STARTING | {"conditions": [the_degraded(todo)], **todo.status.patch})
    after = a_refusing_world(words.replace("x7k2p", "q9w8e"), run=run, age=0)
    assert the_degraded_now(after) == the_degraded(todo)
    late = planned(replace(after, now=NOW + seconds(300))).status
    if hopeless:
        assert late is not None
        assert (late.patch["phase"], late.patch["history"][0]["cause"]) == ("Failed", "ConfigInvalid")
        assert late.patch["message"].startswith("the API server refuses a head pod: ")
    else:
        assert late is None or "phase" not in late.patch


def the_degraded_now(world: World) -> dict[str, Any]:
    """Condition Degraded as the status has it after the plan is carried out."""
    write = planned(world).status
    conditions = [item.to_object() for item in world.run.status.conditions]
    conditions = list(write.patch.get("conditions", conditions)) if write else conditions
    found: dict[str, Any] = next(item for item in conditions if item["type"] == "Degraded")
    return found


def test_a_worker_that_the_server_refuses_is_counted_with_the_servers_words() -> None:
    words = NO_CLASS.replace("head", "agents-worker")
    run = a_run(status=STARTING, **WITH_WORKERS)
    todo = planned(a_refusing_world(words, "worker", run=run, pods=(a_head(), a_worker(1))))
    assert todo.status is not None
    assert todo.status.patch["message"] == f"the API server refuses a worker pod: {words}"
    ready = next(item for item in todo.status.patch["conditions"] if item["type"] == "ClusterReady")
    assert ready["message"].startswith("the head is ready, 1 of 2 worker pods r")
    assert ready["message"].endswith(words[-60:])


def test_a_refusal_that_is_out_of_date_is_no_trouble() -> None:
    run = a_run(status=STARTING, **WITH_WORKERS)
    both = (a_head(), a_worker(1), a_worker(2))
    for world in (
        a_refusing_world(NO_CLASS, pods=(a_head(),)),
        a_refusing_world(NO_CLASS, "worker", run=run, pods=both),
    ):
        write = planned(world).status
        assert write is None or write.patch["reason"] == "Creating"


def test_a_lost_worker_that_may_not_be_made_again_does_not_end_a_training() -> None:
    world = a_refusing_world(NO_CLASS, "worker", age=10_000, pods=(a_head(), a_worker(1), a_driver()))
    running = a_running_world(
        run=a_run(status=RUNNING, **WITH_WORKERS), pods=world.pods, notes=world.notes, cluster=world.cluster
    )
    todo = planned(running)
    assert todo.status is not None
    assert "phase" not in todo.status.patch
    assert the_degraded(todo)["reason"] == "ConfigInvalid"


def test_a_job_whose_pod_does_not_come_is_shown_after_a_minute() -> None:
    notes = some_notes(config_made=True, since={"trouble": NOW - seconds(20)})
    made = a_job(made_at=NOW - seconds(60))
    world = a_running_world(job=made, pods=(a_head(),), notes=notes)
    todo = planned(world)
    assert todo.status is not None
    assert todo.status.patch["reason"] == the_degraded(todo)["reason"] == "PodNotCreated"
    assert todo.status.patch["message"] == f"Job {made.name} has no pod: see kubectl describe job {made.name}"
    early = planned(replace(world, now=NOW - seconds(1)))
    assert early.due == NOW
    # One that waits for its next try, or has ended, is no trouble.
    for calm in (
        replace(world, pods=(a_head(), a_driver("Killed", 3))),
        replace(world, job=replace(made, deleting=True)),
    ):
        write = planned(calm).status
        assert write is None or write.patch.get("reason") != "PodNotCreated"
