"""World -> acceptance of runs that refer to something: ConfigMaps, claims, another run."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.engine.acceptances import CHAINED, CLAIMED, FIRST, SOURCE, TASKS, accepted, rejected
from tests.unit.engine.worlds import (
    NOW,
    OWN_CLAIM,
    STARTING,
    a_claim,
    a_cluster,
    a_new_world,
    a_starting_world,
    seconds,
    some_notes,
)
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.engine.plan import Plan, manifest, plan
from tuning_operator.engine.policies.acceptance_checks import config_maps
from tuning_operator.engine.world import Child, Reference, SourceRun
from tuning_operator.settings import CaBundle, RunDefaults


def test_referenced_configmaps_are_read_before_anything_is_made() -> None:
    todo = plan(a_new_world(a_run(**TASKS)), some_settings())
    assert todo == Plan(read=("tasks",))


def test_a_run_without_references_reads_nothing() -> None:
    assert plan(a_new_world(), some_settings()).read == ()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param(None, "ConfigMap tasks, which is not in namespace ml: create it", id="missing"),
        pytest.param(
            frozenset({"other"}), "key train.jsonl of ConfigMap tasks, which has other: add it", id="another key"
        ),
        pytest.param(frozenset(), "key train.jsonl of ConfigMap tasks, which has no keys: add it", id="no key"),
        pytest.param(
            frozenset("abcd"), "key train.jsonl of ConfigMap tasks, which has a, b, c, ...: add it", id="many keys"
        ),
    ],
)
def test_what_is_missing_is_named_and_looked_for_again_after_five_seconds(
    keys: frozenset[str] | None, message: str
) -> None:
    world = a_new_world(a_run(**TASKS), notes=some_notes(references=(Reference("tasks", keys, NOW),)))
    assert rejected(world) == ("ReferenceNotFound", f"`dataset.train` needs {message}")
    # Whatever else wakes it meanwhile, the next look is five seconds after the last one.
    assert plan(replace(world, now=NOW + seconds(4)), some_settings()).due == NOW + seconds(5)
    assert plan(replace(world, now=NOW + seconds(5)), some_settings()).read == ("tasks",)


def test_only_the_configmaps_that_lack_something_are_read_again() -> None:
    found = (Reference("tasks", None, NOW), Reference("code", frozenset(), NOW))
    run = a_run(dataset=TASKS["dataset"], workflow=SOURCE["workflow"])
    world = a_new_world(run, notes=some_notes(references=found), now=NOW + seconds(5))
    assert plan(world, some_settings()).read == ("tasks",)


def test_a_run_is_accepted_when_all_is_there() -> None:
    found = (Reference("tasks", frozenset({"train.jsonl"}), NOW), Reference("code", frozenset(), NOW))
    run = a_run(dataset=TASKS["dataset"], workflow=SOURCE["workflow"])
    assert accepted(a_new_world(run, notes=some_notes(references=found)))


def everything_from_configmaps() -> TuningRun:
    volumes = [{"name": "v", "mountPath": "/v", "configMap": {"name": "volume"}}]
    return a_run(
        model={"chatTemplate": {"configMap": {"name": "template", "key": "t.jinja"}}},
        dataset=TASKS["dataset"]
        | {"evaluation": [{"name": "heldout", "configMap": {"name": "heldout", "key": "h.jsonl"}}]},
        workflow=SOURCE["workflow"]
        | {
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "variable", "key": "a"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "b"}}},
                {"name": "C", "value": "c"},
            ],
            "envFrom": [{"configMapRef": {"name": "variables"}}, {"secretRef": {"name": "secrets"}}],
        },
        cluster={"head": {"volumes": volumes}, "workers": [{"name": "agents", "volumes": volumes}]},
    )


def test_every_configmap_is_looked_for_and_its_user_is_named_and_no_secret_is_read() -> None:
    settings = some_settings(defaults=RunDefaults(ca_bundle=CaBundle("authorities", "ca.crt")))
    world = a_new_world(everything_from_configmaps())
    todo = plan(world, settings)
    names = ("authorities", "code", "heldout", "tasks", "template", "variable", "variables", "volume")
    assert todo == Plan(read=names)
    nothing = some_notes(references=tuple(Reference(name, None, NOW) for name in names))
    nothing_there = replace(world, notes=nothing)
    assert rejected(nothing_there, settings)[1].startswith("`model.chatTemplate` needs ConfigMap template")
    told = [problem.message.partition(", which")[0] for problem in config_maps.check(nothing_there, settings)]
    assert told == [
        "`model.chatTemplate` needs ConfigMap template",
        "`dataset.train` needs ConfigMap tasks",
        "`dataset.evaluation[heldout]` needs ConfigMap heldout",
        "`workflow.source` needs ConfigMap code",
        "`cluster.head.volumes[v]` needs ConfigMap volume",
        "`cluster.workers[agents].volumes[v]` needs ConfigMap volume",
        "`workflow.env[A]` needs ConfigMap variable",
        "`workflow.envFrom` needs ConfigMap variables",
        "the installation's `defaults.caBundle` needs ConfigMap authorities",
    ]
    keys = {
        "template": "t.jinja",
        "tasks": "train.jsonl",
        "heldout": "h.jsonl",
        "variable": "a",
        "authorities": "ca.crt",
    }
    there = tuple(Reference(name, frozenset({keys.get(name, "any")}), NOW) for name in names)
    assert accepted(replace(world, notes=some_notes(references=there)), settings)


@pytest.mark.parametrize(
    ("spec", "user"),
    [
        pytest.param(CLAIMED, "`checkpoint.volume`", id="checkpoints"),
        pytest.param(
            {"model": {"image": None, "volume": {"claimName": "results", "path": "m"}}}, "`model.volume`", id="model"
        ),
        pytest.param(
            {"dataset": {"train": {"image": None, "volume": {"claimName": "results", "path": "t.jsonl"}}}},
            "`dataset.train`",
            id="training tasks",
        ),
        pytest.param(
            {"dataset": {"evaluation": [{"name": "h", "volume": {"claimName": "results", "path": "t.jsonl"}}]}},
            "`dataset.evaluation[h]`",
            id="held-out tasks",
        ),
        pytest.param(
            {"cluster": {"head": {"volumes": [{"name": "v", "mountPath": "/v", "claimName": "results"}]}}},
            "`cluster.head.volumes[v]`",
            id="a volume of the head",
        ),
        pytest.param(
            {
                "cluster": {
                    "workers": [
                        {"name": "a", "volumes": [{"name": "v", "mountPath": "/v", "claimName": "results"}]},
                    ]
                }
            },
            "`cluster.workers[a].volumes[v]`",
            id="a volume of workers",
        ),
        pytest.param(
            {"model": {"image": None, "huggingFace": {"repo": "a/b"}}},
            "the installation's `defaults.huggingFaceCache`",
            id="the shared cache",
        ),
    ],
)
def test_every_claim_is_looked_for_without_a_read_and_its_user_is_named(spec: dict[str, Any], user: str) -> None:
    settings = some_settings(defaults=RunDefaults(hub_cache_claim="results"))
    world = a_new_world(a_run(**spec))
    missing = f"{user} needs PersistentVolumeClaim results, which is not in namespace ml: create it"
    assert rejected(world, settings) == ("ReferenceNotFound", missing)
    going = replace(world, claims={"results": a_claim(deleting=True)})
    assert "is being deleted" in rejected(going, settings)[1]
    assert accepted(replace(world, claims={"results": a_claim()}), settings)


def test_a_run_that_downloads_nothing_needs_no_shared_cache() -> None:
    assert accepted(a_new_world(), some_settings(defaults=RunDefaults(hub_cache_claim="results")))


WORKERS = {"cluster": {"workers": [{"name": "agents", "replicas": 2}]}}
READ_ONLY = {"model": {"image": None, "volume": {"claimName": "results", "path": "m"}}}


@pytest.mark.parametrize(
    ("spec", "modes", "message"),
    [
        pytest.param(
            CLAIMED,
            ["ReadOnlyMany"],
            "`checkpoint.volume` must write to PersistentVolumeClaim results, which has ReadOnlyMany: use a claim with "
            "ReadWriteMany",
            id="nobody may write",
        ),
        pytest.param(
            CLAIMED | WORKERS,
            ["ReadWriteOncePod"],
            "`checkpoint.volume` lets 3 pods mount PersistentVolumeClaim results, which has ReadWriteOncePod: use a "
            "claim with ReadWriteMany, or with ReadWriteOnce if all pods fit on one node",
            id="one pod may write",
        ),
        pytest.param(
            READ_ONLY | WORKERS,
            ["ReadWriteOncePod"],
            "`model.volume` lets 3 pods mount PersistentVolumeClaim results, which has ReadWriteOncePod: use a claim "
            "with ReadWriteMany, or with ReadWriteOnce if all pods fit on one node",
            id="one pod may mount",
        ),
        pytest.param(
            {
                "cluster": {
                    "head": {"volumes": [{"name": "v", "mountPath": "/v", "claimName": "results", "readOnly": False}]}
                }
            },
            ["ReadOnlyMany"],
            "`cluster.head.volumes[v]` must write to PersistentVolumeClaim results, which has ReadOnlyMany: use a "
            "claim with ReadWriteMany",
            id="a volume to write",
        ),
    ],
)
def test_a_claim_whose_access_modes_do_not_fit_is_unfit(spec: dict[str, Any], modes: list[str], message: str) -> None:
    world = a_new_world(a_run(**spec), claims={"results": a_claim(*modes)})
    assert rejected(world) == ("ClaimUnfit", message)


@pytest.mark.parametrize(
    ("spec", "modes"),
    [
        pytest.param(CLAIMED, ["ReadWriteOncePod"], id="one pod on a claim for one"),
        pytest.param(CLAIMED | WORKERS, ["ReadWriteOnce"], id="several pods may share a node"),
        pytest.param(CLAIMED | WORKERS, ["ReadOnlyMany", "ReadWriteMany"], id="one of the modes will do"),
        pytest.param(READ_ONLY | WORKERS, ["ReadOnlyMany"], id="what is only read"),
        pytest.param(
            {
                "cluster": {
                    "head": {"volumes": [{"name": "v", "mountPath": "/v", "claimName": "results"}]},
                    "workers": [{"name": "agents", "replicas": 2}],
                }
            },
            ["ReadWriteOncePod"],
            id="the volume of the head alone",
        ),
    ],
)
def test_a_claim_that_can_be_used_is_accepted(spec: dict[str, Any], modes: list[str]) -> None:
    assert accepted(a_new_world(a_run(**spec), claims={"results": a_claim(*modes)}))


@pytest.mark.parametrize(
    ("source", "reason", "message"),
    [
        pytest.param(
            None,
            "ReferenceNotFound",
            "`model.run` needs TuningRun first, which is not in namespace ml: create it",
            id="not there",
        ),
        pytest.param(
            replace(FIRST, phase="Running"),
            "RunNotFinished",
            "`model.run` waits for TuningRun first, which is Running, to succeed",
            id="running",
        ),
        pytest.param(
            replace(FIRST, phase=""),
            "RunNotFinished",
            "`model.run` waits for TuningRun first, which is Pending, to succeed",
            id="not looked at yet",
        ),
        pytest.param(
            replace(FIRST, phase="Failed"),
            "RunNotFinished",
            "`model.run` needs TuningRun first, which has failed and has no final model: name another run",
            id="failed",
        ),
        pytest.param(
            FIRST,
            "ReferenceNotFound",
            "`model.run` needs PersistentVolumeClaim first-claim, which is not in namespace ml: create it",
            id="its claim is gone",
        ),
    ],
)
def test_a_chained_run_waits_for_the_other_to_succeed(source: SourceRun | None, reason: str, message: str) -> None:
    assert rejected(a_new_world(a_run(**CHAINED), source_run=source)) == (reason, message)


def test_a_chained_run_takes_the_others_model_and_records_where_it_lies() -> None:
    claims = {"first-claim": a_claim()}
    world = a_new_world(a_run(**CHAINED), source_run=FIRST, claims=claims)
    assert plan(world, some_settings()).create == (Child.CLUSTER, Child.CONFIG, Child.CLAIM)
    run_json = manifest(Child.CONFIG, world, some_settings())["data"]["run.json"]
    assert "/mnt/claims/first-claim/ml/first-first" in run_json
    made = replace(
        world, cluster=a_cluster(head_ready=False), claims=claims | OWN_CLAIM, notes=some_notes(config_made=True)
    )
    write = plan(made, some_settings()).status
    assert write is not None
    assert write.patch["modelSource"] == {"runUID": "first-uid", "claimName": "first-claim"}
    assert write.patch["display"]["model"] == "first/final"


def test_a_recorded_model_outlives_the_run_that_it_came_from() -> None:
    recorded = {"modelSource": {"runUID": "first-uid", "claimName": "first-claim"}}
    run = a_run(status=STARTING | recorded, **CHAINED)
    world = a_starting_world(run=run, source_run=None)
    assert "/mnt/claims/first-claim/" in manifest(Child.CONFIG, world, some_settings())["data"]["run.json"]
    assert "first-claim" in str(manifest(Child.CLUSTER, world, some_settings()))
    write = plan(world, some_settings()).status
    assert write is not None
    assert "modelSource" not in write.patch


def test_a_run_whose_source_goes_while_it_is_made_fails_with_a_word() -> None:
    world = a_new_world(a_run(**CHAINED), cluster=a_cluster(head_ready=False))
    write = plan(world, some_settings()).status
    assert write is not None
    assert (write.patch["phase"], write.patch["reason"]) == ("Failed", "ConfigInvalid")
    assert "first was deleted" in write.patch["message"]
