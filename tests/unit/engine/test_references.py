"""What acceptance looks for is what the pods need: held against the manifests that are built."""

from collections.abc import Iterator
from typing import Any

from tests.builders import a_run, some_settings
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import raycluster
from tuning_operator.desired.model_source import ModelSource
from tuning_operator.engine import references
from tuning_operator.settings import CaBundle, RunDefaults, Settings

SETTINGS = some_settings(defaults=RunDefaults(ca_bundle=CaBundle("authorities"), hub_cache_claim="hub"))
OWN = "math-agent-3f9a1c"
"""Name of the ConfigMap with run.json and of the claim that is made."""


RESUMED = {"claimName": "another-runs", "path": "ml/base-b1946a"}


def volumes(name: str) -> list[dict[str, Any]]:
    """One volume of each kind."""
    return [
        {"name": "claim", "mountPath": "/data/a", "claimName": f"{name}-claim"},
        {"name": "writable", "mountPath": "/data/b", "claimName": f"{name}-writable", "readOnly": False},
        {"name": "map", "mountPath": "/data/c", "configMap": {"name": f"{name}-map"}},
        {"name": "secret", "mountPath": "/data/d", "secret": {"secretName": f"{name}-secret"}},
        {"name": "scratch", "mountPath": "/data/e", "emptyDir": {}},
    ]


def everything(model: dict[str, Any], checkpoint: dict[str, Any]) -> TuningRun:
    """A run that refers to every kind of thing by a name of its own."""
    return a_run(
        model={"image": None, "chatTemplate": {"configMap": {"name": "template", "key": "t"}}} | model,
        dataset={
            "train": {"image": None, "configMap": {"name": "train", "key": "t.jsonl"}},
            "evaluation": [
                {"name": "hub", "huggingFace": {"repo": "owner/tasks", "split": "test"}},
                {"name": "claim", "volume": {"claimName": "evaluation-claim", "path": "t.jsonl"}},
                {"name": "map", "configMap": {"name": "evaluation-map", "key": "t.jsonl"}},
            ],
        },
        workflow={
            "source": {"configMap": {"name": "code"}},
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "variable", "key": "a"}}},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "b"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "variables"}}, {"secretRef": {"name": "secrets"}}],
        },
        cluster={"head": {"volumes": volumes("head")}, "workers": [{"name": "agents", "volumes": volumes("workers")}]},
        checkpoint=checkpoint,
    )


def built(run: TuningRun, settings: Settings, source: ModelSource | None, key: str) -> Iterator[str]:
    """All names below a key of the RayCluster's pods, but for those of the run's own objects."""

    def search(value: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            if key in value:
                yield value[key]
            for item in value.values():
                yield from search(item)
        elif isinstance(value, list):
            for item in value:
                yield from search(item)

    for found in search(raycluster.build(run, settings, 1, source)["spec"]):
        name = found.get("claimName") or found["name"]
        if name != OWN:
            yield name


def held(run: TuningRun, source: ModelSource | None = None) -> None:
    claims = {use.name for use in references.claims(run, SETTINGS, source)}
    assert claims == set(built(run, SETTINGS, source, "persistentVolumeClaim"))
    maps = {use.name for use in references.config_maps(run, SETTINGS)}
    places = ("configMap", "configMapKeyRef", "configMapRef")
    assert maps == {name for key in places for name in built(run, SETTINGS, source, key)}


def test_every_claim_and_configmap_of_the_pods_is_looked_for_and_no_other() -> None:
    made: dict[str, Any] = {"volume": {"claimTemplate": {}}}
    named: dict[str, Any] = {"volume": {"claimTemplate": None, "claimName": "results"}}
    held(everything({"huggingFace": {"repo": "owner/model"}}, made))
    held(everything({"volume": {"claimName": "models", "path": "m"}}, named))
    held(everything({"volume": {"claimName": "models", "path": "m"}}, named | {"resumeFrom": RESUMED}))
    held(everything({"run": {"name": "first"}}, named), ModelSource("first", "first-uid", "first-claim"))
    run = a_run()
    assert references.claims(run, SETTINGS, None) == ()
    assert [use.name for use in references.config_maps(run, SETTINGS)] == ["authorities"]
    assert references.config_maps(run, some_settings()) == ()


def test_the_groups_that_mount_a_claim_are_counted() -> None:
    run = a_run(
        cluster={
            "head": {"volumes": [{"name": "v", "mountPath": "/data/v", "claimName": "shared"}]},
            "workers": [
                {"name": "a", "replicas": 3, "volumes": [{"name": "v", "mountPath": "/v", "claimName": "shared"}]},
                {"name": "b", "replicas": 4},
            ],
        }
    )
    assert references.pods_of(run) == {"head": 1, "workers[a]": 3, "workers[b]": 4}
    assert [use.groups for use in references.claims(run, SETTINGS, None)] == [("head",), ("workers[a]",)]
