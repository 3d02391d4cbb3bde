"""Reading TuningRuns, and writing their status."""

from typing import Any

import pytest

from tests.builders import a_run, a_run_object
from tuning_contract.algorithms import ENGINES, Engine
from tuning_operator.api.conditions import Phase
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_spec import needs_lora
from tuning_operator.api.v1alpha1_status import AttemptStatus, ProgressStatus, TuningRunStatus
from tuning_operator.errors import SpecRejected


def test_an_omitted_parent_still_yields_its_defaults() -> None:
    spec = a_run().spec
    assert (spec.rollout.limits.turns, spec.rollout.limits.seconds) == (32, 300)
    assert (spec.engine.type, spec.engine.ray_version) == ("TRL", "2.60.0")
    assert (spec.cluster.head.cpu, spec.cluster.head.memory) == ("4", "16Gi")
    assert spec.metrics.remote_write is None


def test_a_quantity_may_be_a_number_and_is_read_as_text() -> None:
    assert a_run(cluster={"head": {"cpu": 8}}).spec.cluster.head.cpu == "8"


@pytest.mark.parametrize(
    ("source", "said", "expected"),
    [
        ({"claimName": "corpus"}, None, True),
        ({"claimName": "corpus"}, False, False),
        ({"secret": {"secretName": "s"}}, None, True),
        ({"emptyDir": {}}, None, False),
        ({"emptyDir": {}}, False, False),
    ],
)
def test_a_volume_is_read_only_unless_it_is_there_to_be_written(
    source: dict[str, Any], said: bool | None, expected: bool
) -> None:
    volume = {"name": "v", "mountPath": "/data"} | source | ({} if said is None else {"readOnly": said})
    (read,) = a_run(cluster={"head": {"volumes": [volume]}}).spec.cluster.head.volumes
    assert read.mounted_read_only is expected


def test_an_engine_without_adapters_gets_a_rule_against_them_and_no_rule_is_made_for_those_that_have_them() -> None:
    assert needs_lora(ENGINES.values()) == ()
    (rule,) = needs_lora([Engine(name="Plain", available=True, lora=False, trains_on_workers=False)])
    assert rule == {
        "rule": "!has(self.algorithm.lora) || !(self.engine.type in ['Plain'])",
        "message": "`algorithm.lora` must not be set with engine Plain, which trains all weights: leave it out, or "
        "choose another engine",
        "fieldPath": ".algorithm.lora",
    }


def test_a_field_of_a_newer_version_is_ignored_on_read() -> None:
    document = a_run_object(model={"quantisation": "int4"})
    document["spec"]["gate"] = {"evaluation": "heldout"}
    document["metadata"]["managedFields"] = [{}]
    assert TuningRun.from_object(document) == a_run()


def test_an_object_that_is_no_run_is_rejected_with_the_fields_name() -> None:
    with pytest.raises(SpecRejected, match=r"spec\.algorithm\.learningRate: Input should be a valid number"):
        a_run(algorithm={"learningRate": "fast"})
    with pytest.raises(SpecRejected, match=r"spec\.checkpoint: Field required"):
        a_run(checkpoint=None)


def test_the_metadata_tell_deletion() -> None:
    assert not a_run().deleted
    assert a_run(metadata={"deletionTimestamp": "2026-01-02T03:04:06Z"}).deleted


def test_a_run_cannot_be_changed_by_accident() -> None:
    with pytest.raises(ValueError, match="frozen"):
        a_run().spec.seed = 3  # type: ignore[misc]


def test_a_status_is_written_without_nulls_and_empty_objects() -> None:
    status = TuningRunStatus(
        phase=Phase.RUNNING,
        attempt=AttemptStatus(number=1, ray_cluster_uid="u-1", head_restart_count=0),
        progress=ProgressStatus(step=3, target_steps=12, percent=25, summary="3/12", reward="0.412"),
    )
    assert status.to_object() == {
        "phase": "Running",
        "conditions": [],
        "attempt": {"number": 1, "rayClusterUID": "u-1", "headRestartCount": 0},
        "history": [],
        "progress": {"step": 3, "targetSteps": 12, "percent": 25, "summary": "3/12", "reward": "0.412"},
        "evaluation": [],
    }


def test_a_status_is_read_as_it_was_written() -> None:
    status = {
        "phase": "Running",
        "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Valid", "message": "", "observedGeneration": 1}
        ],
        "attempt": {"number": 2, "rayClusterUID": "a", "jobUID": "b", "headPodUID": "c"},
        "history": [{"number": 1, "outcome": "Failed", "cause": "HeadLost"}],
        "progress": {"step": 1, "targetSteps": 2, "percent": 50},
        "evaluation": [{"dataset": "heldout", "baseline": {"step": 0, "mean": "0.15"}}],
        "usage": {"gpuSeconds": 0, "podSeconds": 20},
    }
    run = a_run(status=status)
    assert run.status.attempt.job_uid == "b"
    assert run.status.to_object() == status
