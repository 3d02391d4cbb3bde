"""ConfigMap and claim, and that no field of the spec is without effect."""

import json
from typing import Any

import pytest

from tests.builders import UID, a_run, everything_made_for, merged, some_settings
from tuning_contract.run_document import RunDocument
from tuning_operator.desired import claim, configmap

OWNER = {
    "apiVersion": "agenttuning.io/v1alpha1",
    "kind": "TuningRun",
    "name": "math-agent",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": False,
}
COMMON_LABELS = {
    "app.kubernetes.io/managed-by": "agent-tuning-operator",
    "agenttuning.io/run": "math-agent",
    "agenttuning.io/run-uid": UID,
}


def test_the_config_map_carries_the_resolved_run_and_its_digest() -> None:
    built = configmap.build(a_run())
    text = built["data"].pop("run.json")
    assert RunDocument.from_text(text).digest == built["metadata"]["annotations"]["agenttuning.io/run-digest"]
    assert built == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "math-agent-3f9a1c",
            "namespace": "ml",
            "labels": {**COMMON_LABELS, "agenttuning.io/component": "config"},
            "annotations": built["metadata"]["annotations"],
            "ownerReferences": [OWNER],
        },
        "immutable": True,
        "data": {},
    }


def test_a_retained_claim_has_no_owner() -> None:
    assert claim.build(a_run(), some_settings()) == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "math-agent-3f9a1c",
            "namespace": "ml",
            "labels": {**COMMON_LABELS, "agenttuning.io/component": "checkpoint"},
        },
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "20Gi"}}},
    }


def test_a_claim_to_be_deleted_is_owned_by_the_run() -> None:
    built = claim.build(a_run(checkpoint={"deletionPolicy": "Delete"}), some_settings())
    assert built is not None
    assert built["metadata"]["ownerReferences"] == [OWNER]


def test_a_run_with_a_claim_of_the_users_own_gets_none() -> None:
    assert (
        claim.build(a_run(checkpoint={"volume": {"claimTemplate": None, "claimName": "results"}}), some_settings())
        is None
    )


def test_the_claim_takes_class_size_and_modes_from_its_template() -> None:
    template = {"storageClassName": "fast", "size": 5, "accessModes": ["ReadWriteOnce"]}
    built = claim.build(a_run(checkpoint={"volume": {"claimTemplate": template}}), some_settings())
    assert built is not None
    assert built["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "5"}},
        "storageClassName": "fast",
    }


FULL: dict[str, Any] = {
    "model": {"chatTemplate": {"configMap": {"name": "template"}}},
    "dataset": {
        "train": {"image": None, "configMap": {"name": "tasks"}},
        "evaluation": [
            {"name": "one", "configMap": {"name": "tests"}},
            {"name": "two", "image": {"path": "/opt/data/two.jsonl"}},
        ],
    },
    "algorithm": {"lora": {}},
    "workflow": {"source": {"configMap": {"name": "code"}}, "env": [{"name": "A", "value": "1"}]},
    "metrics": {"remoteWrite": {"url": "http://a/write"}},
}
"""A run in which every optional object is there, so that each leaf can be changed alone."""

CHANGES: dict[str, dict[str, Any]] = {
    "spec.seed": {"seed": 1},
    "spec.engine.type": {"engine": {"type": "Trinity"}},
    "spec.engine.rayVersion": {"engine": {"rayVersion": "2.61.0"}},
    "spec.model.image.path": {"model": {"image": {"path": "/m"}}},
    "spec.model.maxModelLength": {"model": {"maxModelLength": 99}},
    "spec.model.maxResponseTokens": {"model": {"maxResponseTokens": 9}},
    "spec.model.sampling.temperature": {"model": {"sampling": {"temperature": 0.5}}},
    "spec.model.sampling.topP": {"model": {"sampling": {"topP": 0.5}}},
    "spec.model.chatTemplate.configMap.name": {"model": {"chatTemplate": {"configMap": {"name": "x"}}}},
    "spec.model.chatTemplate.configMap.key": {"model": {"chatTemplate": {"configMap": {"key": "x"}}}},
    "spec.dataset.train.image.path": {"dataset": {"train": {"configMap": None, "image": {"path": "/x"}}}},
    "spec.dataset.train.configMap.name": {"dataset": {"train": {"configMap": {"name": "x"}}}},
    "spec.dataset.train.configMap.key": {"dataset": {"train": {"configMap": {"key": "x"}}}},
    "spec.dataset.order": {"dataset": {"order": "Sequential"}},
    "spec.dataset.hiddenFields": {"dataset": {"hiddenFields": ["answer"]}},
    "spec.algorithm.learningRate": {"algorithm": {"learningRate": 0.5}},
    "spec.algorithm.groupSize": {"algorithm": {"groupSize": 3}},
    "spec.algorithm.batchSize": {"algorithm": {"batchSize": 3}},
    "spec.algorithm.epochs": {"algorithm": {"steps": None, "epochs": 2}},
    "spec.algorithm.steps": {"algorithm": {"steps": 3}},
    "spec.algorithm.saveEverySteps": {"algorithm": {"saveEverySteps": 3}},
    "spec.algorithm.evaluateEverySteps": {"algorithm": {"evaluateEverySteps": 3}},
    "spec.algorithm.lora.rank": {"algorithm": {"lora": {"rank": 3}}},
    "spec.algorithm.lora.alpha": {"algorithm": {"lora": {"alpha": 3}}},
    "spec.algorithm.klCoefficient": {"algorithm": {"klCoefficient": 0.5}},
    "spec.algorithm.clipRange": {"algorithm": {"clipRange": 0.5}},
    "spec.algorithm.gradientClip": {"algorithm": {"gradientClip": 0.5}},
    "spec.algorithm.warmupSteps": {"algorithm": {"warmupSteps": 5}},
    "spec.algorithm.microBatchTokens": {"algorithm": {"microBatchTokens": 50}},
    "spec.rollout.maxAttempts": {"rollout": {"maxAttempts": 1}},
    "spec.rollout.minGroupSize": {"rollout": {"minGroupSize": 3}},
    "spec.rollout.maxFailedRatio": {"rollout": {"maxFailedRatio": 0.5}},
    "spec.rollout.concurrency": {"rollout": {"concurrency": 3}},
    "spec.rollout.limits.turns": {"rollout": {"limits": {"turns": 3}}},
    "spec.rollout.limits.seconds": {"rollout": {"limits": {"seconds": 3}}},
    "spec.workflow.image": {"workflow": {"image": "x"}},
    "spec.workflow.entrypoint": {"workflow": {"entrypoint": "x:y"}},
    "spec.workflow.judge": {"workflow": {"judge": "x:y"}},
    "spec.workflow.source.configMap.name": {"workflow": {"source": {"configMap": {"name": "x"}}}},
    "spec.cluster.head.cpu": {"cluster": {"head": {"cpu": 3}}},
    "spec.cluster.head.memory": {"cluster": {"head": {"memory": "3Gi"}}},
    "spec.cluster.head.gpus": {"cluster": {"head": {"gpus": 3}}},
    "spec.cluster.head.sharedMemory": {"cluster": {"head": {"sharedMemory": "3Gi"}}},
    "spec.checkpoint.volume.claimTemplate.storageClassName": {
        "checkpoint": {"volume": {"claimTemplate": {"storageClassName": "x"}}}
    },
    "spec.checkpoint.volume.claimTemplate.size": {"checkpoint": {"volume": {"claimTemplate": {"size": "3Gi"}}}},
    "spec.checkpoint.volume.claimTemplate.accessModes": {
        "checkpoint": {"volume": {"claimTemplate": {"accessModes": ["ReadWriteOnce"]}}}
    },
    "spec.checkpoint.volume.claimName": {"checkpoint": {"volume": {"claimTemplate": None, "claimName": "x"}}},
    "spec.checkpoint.keepLast": {"checkpoint": {"keepLast": 1}},
    "spec.checkpoint.deletionPolicy": {"checkpoint": {"deletionPolicy": "Delete"}},
    "spec.metrics.remoteWrite.url": {"metrics": {"remoteWrite": {"url": "http://b/write"}}},
}
EVALUATION_CHANGES: dict[str, tuple[int, dict[str, Any]]] = {
    "spec.dataset.evaluation[].name": (0, {"name": "other"}),
    "spec.dataset.evaluation[].image.path": (1, {"image": {"path": "/x"}}),
    "spec.dataset.evaluation[].configMap.name": (0, {"configMap": {"name": "x"}}),
    "spec.dataset.evaluation[].configMap.key": (0, {"configMap": {"key": "x"}}),
    "spec.dataset.evaluation[].samplesPerTask": (0, {"samplesPerTask": 3}),
    "spec.dataset.evaluation[].sampling.temperature": (0, {"sampling": {"temperature": 0.5}}),
    "spec.dataset.evaluation[].sampling.topP": (0, {"sampling": {"topP": 0.5}}),
    "spec.dataset.evaluation[].maxTasks": (0, {"maxTasks": 3}),
}
ENV_CHANGES: dict[str, list[dict[str, str]]] = {
    "spec.workflow.env[].name": [{"name": "B", "value": "1"}],
    "spec.workflow.env[].value": [{"name": "A", "value": "2"}],
}


def manifests(changes: dict[str, Any]) -> str:
    """Everything that is made for the full run with changes, as text."""
    return json.dumps(everything_made_for(a_run(**merged(FULL, changes))))


def evaluation_with(place: int, change: dict[str, Any]) -> dict[str, Any]:
    """The full run's evaluation sets with one of them changed."""
    sets = list(FULL["dataset"]["evaluation"])
    sets[place] = merged(sets[place], change)
    return {"dataset": {"evaluation": sets}}


ALL_CHANGES = (
    CHANGES
    | {path: evaluation_with(place, change) for path, (place, change) in EVALUATION_CHANGES.items()}
    | {path: {"workflow": {"env": change}} for path, change in ENV_CHANGES.items()}
)


@pytest.mark.parametrize("path", ALL_CHANGES)
def test_every_field_of_the_spec_changes_a_manifest(path: str) -> None:
    assert manifests(ALL_CHANGES[path]) != manifests({})
