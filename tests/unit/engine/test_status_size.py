"""The status stays below 8 KiB, whatever pods, registries and users write."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.builders import UID, a_run, merged, some_settings
from tests.unit.engine.worlds import (
    NOW,
    RUNNING,
    a_cluster,
    a_driver,
    a_head,
    a_job,
    a_running_world,
    a_waiting,
    a_worker,
    seconds,
    some_notes,
    some_progress,
)
from tuning_contract.termination import EXIT_FAILED, TerminationMessage
from tuning_operator.engine.contribution import CONDITION_BYTES, HISTORY_BYTES, cut
from tuning_operator.engine.plan import plan
from tuning_operator.engine.status import compose
from tuning_operator.engine.world import Reachability, Refusal, RefusalKind, World

LIMIT = 8 * 1024
SETS = [f"{number}{'s' * 62}" for number in range(8)]
PATH = "p" * 160


@pytest.mark.parametrize("character", ["x", "\n", "\x01", '"', "é", "…", "🦙", "\ud800"])
def test_a_text_is_cut_by_the_bytes_that_it_takes(character: str) -> None:
    for length in (1, 32, 33, 48, 49, 191, 192, 193, 5000):
        found = cut(character * length, CONDITION_BYTES)
        assert len(orjson.dumps(found)) - 2 <= CONDITION_BYTES
        whole = len(orjson.dumps(character * length if character != "\ud800" else "?" * length)) - 2
        assert ("…" in found) is (whole > CONDITION_BYTES or character == "…")
        assert len(orjson.dumps(found)) - 2 > min(whole, CONDITION_BYTES) - 12
    assert cut("a message", CONDITION_BYTES) == "a message"


def test_a_text_that_is_cut_keeps_its_beginning_and_its_end() -> None:
    found = cut(f"ray-head: ImagePullBackOff: {'x' * 1000}: not found", CONDITION_BYTES)
    assert found.startswith("ray-head: ImagePullBackOff: xxx")
    assert found.endswith("xxx: not found")
    assert len(found.partition("…")[0]) == CONDITION_BYTES // 4


def the_worst_run(attempts: int = 100, **status: Any) -> Any:
    """Longest names, eight held-out sets, ten attempts behind it."""
    moment = "2026-01-02T11:00:00Z"
    record = {"outcome": "Failed", "cause": "EnvironmentUnavailable", "message": "m" * HISTORY_BYTES}
    record |= {"counted": False, "lastStep": 10**9}
    history = [record | {"number": n, "startTime": moment, "endTime": moment} for n in range(1, 11)]
    name, uid = "n" * 39, UID
    child = f"{name}-3f9a1c-11"
    attempt = {
        "number": 11,
        "rayClusterName": child,
        "rayClusterUID": uid,
        "jobName": child,
        "jobUID": uid,
        "rayJobId": child,
        "headPodUID": uid,
        "headRestartCount": 0,
        "startTime": moment,
        "runningTime": moment,
        "stopTime": moment,
        "stopReason": "DeadlineExceeded",
        "retryTime": moment,
        "firstStep": 10**9,
        "countedFailures": 99,
        "uncountedFailures": 19,
        "earlierGPUSeconds": 10**12,
        "earlierPodSeconds": 10**12,
    }
    figure = {"step": 10**9, "mean": "-999999999.999"}
    evaluation = [{"dataset": item, "baseline": figure | {"step": 0}, "last": figure} for item in SETS]
    return a_run(
        name,
        namespace="s" * 63,
        metadata={"generation": 1000},
        status={
            "phase": "Running",
            "attempt": attempt,
            "history": history,
            "evaluation": evaluation,
            "usage": {"gpuSeconds": 10**12, "podSeconds": 10**12, "activeSeconds": 10**9},
            "modelSource": {"runUID": uid, "claimName": "m" * 253},
        }
        | status,
        model={"image": None, "run": {"name": "r" * 253}},
        cluster={"workers": [{"name": "g" * 15, "replicas": 1000, "gpus": 16}]},
        dataset={"evaluation": [{"name": item, "image": {"path": "/x"}} for item in SETS]},
        checkpoint={"volume": {"claimTemplate": None, "claimName": "c" * 253}},
        retry={"maxAttempts": attempts},
    )


def the_worst_world(text: str) -> World:
    """It fails with as many words as a driver may leave, its driver's exit beside, every figure long."""
    values = dict.fromkeys(("reward_mean", "policy_loss", "kl"), -1.7e308)
    progress = some_progress(
        attempt=11,
        step=10**9,
        target_steps=10**9,
        eta_seconds=1e9,
        values=values,
        checkpoint_path=PATH,
        evaluation=tuple({"dataset": item, "step": step, "mean": -1.7e308} for item in SETS for step in (0, 10**9)),
    )
    message = TerminationMessage("Failed", "EnvironmentUnavailable", text, 10**9, 10**9, PATH, values)
    pods = (a_head(attempt=11, uid=UID), replace(a_driver(message, EXIT_FAILED), attempt=11))
    notes = some_notes(progress=progress, metrics=Reachability.UNREACHABLE)
    cluster, job = a_cluster(uid=UID), a_job(uid=UID, head_pod_uid=UID)
    return a_running_world(run=the_worst_run(), cluster=cluster, job=job, pods=pods, notes=notes)


@pytest.mark.parametrize("character", ["x", "\x01", "🦙"])
def test_the_worst_status_stays_below_eight_kibibytes(character: str) -> None:
    world = the_worst_world(character * 4000)
    write = plan(world, some_settings()).status
    assert write is not None
    assert (write.patch["phase"], write.patch["reason"]) == ("Failed", "EnvironmentUnavailable")
    assert [item["number"] for item in write.patch["history"]] == list(range(2, 12))
    whole = merged(world.run.status.to_object(), write.patch)
    # And then nothing can be deleted.
    refusal = Refusal(RefusalKind.FORBIDDEN, character * 4000, world.now)
    run = the_worst_run(**whole)
    ended = replace(world, run=run, notes=replace(world.notes, refusals={"delete": refusal}))
    complaint = plan(ended, some_settings()).status
    assert complaint is not None
    whole = merged(whole, complaint.patch)
    parts = {key: len(orjson.dumps(value)) for key, value in whole.items()}
    assert len(orjson.dumps(whole)) < LIMIT, parts


@pytest.mark.parametrize("character", ["x", "\x01", "🦙"])
def test_the_worst_status_of_a_run_that_is_tried_again_stays_below_eight_kibibytes(character: str) -> None:
    world = the_worst_world(character * 4000)
    old = world.run.status.to_object()
    old["attempt"]["countedFailures"] = 3
    write = plan(replace(world, run=the_worst_run(**old)), some_settings()).status
    assert write is not None
    assert (write.patch["phase"], write.patch["reason"]) == ("Retrying", "EnvironmentUnavailable")
    whole = merged(world.run.status.to_object(), write.patch)
    parts = {key: len(orjson.dumps(value)) for key, value in whole.items()}
    assert len(orjson.dumps(whole)) < LIMIT, parts


@pytest.mark.parametrize("character", ["x", "\x01", "🦙"])
def test_the_worst_status_of_a_run_that_goes_on_stays_below_eight_kibibytes(character: str) -> None:
    waits = a_waiting("ray-worker", "ErrImagePull", character * 4000)
    worker = a_worker(attempt=11, group="g" * 15, ready=False, phase="Pending", containers=(waits,))
    ended = the_worst_world(character)
    old = ended.run.status.to_object()
    for key in ("stopTime", "stopReason"):
        # An attempt that is asked to stop tells of nothing else.
        del old["attempt"][key]
    old["attempt"]["startTime"] = "2026-01-02T11:59:00Z"
    ended = replace(ended, run=the_worst_run(**old))
    notes = replace(ended.notes, since={"trouble": NOW - seconds(60)})
    world = replace(ended, pods=(a_head(attempt=11, uid=UID), a_driver(attempt=11), worker), notes=notes)
    write = plan(world, some_settings()).status
    assert write is not None
    assert "phase" not in write.patch
    whole = merged(world.run.status.to_object(), write.patch)
    told = {item["type"]: item for item in whole["conditions"]}
    assert told["Degraded"]["reason"] == "ImagePullFailed"
    assert told["ClusterReady"]["reason"] == "WorkersMissing"
    parts = {key: len(orjson.dumps(value)) for key, value in whole.items()}
    assert len(orjson.dumps(whole)) < LIMIT, parts


@pytest.mark.parametrize("path", ["/" + "p" * 3000, "é" * 97])
def test_a_path_that_is_no_path_of_ours_does_not_reach_the_status(path: str) -> None:
    message = TerminationMessage("Failed", "EngineError", "boom", 1, 12, path)
    world = a_running_world(run=a_run(status=RUNNING), pods=(a_head(), a_driver(message, EXIT_FAILED)))
    assert compose(world, ()).checkpoint.path is None
    write = plan(world, some_settings()).status
    assert write is not None
    assert write.patch["phase"] == "Retrying"
    assert "checkpoint" not in write.patch
