"""What a run waits for, on a real API server: told within a second, and over within six of what is missing coming.

All cases wait at the same time, since each may take five seconds. What only another installation can heal, and what
KubeRay's CRDs do, is in `test_acceptance_of_installations`; a conflict of names in `test_operator_restarts`.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.integration.operator_process import OperatorProcess, wait_for
from tests.integration.stage import CLUSTERS, CONFIG_MAPS, MERGE, RUNS, Stage
from tuning_operator.api.conditions import REASONS_OF_REJECTION, Reason

pytestmark = pytest.mark.control_plane

TOLD_SECONDS = 1.0
HEALED_SECONDS = 6.0
POOLS = [{"name": "a100", "maxGPUsPerNode": 8}, {"name": "cpu", "maxGPUsPerNode": 0}]
DEFAULTS = {"huggingFaceCache": {"claimName": "hub"}}

TASKS = {"dataset": {"train": {"image": None, "configMap": {"name": "tasks"}}}}
CLAIMED = {"checkpoint": {"volume": {"claimTemplate": None, "claimName": "results"}}}
CHAINED = {"model": {"image": None, "run": {"name": "first"}}}
WORKERS = {"cluster": {"workers": [{"name": "agents", "replicas": 2}]}}


@dataclass(frozen=True)
class Case:
    """A run that is not accepted."""

    name: str
    spec: dict[str, Any]
    reason: str
    message: str
    """Part of what is told."""
    prepare: Callable[[Stage], None] = lambda stage: None
    """What is there before the run."""
    heal: Callable[[Stage], None] | None = None
    """What a user does; None: only another run, or another installation, helps."""


def a_failed_run(stage: Stage) -> None:
    stage.apply_another("first")
    stage.set_phase("first", "Failed")


def another_key(stage: Stage) -> None:
    data = {"data": {"train.jsonl": "{}"}}
    stage.api.request("PATCH", f"{CONFIG_MAPS.format(stage.namespace)}/tasks", data, MERGE)


def a_finished_run(stage: Stage) -> None:
    stage.make_claim("of-first")
    stage.apply_another("first", checkpoint={"volume": {"claimTemplate": None, "claimName": "of-first"}})
    stage.set_phase("first", "Succeeded")


def a_run_that_goes_on(stage: Stage) -> None:
    stage.make_claim("of-first")
    stage.apply_another("first", checkpoint={"volume": {"claimTemplate": None, "claimName": "of-first"}})
    wait_for("the first run's start", lambda: stage.run("first").get("status", {}).get("phase") == "Starting")


def another_claim(stage: Stage) -> None:
    stage.delete_claim("results")
    stage.make_claim("results")


CASES = (
    Case("engine", {"engine": {"type": "Trinity"}}, "NotAvailable", "engine Trinity is not available"),
    Case("algorithm", {"algorithm": {"type": "ppo"}}, "NotAvailable", "use multi_step_grpo, rloo, reinforceplusplus"),
    Case("image", {"workflow": {"image": None}}, "ImageNotSet", "set `workflow.image`"),
    Case("pool", {"cluster": {"head": {"nodePool": "h100"}}}, "NodePoolUnknown", "use one of a100, cpu"),
    Case(
        "pool-size",
        {"cluster": {"head": {"nodePool": "cpu", "gpus": 1}}},
        "NodePoolTooSmall",
        "a node of pool cpu has at most 0",
    ),
    Case(
        "config-map",
        TASKS,
        "ReferenceNotFound",
        "`dataset.train` needs ConfigMap tasks, which is not in namespace",
        heal=lambda stage: stage.make_config_map("tasks", **{"train.jsonl": "{}"}),
    ),
    Case(
        "key",
        TASKS,
        "ReferenceNotFound",
        "`dataset.train` needs key train.jsonl of ConfigMap tasks, which has other.jsonl: add it",
        prepare=lambda stage: stage.make_config_map("tasks", **{"other.jsonl": "{}"}),
        heal=another_key,
    ),
    Case(
        "variable",
        {"workflow": {"envFrom": [{"configMapRef": {"name": "settings"}}]}},
        "ReferenceNotFound",
        "`workflow.envFrom` needs ConfigMap settings",
        heal=lambda stage: stage.make_config_map("settings", TOOL="x"),
    ),
    Case(
        "claim",
        CLAIMED,
        "ReferenceNotFound",
        "`checkpoint.volume` needs PersistentVolumeClaim results, which is not in namespace",
        heal=lambda stage: stage.make_claim("results"),
    ),
    Case(
        "tasks-claim",
        {"dataset": {"train": {"image": None, "volume": {"claimName": "data", "path": "train.jsonl"}}}},
        "ReferenceNotFound",
        "`dataset.train` needs PersistentVolumeClaim data",
        heal=lambda stage: stage.make_claim("data", "ReadOnlyMany"),
    ),
    Case(
        "volume-claim",
        {"cluster": {"head": {"volumes": [{"name": "v", "mountPath": "/data", "claimName": "corpus"}]}}},
        "ReferenceNotFound",
        "`cluster.head.volumes[v]` needs PersistentVolumeClaim corpus",
        heal=lambda stage: stage.make_claim("corpus"),
    ),
    Case(
        "hub-cache",
        {"model": {"image": None, "huggingFace": {"repo": "owner/model"}}},
        "ReferenceNotFound",
        "the installation's `defaults.huggingFaceCache` needs PersistentVolumeClaim hub",
        heal=lambda stage: stage.make_claim("hub"),
    ),
    Case(
        "run",
        CHAINED,
        "ReferenceNotFound",
        "`model.run` needs TuningRun first, which is not in namespace",
        heal=a_finished_run,
    ),
    Case(
        "run-active",
        CHAINED,
        "RunNotFinished",
        "`model.run` waits for TuningRun first, which is Starting, to succeed",
        prepare=a_run_that_goes_on,
        heal=lambda stage: stage.set_phase("first", "Succeeded"),
    ),
    Case("run-failed", CHAINED, "RunNotFinished", "first, which has failed and has no", prepare=a_failed_run),
    Case(
        "read-only",
        CLAIMED,
        "ClaimUnfit",
        "must write to PersistentVolumeClaim results, which has ReadOnlyMany",
        prepare=lambda stage: stage.make_claim("results", "ReadOnlyMany"),
        heal=another_claim,
    ),
    Case(
        "one-pod",
        CLAIMED | WORKERS,
        "ClaimUnfit",
        "lets 3 pods mount PersistentVolumeClaim results, which has ReadWriteOncePod",
        prepare=lambda stage: stage.make_claim("results", "ReadWriteOncePod"),
        heal=another_claim,
    ),
    Case("override", {"engine": {"config": {"weight_decai": 0.1}}}, "Invalid", "`engine.config.weight_decai`"),
    Case(
        "patch",
        {"cluster": {"head": {"podTemplatePatch": {"spec": {"hostNetwork": True}}}}},
        "Invalid",
        "`spec.cluster.head.podTemplatePatch.spec.hostNetwork`",
    ),
    Case(
        "server",
        {"cluster": {"head": {"podTemplatePatch": {"spec": {"hostnam": "x"}}}}},
        "Invalid",
        'unknown field "spec.headGroupSpec.template.spec.hostnam"',
    ),
    Case(
        "server-claim",
        CLAIMED | {"cluster": {"head": {"podTemplatePatch": {"spec": {"hostnam": "x"}}}}},
        "Invalid",
        'unknown field "spec.headGroupSpec.template.spec.hostnam"',
        prepare=lambda stage: stage.make_claim("results"),
    ),
    Case(
        "several",
        TASKS | CLAIMED | {"engine": {"config": {"weight_decai": 0.1}}},
        "Invalid",
        "; `checkpoint.volume` needs PersistentVolumeClaim results, which is not in namespace accept-several: "
        "create it; `dataset.train` needs ConfigMap tasks",
    ),
)
HEALING = tuple(case for case in CASES if case.heal is not None)


@dataclass(frozen=True)
class Seen:
    """What became of a case."""

    stage: Stage
    rejection: dict[str, Any]
    told_after: float
    healed_after: float | None
    requests: Counter[tuple[str, str]]


@pytest.fixture(scope="module")
def operator(control_plane: ControlPlane) -> Iterator[OperatorProcess]:
    """An installation with node pools and a shared cache, and without a runner image."""
    settings = {"RUNNER_IMAGE": "", "NODE_POOLS": json.dumps(POOLS), "RUN_DEFAULTS": json.dumps(DEFAULTS)}
    process = OperatorProcess(control_plane, "operator-acceptance", **settings).start()
    yield process
    code = process.stop()
    assert code == 0, process.log[-3000:]
    assert "unexpected" not in process.log, process.log[-5000:]


@pytest.fixture(scope="module")
def seen(operator: OperatorProcess) -> dict[str, Seen]:
    """All cases by name: each run is applied alone, then all wait together and are healed one after the other."""
    stages: dict[str, Stage] = {}
    told: dict[str, tuple[dict[str, Any], float]] = {}
    for case in CASES:
        stage = stages[case.name] = Stage(operator.plane.api, f"accept-{case.name}")
        case.prepare(stage)
        stage.apply(**case.spec)
        began = time.monotonic()
        told[case.name] = (stage.wait_for_phase("Rejected"), time.monotonic() - began)
    began = {}
    for case in HEALING:
        assert case.heal is not None
        case.heal(stages[case.name])
        began[case.name] = time.monotonic()
    healed: dict[str, float] = {}
    while len(healed) < len(HEALING) and time.monotonic() < began[HEALING[-1].name] + 20:
        for case in HEALING:
            if case.name not in healed and stages[case.name].status["phase"] == "Starting":
                healed[case.name] = time.monotonic() - began[case.name]
    latest = max(seconds for _, seconds in told.values())
    print(f"told after {latest:.2f} s at most, healed after {max(healed.values()):.2f} s at most")
    return {
        case.name: Seen(
            stages[case.name], *told[case.name], healed.get(case.name), operator.requests(stages[case.name].namespace)
        )
        for case in CASES
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_a_run_lacks_is_told_within_a_second(case: Case, seen: dict[str, Seen]) -> None:
    found = seen[case.name]
    accepted = next(item for item in found.rejection["conditions"] if item["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", case.reason)
    assert found.rejection["reason"] == case.reason
    assert case.message in found.rejection["message"]
    assert found.rejection["observedGeneration"] == accepted["observedGeneration"] == 1
    assert found.told_after <= TOLD_SECONDS


@pytest.mark.parametrize("case", HEALING, ids=lambda case: case.name)
def test_a_run_goes_on_by_itself_within_six_seconds(case: Case, seen: dict[str, Seen]) -> None:
    found = seen[case.name]
    assert found.healed_after is not None, found.stage.status
    assert found.healed_after <= HEALED_SECONDS
    accepted = found.stage.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "Valid")
    assert found.stage.children(CLUSTERS)


def test_every_reason_of_a_rejection_has_a_case_here_or_where_installations_change() -> None:
    elsewhere = {Reason.KUBERAY_MISSING, Reason.KUBERAY_TOO_OLD, Reason.NAME_CONFLICT}
    assert {case.reason for case in CASES} == set(REASONS_OF_REJECTION) - elsewhere


def test_a_run_that_waits_costs_no_write_and_no_read_but_of_its_configmap(seen: dict[str, Seen]) -> None:
    assert seen["engine"].requests == Counter({("patch", "tuningruns/status"): 1, ("create", "events"): 1})
    reads = {
        name: {key: number for key, number in found.requests.items() if key[0] in ("get", "list")}
        for name, found in seen.items()
    }
    asked = {name for name, found in reads.items() if found}
    assert asked == {"config-map", "key", "variable", "several"}
    assert all(set(reads[name]) == {("get", "configmaps")} for name in asked)


def test_a_cluster_that_is_refused_leaves_nothing_behind(seen: dict[str, Seen]) -> None:
    stage = seen["server"].stage
    assert not stage.children(CLUSTERS)
    assert not stage.children(CONFIG_MAPS)


def test_a_cluster_that_is_refused_leaves_a_configmap_of_the_runs_own_where_the_claim_was_there_before(
    seen: dict[str, Seen],
) -> None:
    # Where pods would find the claim at once, what they need lies there before them.
    stage = seen["server-claim"].stage
    assert not stage.children(CLUSTERS)
    [left] = stage.children(CONFIG_MAPS)
    assert [owner["uid"] for owner in left["metadata"]["ownerReferences"]] == [stage.run()["metadata"]["uid"]]


def test_a_chained_run_keeps_where_its_model_lies_when_the_other_is_deleted(
    operator: OperatorProcess, seen: dict[str, Seen]
) -> None:
    stage = seen["run"].stage
    first = stage.run("first")["metadata"]["uid"]
    assert stage.status["modelSource"] == {"runUID": first, "claimName": "of-first"}
    made = {item["metadata"]["labels"]["agenttuning.io/run"]: item for item in stage.children(CONFIG_MAPS)}
    document = json.loads(made[stage.name]["data"]["run.json"])
    folder = f"{stage.namespace}/first-{first.replace('-', '')[:6]}"
    assert document["model"]["path"] == f"/mnt/claims/of-first/{folder}/final"
    stage.api.request("DELETE", f"{RUNS.format(stage.namespace)}/first")
    stage.pass_by()
    assert stage.status["phase"] == "Starting"
    assert stage.status["modelSource"]["runUID"] == first


def test_an_existing_configmap_costs_one_read(operator: OperatorProcess, stage: Stage) -> None:
    stage.make_config_map("tasks", **{"train.jsonl": "{}"})
    stage.apply(**TASKS)
    stage.wait_for_phase("Starting")
    assert dict(operator.reads(stage.namespace)) == {("get", "configmaps"): 1}
    assert not operator.refused(stage.namespace)


def test_a_claim_of_the_users_own_costs_no_read_and_is_not_made(operator: OperatorProcess, stage: Stage) -> None:
    stage.make_claim("results")
    stage.apply(**CLAIMED)
    stage.wait_for_phase("Starting")
    assert operator.writes(stage.namespace)["create", "persistentvolumeclaims"] == 0
    assert not operator.reads(stage.namespace)
