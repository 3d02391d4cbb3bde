"""Builders with valid defaults, shared by all tests of the operator: say only what the test is about.

`a_run(...)` gives the parsed value, `a_run_object(...)` the JSON object as a user writes it (plus what the API
server adds). Overrides are deep-merged into the defaults by their JSON names; None removes a key.
"""

import copy
from collections.abc import Mapping
from typing import Any

from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import claim, configmap, job, raycluster
from tuning_operator.desired.model_source import ModelSource
from tuning_operator.settings import Settings

UID = "3f9a1c00-5b1e-4c60-9d6f-2f1f7a2f8a11"
"""UID of the run that `a_run` builds; its first six hex digits are 3f9a1c."""

SPEC: dict[str, Any] = {
    "model": {"image": {"path": "/opt/models/tiny"}},
    "dataset": {"train": {"image": {"path": "/opt/data/tiny/train.jsonl"}}},
    "algorithm": {"type": "multi_step_grpo", "learningRate": 0.001, "steps": 12},
    "workflow": {"image": "agent-tuning/tiny:0.1", "entrypoint": "tiny_agent:run", "judge": "tiny_agent:judge"},
    "checkpoint": {"volume": {"claimTemplate": {}}},
}
"""The smallest spec that the API accepts, with an image and a judge of its own."""


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of `base` with `changes` merged in as a JSON merge patch (None removes)."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def a_spec(**changes: Any) -> dict[str, Any]:
    """The smallest valid spec with changes: `a_spec(algorithm={"steps": 3})`."""
    return merged(SPEC, changes)


def a_run_object(
    name: str = "math-agent",
    *,
    namespace: str = "ml",
    uid: str = UID,
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A TuningRun as the API server gives it, defaults not filled in."""
    base = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "generation": 1,
        "resourceVersion": "1000",
        "creationTimestamp": "2026-01-02T03:04:05Z",
    }
    document = {
        "apiVersion": "agenttuning.io/v1alpha1",
        "kind": "TuningRun",
        "metadata": merged(base, metadata or {}),
        "spec": a_spec(**spec),
    }
    return document | ({"status": copy.deepcopy(dict(status))} if status else {})


def a_run(
    name: str = "math-agent",
    *,
    namespace: str = "ml",
    uid: str = UID,
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> TuningRun:
    """A parsed TuningRun: `a_run(algorithm={"steps": 3}, status={"phase": "Running"})`."""
    document = a_run_object(name, namespace=namespace, uid=uid, metadata=metadata, status=status, **spec)
    return TuningRun.from_object(document)


def some_settings(**changes: Any) -> Settings:
    """Settings of an installation, as the chart would make them."""
    values: dict[str, Any] = {
        "operator_image": "agent-tuning/operator:0.1",
        "runner_image": "agent-tuning/runner-trl:0.1",
    }
    return Settings(**(values | changes))


def a_model_source(run_name: str = "base", *, uid: str = "b1946ac9-0000-4000-8000-000000000000") -> ModelSource:
    """A finished run whose final model another one starts from."""
    return ModelSource(run_name=run_name, run_uid=uid, claim_name=f"{run_name}-{uid[:6]}")


def everything_made_for(run: TuningRun, settings: Settings | None = None) -> list[dict[str, Any]]:
    """All manifests of the run's first attempt."""
    used = settings or some_settings()
    source = a_model_source(run.spec.model.run.name) if run.spec.model.run else None
    made = [raycluster.build(run, used, 1, source), configmap.build(run, source), job.build(run, used, 1, UID)]
    volume = claim.build(run, used)
    return made if volume is None else [*made, volume]
