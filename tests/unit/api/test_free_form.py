"""The two free-form fields, filled with nonsense: a run is accepted or rejected in words, never a traceback.

The API server lets anything through here, so whatever a user can write must be met by the operator itself.
"""

import random
from typing import Any

import pytest

from tests.builders import a_run_object, a_spec, everything_made_for, some_settings
from tests.unit.engine.worlds import a_new_world
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.engine.plan import plan

SETTINGS = some_settings()
WORDS = (
    "metadata", "labels", "annotations", "spec", "containers", "initContainers", "volumes", "volumeMounts", "env",
    "name", "mountPath", "ray-head", "tuning-sidecar", "checkpoints", "run", "TUNING_ATTEMPT", "value", "valueFrom",
    "ports",
    "securityContext", "hostPath", "path", "resources", "limits", "command", "args", "image", "tolerations", "affinity",
    "restartPolicy", "imagePullSecrets", "agenttuning.io/run", "ray.io/cluster", "containerPort", "lifecycle",
    "preStop",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    {"spec": {"containers": [{"name": "ray-head"}]}},
    {"spec": {"initContainers": [{"name": "tuning-sidecar", "env": []}]}},
    {"spec": {"volumes": [{"name": "checkpoints"}]}},
    {"metadata": {"labels": {"agenttuning.io/run": "x"}}},
    {"spec": {"containers": [{"name": "tools", "image": "tools:1"}]}},
    {"spec": {"dnsPolicy": "Default"}},
)


def nonsense(source: random.Random, depth: int = 5) -> Any:
    """Any JSON value, with keys and texts that mean something in a pod template."""
    kind = source.choice(["object"] * 5 + ["list"] * 3 + ["text", "number", "none", "flag", "shape"])
    if depth == 0 or kind in ("text", "number", "none", "flag"):
        return source.choice([source.choice(WORDS), 3, -1.5, None, True, "", 10**30])
    if kind == "shape":
        return source.choice(SHAPES)
    if kind == "list":
        return [nonsense(source, depth - 1) for _ in range(source.randint(0, 3))]
    return {source.choice(WORDS): nonsense(source, depth - 1) for _ in range(source.randint(1, 4))}


def an_object(source: random.Random) -> dict[str, Any]:
    found = nonsense(source)
    return found if isinstance(found, dict) else {source.choice(["spec", "metadata"]): found}


def verdict(**spec: Any) -> str:
    """What the operator makes of a run: "accepted", after everything could be built, or the reason against it."""
    # Not by the builder's arguments, which take None for "remove".
    run = TuningRun.from_object(a_run_object() | {"spec": a_spec() | spec})
    decided = plan(a_new_world(run), SETTINGS)
    if decided.create:
        assert everything_made_for(run, SETTINGS)
        return "accepted"
    assert decided.status is not None
    (condition,) = [entry for entry in decided.status.patch["conditions"] if entry["type"] == "Accepted"]
    assert 20 < len(condition["message"]) <= 1024
    return str(condition["reason"])


@pytest.mark.parametrize("place", ["head", "workers"])
def test_a_patch_of_nonsense_is_accepted_or_rejected_in_words(place: str) -> None:
    verdicts: dict[str, int] = {}
    for number in range(400):
        patch = an_object(random.Random(f"{place} {number}"))
        pod = {"podTemplatePatch": patch}
        cluster = {"head": pod} if place == "head" else {"workers": [pod | {"name": "agents"}]}
        try:
            reason = verdict(cluster=cluster)
        except Exception as error:
            raise AssertionError(f"{place} {number}: {patch}") from error
        verdicts[reason] = verdicts.get(reason, 0) + 1
    assert set(verdicts) == {"accepted", "Invalid"}
    assert min(verdicts.values()) >= 5, verdicts


def test_overrides_of_nonsense_are_rejected_with_their_names() -> None:
    for number in range(200):
        config = an_object(random.Random(f"config {number}"))
        try:
            assert verdict(engine={"config": config}) == "Invalid"
        except Exception as error:
            raise AssertionError(f"config {number}: {config}") from error
