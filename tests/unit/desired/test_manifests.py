"""ConfigMap and claim."""

from tests.builders import UID, a_run, some_settings
from tuning_contract.run_document import RunDocument
from tuning_operator.api.v1alpha1_execution import DeletionPolicy
from tuning_operator.desired import claim, configmap
from tuning_operator.settings import RunDefaults

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


def test_where_the_run_says_nothing_the_installation_decides_class_and_fate() -> None:
    defaults = RunDefaults(storage_class_name="standard", deletion_policy=DeletionPolicy.DELETE)
    settings = some_settings(defaults=defaults)
    built = claim.build(a_run(), settings)
    assert built is not None
    assert built["spec"]["storageClassName"] == "standard"
    assert built["metadata"]["ownerReferences"] == [OWNER]
    own = {"volume": {"claimTemplate": {"storageClassName": "fast"}}, "deletionPolicy": "Retain"}
    built = claim.build(a_run(checkpoint=own), settings)
    assert built is not None
    assert built["spec"]["storageClassName"] == "fast"
    assert "ownerReferences" not in built["metadata"]


def test_the_claim_takes_class_size_and_modes_from_its_template() -> None:
    template = {"storageClassName": "fast", "size": 5, "accessModes": ["ReadWriteOnce"]}
    built = claim.build(a_run(checkpoint={"volume": {"claimTemplate": template}}), some_settings())
    assert built is not None
    assert built["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "5"}},
        "storageClassName": "fast",
    }
