"""Specs of TuningRuns made from the API's own schema: complete ones, and random valid ones.

Used by the tests of the API (property, round trip, effects). The shape comes from the CRD, so a new field is made the
day it appears; only what two fields say together, and texts that must mean something, are settled by hand here.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tuning_contract.algorithms import ALGORITHMS
from tuning_operator.api import crd, model, v1alpha1_cluster, v1alpha1_execution, v1alpha1_sources
from tuning_operator.api.schema import pattern_of
from tuning_operator.api.v1alpha1_training import GROUP_METHODS

Schema = Mapping[str, Any]
Spec = dict[str, Any]

SCHEMA: Schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]

ENGINE_CONFIGS: tuple[Spec, ...] = (
    {},
    {"weight_decay": 0.01, "adam_beta1": 0.8},
    {"optim": "sgd", "lr_scheduler_type": "cosine"},
    {"gradient_checkpointing": True, "epsilon_high": 0.3},
)
PATCHES: tuple[Spec, ...] = (
    {},
    {"spec": {"hostname": "head", "containers": [{"name": "ray-head", "stdin": True}]}},
    {"spec": {"dnsConfig": {"options": [{"name": "ndots", "value": "2"}]}}},
    {"metadata": {"annotations": {"example.com/patched": "yes"}}},
)
WORKER_PATCHES: tuple[Spec, ...] = (PATCHES[0], PATCHES[2], PATCHES[3])


POOLS = ("cpu", "a100")
"""Node pools that the specs name."""


def unions(schema: Schema) -> list[tuple[str, ...]]:
    """The groups of fields of an object of which exactly one must be set."""
    texts = [entry["message"] for entry in schema.get("x-kubernetes-validations", [])]
    return [tuple(re.findall(r"`(\w+)`", text)) for text in texts if text.startswith("set exactly one of ")]


def leaves(schema: Schema = SCHEMA, where: str = "") -> Iterator[str]:
    """Paths of all fields that hold a value, such as `cluster.workers[].volumes[].mountPath`."""
    for name, child in schema["properties"].items():
        path = f"{where}{name}"
        inner = child.get("items", child)
        if "properties" in inner and not inner.get("x-kubernetes-preserve-unknown-fields"):
            yield from leaves(inner, f"{path}[]." if "items" in child else f"{path}.")
        else:
            yield path


def present(value: Any, schema: Schema = SCHEMA, where: str = "") -> Iterator[str]:
    """Paths of the leaves that a spec sets, named as `leaves` does."""
    for name, child in value.items():
        path, inner = f"{where}{name}", schema["properties"][name]
        listed = inner.get("items", inner)
        if "properties" not in listed or listed.get("x-kubernetes-preserve-unknown-fields"):
            yield path
        elif "items" in inner:
            for entry in child:
                yield from present(entry, listed, f"{path}[].")
        else:
            yield from present(child, listed, f"{path}.")


def complete_specs() -> list[Spec]:
    """Valid specs that together set every field: each sets all but the other branches of its unions."""
    return [_Maker(random.Random(f"complete-{number}"), likely=1.0, branch=number).spec() for number in range(4)]


def random_spec(seed: str) -> Spec:
    """A valid spec, the same for the same seed; from almost empty to almost complete."""
    source = random.Random(seed)
    return _Maker(source, likely=source.choice([0.05, 0.3, 0.6, 0.9])).spec()


@dataclass
class _Maker:
    source: random.Random
    likely: float
    """How likely an optional field is set."""
    branch: int | None = None
    """Which branch of every union is taken; at random when None."""
    count: int = field(default=0, init=False)
    taken: Counter[tuple[str, ...]] = field(default_factory=Counter, init=False)

    def spec(self) -> Spec:
        made: Spec = self.make(SCHEMA, "")
        _settle(made, self)
        return made

    def make(self, schema: Schema, path: str) -> Any:
        if path in _BY_PATH:
            return _BY_PATH[path](self)
        if "enum" in schema:
            return self.source.choice(schema["enum"])
        if schema.get("x-kubernetes-int-or-string"):
            return self.source.choice([1, 3, "2", "1500m", "4Gi", "1.5Gi", 2**30, "20G"])
        makers: dict[str, Callable[[Schema, str], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda schema, path: self.source.random() < 0.5,
        }
        return makers[schema["type"]](schema, path)

    def fresh(self, stem: str) -> str:
        """A text that was not given before."""
        self.count += 1
        return f"{stem}{self.count}"

    def _object(self, schema: Schema, path: str) -> Spec:
        if "additionalProperties" in schema:
            keys = ["team", "example.com/Cost_center.1", "x" * 63]
            return {key: self.make(schema["additionalProperties"], "") for key in keys if self._wanted()}
        left_out = {name for group in unions(schema) for name in self._other_branches(group)}
        required = {name for group in unions(schema) for name in group} | set(schema.get("required", []))
        return {
            name: self.make(child, f"{path}.{name}".lstrip("."))
            for name, child in schema["properties"].items()
            if name not in left_out and (name in required or self._wanted())
        }

    def _other_branches(self, group: tuple[str, ...]) -> set[str]:
        place = self.source.randrange(len(group))
        if self.branch is not None:
            place = (self.branch + self.taken[group]) % len(group)
            self.taken[group] += 1
        return set(group) - {group[place]}

    def _wanted(self) -> bool:
        return self.source.random() < self.likely

    def _array(self, schema: Schema, path: str) -> list[Any]:
        # A complete spec shows every branch of the entries' unions.
        most = min(schema["maxItems"], 4)
        least = max(schema.get("minItems", 0), most if self.likely == 1.0 else 0)
        entries = [self.make(schema["items"], f"{path}[]") for _ in range(self.source.randint(least, most))]
        if schema.get("x-kubernetes-list-type") == "set":
            return sorted(set(entries))
        for key in schema.get("x-kubernetes-list-map-keys", []):
            entries = list({entry[key]: entry for entry in entries}.values())
        return entries

    def _string(self, schema: Schema, path: str) -> str:
        pattern = pattern_of(schema)
        if pattern is None:
            return self.fresh("Täxt with \"quotes\", 'more' and a\ttab ")[: schema["maxLength"]]
        value = _BY_PATTERN[pattern](self)
        if not re.search(pattern, value) or len(value) > schema["maxLength"]:
            raise AssertionError(f"{value!r} is no value for {path}")
        return value

    def _integer(self, schema: Schema, path: str) -> int:
        least, most = schema["minimum"], schema["maximum"]
        return self.source.choice([least, most, self.source.randint(least, most), min(most, least + 3)])

    def _number(self, schema: Schema, path: str) -> float:
        least, most = schema["minimum"], schema["maximum"]
        inside = [least + (most - least) * share for share in (0.001, 0.25, 0.999)]
        edges = [least] * ("exclusiveMinimum" not in schema) + [most] * ("exclusiveMaximum" not in schema)
        return self.source.choice([*inside, *edges])


def _name(maker: _Maker) -> str:
    return maker.source.choice([maker.fresh("name-"), maker.fresh("a.b-c.") + "d", maker.fresh("9") + "x" * 40])


_BY_PATTERN: dict[str, Callable[[_Maker], str]] = {
    model.DNS_SUBDOMAIN_PATTERN: _name,
    model.DNS_LABEL_PATTERN: lambda maker: maker.fresh("label-"),
    model.CONFIG_KEY_PATTERN: lambda maker: maker.fresh("Key_.") + ".jsonl",
    model.PATH_PATTERN: lambda maker: "/opt/da ta/" + maker.fresh(".hidden") + "/x:y.jsonl",
    model.MOUNT_PATH_PATTERN: lambda maker: maker.fresh("/data/.mount"),
    model.RELATIVE_PATH_PATTERN: lambda maker: maker.fresh("folder/file") + ".parquet",
    model.LABEL_PATTERN: lambda maker: maker.fresh("example.com/Label_"),
    model.LABEL_VALUE_PATTERN: lambda maker: maker.source.choice([maker.fresh("v"), "", "V" * 63]),
    model.ENTRYPOINT_PATTERN: lambda maker: maker.fresh("package.module_") + ":function",
    model.VARIABLE_PATTERN: lambda maker: maker.fresh("VARIABLE_"),
    v1alpha1_execution.IMAGE_PATTERN: lambda maker: "registry.example.com/team/" + maker.fresh("agent:"),
    v1alpha1_execution.URL_PATTERN: lambda maker: "http://prometheus:9090/" + maker.fresh("write?x=a@b"),
    v1alpha1_sources.REPOSITORY_PATTERN: lambda maker: "Owner/" + maker.fresh("model-0.5B_"),
    v1alpha1_sources.REVISION_PATTERN: lambda maker: maker.source.choice(["main", "refs/pr/1", "0" * 40]),
    v1alpha1_sources.HUB_SPLIT_PATTERN: lambda maker: (
        maker.fresh("split_") + maker.source.choice(["", "[:200]", "[90%:]"])
    ),
    v1alpha1_sources.SPLIT_PATTERN: lambda maker: maker.fresh("split_"),
}


def _patch(choices: tuple[Spec, ...]) -> Callable[[_Maker], Spec]:
    return lambda maker: maker.source.choice(choices[1:] if maker.likely == 1.0 else choices)


_BY_PATH: dict[str, Callable[[_Maker], Any]] = {
    "engine.type": lambda maker: "TRL",
    "engine.rayVersion": lambda maker: maker.source.choice(["2.53.0", "2.60.0", "3.1.0"]),
    "engine.config": _patch(ENGINE_CONFIGS),
    "algorithm.type": lambda maker: maker.source.choice(sorted(ALGORITHMS)),
    "cluster.head.podTemplatePatch": _patch(PATCHES),
    "cluster.workers[].podTemplatePatch": _patch(WORKER_PATCHES),
    "cluster.head.nodePool": lambda maker: maker.source.choice(POOLS),
    "cluster.workers[].nodePool": lambda maker: maker.source.choice(POOLS),
    "workflow.entrypoint": lambda maker: "agent:run",
}


def _settle(spec: Spec, maker: _Maker) -> None:
    """Make true what several fields say together."""
    spec["workflow"].setdefault("entrypoint", "agent:run")
    _settle_algorithm(spec)
    for tasks in (spec["dataset"]["train"], *spec["dataset"].get("evaluation", [])):
        for source in (tasks.get("image", {}), tasks.get("volume", {})):
            if "split" in source and "path" in source:
                source["path"] = source["path"].rpartition("/")[0]
    _settle_claim(spec["checkpoint"])
    _settle_retry(spec.get("retry", {}))
    cluster = spec.get("cluster", {})
    pods = [*cluster.get("workers", []), *([cluster["head"]] if "head" in cluster else [])]
    for pod in pods:
        _settle_pod(pod, maker)
    if "gpus" in cluster.get("head", {}):
        cluster["head"]["gpus"] = min(cluster["head"]["gpus"], 1)
    for worker in cluster.get("workers", []):
        worker.pop("gpus", None)
        if maker.likely == 1.0:
            worker["gpus"] = 0
        if "replicas" in worker:
            worker["replicas"] = min(worker["replicas"], v1alpha1_cluster.MOST_WORKERS // 8)
    claim = spec["checkpoint"]["volume"].get("claimTemplate", {})
    if pods and claim.get("accessModes") == ["ReadWriteOncePod"]:
        claim["accessModes"] = ["ReadWriteOnce"]


def _settle_algorithm(spec: Spec) -> None:
    if not spec["dataset"].get("evaluation"):
        spec["algorithm"].pop("evaluateEverySteps", None)
    lengths = spec["model"]
    if {"maxModelLength", "maxResponseTokens"} & set(lengths):
        lengths["maxModelLength"] = max(lengths.get("maxModelLength", 2048), 64)
        lengths["maxResponseTokens"] = min(lengths.get("maxResponseTokens", 256), lengths["maxModelLength"] - 1)
    algorithm = spec["algorithm"]
    least = 2 if algorithm["type"] in GROUP_METHODS else 1
    size = max(algorithm.get("groupSize", 8), least)
    if "groupSize" in algorithm:
        algorithm["groupSize"] = size
    rollout = spec.get("rollout", {})
    if "minGroupSize" in rollout or size < 2:
        spec.setdefault("rollout", rollout)["minGroupSize"] = max(min(rollout.get("minGroupSize", 2), size), least)


def _settle_retry(retry: Spec) -> None:
    for entry in retry.get("rules", []):
        if "DeadlineExceeded" in entry["causes"]:
            entry["action"] = "Fail"


def _settle_claim(checkpoint: Spec) -> None:
    if "claimName" in checkpoint["volume"] and checkpoint.get("deletionPolicy") == "Delete":
        checkpoint["deletionPolicy"] = "Retain"
    template = checkpoint["volume"].get("claimTemplate", {})
    if "size" in template:
        template["size"] = "100Gi"
    modes = template.get("accessModes", [])
    if len(modes) > 1 and "ReadWriteOncePod" in modes:
        modes.remove("ReadWriteOncePod")


def _settle_pod(pod: Spec, maker: _Maker) -> None:
    if {"memory", "sharedMemory"} & set(pod):
        pod["memory"], pod["sharedMemory"] = maker.source.choice([("8Gi", 2**30), (2**33, "512Mi"), ("1Gi", "64M")])
    for volume in pod.get("volumes", []):
        if "readOnly" in volume and "claimName" not in volume:
            volume["readOnly"] = "emptyDir" not in volume
    for toleration in pod.get("tolerations", []):
        _settle_toleration(toleration, maker)
    _settle_requirements(pod.get("affinity", {}))


def _settle_toleration(toleration: Spec, maker: _Maker) -> None:
    if toleration.get("operator") == "Exists":
        toleration.pop("value", None)
    else:
        toleration.setdefault("key", maker.fresh("taint-"))
    if "tolerationSeconds" in toleration:
        toleration["effect"] = "NoExecute"


def _settle_requirements(value: Any) -> None:
    """Give every requirement of a selector the values that its operator wants."""
    if isinstance(value, list):
        for entry in value:
            _settle_requirements(entry)
    if not isinstance(value, dict):
        return
    for requirement in value.get("matchFields", []):
        requirement |= {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    if "operator" in value and value.get("key") != "metadata.name":
        wanted = {"In": ["a", "b"], "NotIn": ["a"], "Gt": ["8"], "Lt": ["8"]}
        value["values"] = wanted.get(value["operator"], [])
    for term in [*value.get("nodeSelectorTerms", []), *([value["preference"]] if "preference" in value else [])]:
        if not term.get("matchExpressions") and not term.get("matchFields"):
            term["matchExpressions"] = [{"key": "zone", "operator": "Exists"}]
    for child in value.values():
        _settle_requirements(child)
