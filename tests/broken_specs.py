"""Ways to break one thing in a valid spec: by its schema, by its rules, and by what only a look-up can know.

Used by the property tests. Every breaker takes a source of chance and a valid spec, and returns a broken copy, or None
where the spec has nothing of its kind.
"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from tests.specs import SCHEMA, Schema, Spec, unions
from tuning_operator.api.schema import pattern_of

Breaker = Callable[[random.Random, Spec], Spec | None]
Place = tuple[Any, Any, Schema]
"""Holder (object or list), key in it, and the schema of the value that is there."""


def places(value: Any, schema: Schema) -> Iterator[Place]:
    """Every value in a spec with the schema that it must meet."""
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield value, index, schema["items"]
            yield from places(entry, schema["items"])
    elif isinstance(value, dict):
        for key, child in value.items():
            inner = schema.get("properties", {}).get(key) or schema.get("additionalProperties")
            if inner is not None and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield value, key, inner
                yield from places(child, inner)


def _somewhere(wanted: Callable[[Schema, Any], bool], replace: Callable[[Schema, Any], Any]) -> Breaker:
    """Replace one value, at a random place of those that are wanted."""

    def breaker(source: random.Random, spec: Spec) -> Spec | None:
        broken = copy.deepcopy(spec)
        found = [place for place in places(broken, SCHEMA) if wanted(place[2], place[0][place[1]])]
        if not found:
            return None
        holder, key, schema = source.choice(found)
        holder[key] = replace(schema, holder[key])
        return broken

    return breaker


def _changed(change: Callable[[Spec], Any]) -> Breaker:
    """Change the whole spec by hand."""

    def breaker(source: random.Random, spec: Spec) -> Spec:
        del source
        broken = copy.deepcopy(spec)
        change(broken)
        return broken

    return breaker


def _is(kind: str) -> Callable[[Schema, Any], bool]:
    return lambda schema, value: schema.get("type") == kind


def _typed_object(schema: Schema, value: Any) -> bool:
    return isinstance(value, dict) and "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")


def _has_union(schema: Schema, value: Any) -> bool:
    return isinstance(value, dict) and bool(unions(schema))


def _without_union(schema: Schema, value: Spec) -> Spec:
    return {key: child for key, child in value.items() if key not in unions(schema)[0]}


def _without_required(schema: Schema, value: Spec) -> Spec:
    return {key: child for key, child in value.items() if key != schema["required"][0]}


def _head(spec: Spec) -> Spec:
    head: Spec = spec.setdefault("cluster", {}).setdefault("head", {})
    return head


def _worker(spec: Spec, **changes: Any) -> None:
    spec.setdefault("cluster", {})["workers"] = [{"name": "agents"} | changes]


def _variable(spec: Spec, **variable: Any) -> None:
    spec["workflow"]["env"] = [{"name": "A"} | variable]


def _volumes(spec: Spec, *entries: Spec) -> None:
    _head(spec)["volumes"] = [{"name": f"v{place}", "emptyDir": {}} | entry for place, entry in enumerate(entries)]


def _claim(spec: Spec, **template: Any) -> None:
    spec["checkpoint"] = {"volume": {"claimTemplate": template}}


REFUSED: dict[str, Breaker] = {
    "a field that is not there": _somewhere(_typed_object, lambda schema, value: value | {"surprise": 1}),
    "a required field left out": _somewhere(
        lambda schema, value: isinstance(value, dict) and schema.get("required", [None])[0] in value, _without_required
    ),
    "an object for a text": _somewhere(_is("string"), lambda schema, value: {"a": "b"}),
    "a text for a number": _somewhere(_is("integer"), lambda schema, value: "many"),
    "a text for a fraction": _somewhere(_is("number"), lambda schema, value: "much"),
    "a text for an object": _somewhere(_typed_object, lambda schema, value: "x"),
    "a text for a list": _somewhere(_is("array"), lambda schema, value: "x"),
    "a number below its bound": _somewhere(
        lambda schema, value: "minimum" in schema, lambda schema, value: schema["minimum"] - 1
    ),
    "a number above its bound": _somewhere(
        lambda schema, value: "maximum" in schema, lambda schema, value: schema["maximum"] + 1
    ),
    "an unknown choice": _somewhere(lambda schema, value: "enum" in schema, lambda schema, value: "Other"),
    "a text that is too long": _somewhere(
        lambda schema, value: "maxLength" in schema and schema.get("type") == "string",
        lambda schema, value: "a" * (schema["maxLength"] + 1),
    ),
    "a text of another form": _somewhere(
        lambda schema, value: pattern_of(schema) is not None, lambda schema, value: "//?\n//?\n"
    ),
    "a list that is too long": _somewhere(
        lambda schema, value: isinstance(value, list) and len(value) > 0,
        lambda schema, value: value * (schema["maxItems"] + 1),
    ),
    "an entry twice": _somewhere(
        lambda schema, value: bool(value) and schema.get("x-kubernetes-list-type") in ("map", "set"),
        lambda schema, value: [*value, value[0]],
    ),
    "a union with nothing set": _somewhere(_has_union, _without_union),
    "neither epochs nor steps": _changed(
        lambda spec: [spec["algorithm"].pop(key, None) for key in ("epochs", "steps")]
    ),
    "both epochs and steps": _changed(lambda spec: spec["algorithm"].update(epochs=1, steps=1)),
    "two models": _changed(lambda spec: spec["model"].update(image={"path": "/a"}, run={"name": "other"})),
    "two sources of tasks": _changed(
        lambda spec: spec["dataset"]["train"].update(image={"path": "/a"}, configMap={"name": "a"})
    ),
    "a split of one file": _changed(
        lambda spec: spec["dataset"].update(train={"image": {"path": "/a.json", "split": "train"}})
    ),
    "no room for a prompt": _changed(lambda spec: spec["model"].update(maxModelLength=64, maxResponseTokens=64)),
    "groups that are never whole": _changed(
        lambda spec: spec | {"x": spec["algorithm"].update(groupSize=4), "y": spec.update(rollout={"minGroupSize": 5})}
    ),
    "a group of one": _changed(lambda spec: spec["algorithm"].update(type="rloo", groupSize=1)),
    "an old Ray": _changed(lambda spec: spec.update(engine={"rayVersion": "2.52.0"})),
    "evaluations of nothing": _changed(
        lambda spec: [spec["dataset"].pop("evaluation", None), spec["algorithm"].update(evaluateEverySteps=1)]
    ),
    "tasks in a key that does not say how they are written": _changed(
        lambda spec: spec["dataset"].update(train={"configMap": {"name": "a", "key": "tasks.txt"}})
    ),
    "variables that begin like ours": _changed(
        lambda spec: spec["workflow"].update(envFrom=[{"secretRef": {"name": "a"}, "prefix": "TUNING_"}])
    ),
    "a reserved key": _changed(lambda spec: spec.update(engine={"config": {"learning_rate": 0.1}})),
    "two GPUs on the head": _changed(lambda spec: _head(spec).update(gpus=2)),
    "a GPU on a worker": _changed(lambda spec: _worker(spec, gpus=1)),
    "a worker group named head": _changed(lambda spec: _worker(spec, name="head")),
    "no CPU": _changed(lambda spec: _head(spec).update(cpu=0)),
    "little memory": _changed(lambda spec: _head(spec).update(memory="100Mi", sharedMemory="1Mi")),
    "more shared memory than memory": _changed(lambda spec: _head(spec).update(memory="1Gi", sharedMemory="2Gi")),
    "a mount over ours": _changed(lambda spec: _volumes(spec, {"mountPath": "/mnt/agent-tuning/x"})),
    "two volumes at a path": _changed(lambda spec: _volumes(spec, {"mountPath": "/data"}, {"mountPath": "/data"})),
    "an empty folder to read": _changed(lambda spec: _volumes(spec, {"mountPath": "/data", "readOnly": True})),
    "a toleration without a key": _changed(lambda spec: _head(spec).update(tolerations=[{"value": "x"}])),
    "a node label that is none": _changed(lambda spec: _head(spec).update(nodeSelector={"a b": "c"})),
    "a pod label of ours": _changed(lambda spec: spec.update(podLabels={"agenttuning.io/run": "x"})),
    "a pod annotation that is none": _changed(lambda spec: spec.update(podAnnotations={"a/b/c": "x"})),
    "a variable of ours": _changed(lambda spec: _variable(spec, name="TUNING_ATTEMPT", value="1")),
    "a variable without a value": _changed(_variable),
    "a claim for one pod, and workers": _changed(
        lambda spec: [_worker(spec), _claim(spec, accessModes=["ReadWriteOncePod"])]
    ),
    "a claim without room": _changed(lambda spec: _claim(spec, size=0)),
    "somebody's claim to delete": _changed(
        lambda spec: spec.update(checkpoint={"volume": {"claimName": "a"}, "deletionPolicy": "Delete"})
    ),
    "a password in an address": _changed(
        lambda spec: spec.update(metrics={"remoteWrite": {"url": "http://me:secret@host/write"}})
    ),
}
"""What the API server refuses, by what is broken."""

REJECTED: dict[str, tuple[str, Breaker]] = {
    "an engine that is not there yet": ("NotAvailable", _changed(lambda spec: spec.update(engine={"type": "Trinity"}))),
    "an algorithm that is not there yet": ("NotAvailable", _changed(lambda spec: spec["algorithm"].update(type="ppo"))),
    "a node pool that nobody offers": ("NodePoolUnknown", _changed(lambda spec: _head(spec).update(nodePool="h100"))),
    "an override that is not known": (
        "Invalid",
        _changed(lambda spec: spec.setdefault("engine", {}).update(config={"weight_decai": 0.1})),
    ),
    **{
        f"a patch with {what}": (
            "Invalid",
            _changed(lambda spec, patch=patch: _head(spec).update(podTemplatePatch=patch)),
        )
        for what, patch in {
            "the host's network": {"spec": {"hostNetwork": True}},
            "a folder of the host": {"spec": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}},
            "privileges": {
                "spec": {"containers": [{"name": "ray-head", "securityContext": {"privileged": True}}]},
            },
            "a text for a list": {"spec": {"containers": "x"}},
            "a number for an object": {"metadata": 3},
            "nothing that has a name": {"spec": {"containers": [{"image": "x"}]}},
        }.items()
    },
}
"""What the server cannot know, and the operator rejects: the reason of Accepted=False, by what is broken."""
