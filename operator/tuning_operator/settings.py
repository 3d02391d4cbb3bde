"""What the installation decides: images, the namespace to watch, node pools, what every run gets, the log.

Read once in `__main__` from the environment that the chart sets, then passed down; tests pass a plain mapping.
No user of a TuningRun sees these.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuning_contract.environment import CA_VARIABLES, HUB_HOME
from tuning_operator.api.model import (
    CONFIG_KEY_PATTERN,
    DNS_LABEL_PATTERN,
    DNS_SUBDOMAIN_PATTERN,
    LABEL_PATTERN,
    LABEL_VALUE_PATTERN,
)
from tuning_operator.api.v1alpha1_execution import RESERVED_VARIABLES, DeletionPolicy
from tuning_operator.errors import SettingsError

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("plain", "json")
GPU_RESOURCE = "nvidia.com/gpu"
"""What a pod asks for when it wants a GPU and its pool says nothing else."""

_POOL_NAME = rf"(?=.{{1,63}}$){DNS_LABEL_PATTERN}"
_RESOURCE = rf"(?=[^/]+/){LABEL_PATTERN}"
"""Kubernetes has no extended resource without a domain."""
_OBJECT_NAME = rf"({DNS_SUBDOMAIN_PATTERN})?"
_LABEL_KEY = rf"(?=.{{1,317}}$)(?!.{{254,}}/){LABEL_PATTERN}"
_LABEL_ADVICE = (
    "use a name such as team or example.com/team, with at most 63 letters, digits, hyphens, underscores and dots after "
    "the slash"
)
_LABEL_VALUE = rf"(?=.{{0,63}}$){LABEL_VALUE_PATTERN}"
_LABEL_VALUE_ADVICE = "use at most 63 letters, digits, hyphens, underscores and dots, the first and last no sign"
_VARIABLE = "[A-Za-z_][A-Za-z0-9_]*"


@dataclass(frozen=True)
class NodePool:
    """Nodes of one kind, which runs ask for by name."""

    name: str
    """What `nodePool` of a run's head or worker group says."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the pool's nodes have."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """For the taints of the pool's nodes, as Kubernetes writes them."""
    resource_name: str = GPU_RESOURCE
    """The extended resource that is one GPU on these nodes: a slice of one, for example."""
    max_gpus_per_node: int | None = None
    """The most GPUs that one pod can ask for here, 0 on nodes without any; None: not known."""


@dataclass(frozen=True)
class CaBundle:
    """Certificate authorities, which every namespace with runs has in a ConfigMap of this name."""

    config_map: str
    key: str = "ca.crt"
    """Of the ConfigMap; its value is one or more certificates as PEM."""


@dataclass(frozen=True)
class RunDefaults:
    """What every run gets, unless its spec says otherwise."""

    storage_class_name: str = ""
    """Of a claim that is made for a run; empty: the cluster's default class."""
    deletion_policy: DeletionPolicy = DeletionPolicy.RETAIN
    """What becomes of a claim that was made for a run, when the run is deleted."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the Ray containers, taken literally; a run's own of the same name wins."""
    ca_bundle: CaBundle | None = None
    """Trusted by Python in the Ray containers, instead of the image's own authorities."""
    hub_cache_claim: str = ""
    """Claim, in every namespace with runs, that keeps what was downloaded from the Hugging Face hub; empty: none."""


@dataclass(frozen=True)
class Settings:
    """The installation's choices."""

    operator_image: str
    """Image with driver and sidecar; normally the one the operator itself runs."""
    runner_image: str = ""
    """Image of the Ray containers of a run that names no `workflow.image`; empty: such a run is not accepted."""
    image_pull_policy: str = "IfNotPresent"
    """For every container that is built."""
    watch_namespace: str = ""
    """The one namespace to watch; empty for all."""
    log_level: str = "info"
    """The least level that is logged."""
    log_format: str = "plain"
    """`plain` for people, `json` for collectors: one object a line."""
    http_port: int = 8080
    """Where /metrics and /healthz are served; 0 takes a free port."""
    startup_patience_seconds: int = 300
    """How long pods may stay in a trouble that does not pass by itself, such as an image that does not exist."""
    node_lost_seconds: int = 600
    """How long after the cluster gave it up a pod that stays Terminating on a dead node is waited for."""
    stop_key: str = field(default="", repr=False)
    """Secret from which the token follows that asks a run's pods to stop; empty: only their preStop hook asks."""
    lease_namespace: str = ""
    """Where the Lease lies that makes one operator of several the leader; empty: there is no other, nobody is asked."""
    lease_name: str = "agent-tuning-operator"
    """Of that Lease: operators that serve the same runs share it."""
    node_pools: Mapping[str, NodePool] = field(default_factory=dict)
    """By name."""
    defaults: RunDefaults = field(default_factory=RunDefaults)
    """What every run gets."""

    @classmethod
    def from_mapping(cls, environment: Mapping[str, str]) -> "Settings":
        """Read the variables whose names are those of the fields in capitals, `defaults` from RUN_DEFAULTS.

        Raises:
            SettingsError: the operator's image is missing, or a value is not one of those allowed.
        """
        return cls(
            operator_image=_required(environment, "OPERATOR_IMAGE"),
            runner_image=environment.get("RUNNER_IMAGE", "").strip(),
            image_pull_policy=_one_of(environment, "IMAGE_PULL_POLICY", cls.image_pull_policy, PULL_POLICIES),
            watch_namespace=environment.get("WATCH_NAMESPACE", ""),
            log_level=_one_of(environment, "LOG_LEVEL", cls.log_level, LOG_LEVELS),
            http_port=_count(environment, "HTTP_PORT", cls.http_port),
            startup_patience_seconds=_count(environment, "STARTUP_PATIENCE_SECONDS", cls.startup_patience_seconds),
            node_lost_seconds=_count(environment, "NODE_LOST_SECONDS", cls.node_lost_seconds),
            stop_key=environment.get("STOP_KEY", "").strip(),
            lease_namespace=environment.get("LEASE_NAMESPACE", "").strip(),
            lease_name=environment.get("LEASE_NAME", "").strip() or cls.lease_name,
            log_format=_one_of(environment, "LOG_FORMAT", cls.log_format, LOG_FORMATS),
            node_pools=_node_pools(_json(environment, "NODE_POOLS", "nodePools", "[]")),
            defaults=_run_defaults(_json(environment, "RUN_DEFAULTS", "defaults", "{}")),
        )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set: it names a container image")
    return value


def _one_of(environment: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = environment.get(name, "").strip() or default
    if value not in allowed:
        raise SettingsError(f"{name} is {value!r}: allowed are {', '.join(allowed)}")
    return value


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, "").strip() or str(default)
    if not value.isdecimal():
        raise SettingsError(f"{name} is {value!r}: a whole number is needed")
    return int(value)


def _json(environment: Mapping[str, str], name: str, path: str, default: str) -> "_Value":
    """What a variable holds as JSON; errors name `path`, the place in the chart's values that it was made from."""
    try:
        return _Value(path, json.loads(environment.get(name, "").strip() or default))
    except ValueError as error:
        raise SettingsError(f"{name} is no JSON ({error}): it must be the chart's value `{path}` as JSON") from error


def _node_pools(value: "_Value") -> dict[str, NodePool]:
    found: dict[str, NodePool] = {}
    for item in value.items():
        pool = _node_pool(item)
        if pool.name in found:
            raise item.at("name").wrong("another pool has it: give each pool a name of its own")
        found[pool.name] = pool
    return found


def _node_pool(value: "_Value") -> NodePool:
    value.must_only_have("name", "nodeSelector", "tolerations", "resourceName", "maxGPUsPerNode")
    return NodePool(
        name=value.at("name").text(_POOL_NAME, "use 1 to 63 small letters, digits and hyphens"),
        node_selector=value.at("nodeSelector").labels(),
        tolerations=tuple(_toleration(item) for item in value.at("tolerations").items()),
        resource_name=value.at("resourceName").text(
            _RESOURCE, f"name a resource, such as {GPU_RESOURCE}", GPU_RESOURCE
        ),
        max_gpus_per_node=value.at("maxGPUsPerNode").count_or_none(),
    )


def _toleration(value: "_Value") -> Mapping[str, Any]:
    """As Kubernetes writes it: what its values may be, the API server knows."""
    value.must_only_have("key", "operator", "value", "effect", "tolerationSeconds")
    return value.entries()


def _run_defaults(value: "_Value") -> RunDefaults:
    value.must_only_have("storageClassName", "deletionPolicy", "env", "caBundle", "huggingFaceCache")
    policy = value.at("deletionPolicy").text(
        "|".join(DeletionPolicy), f"allowed are {', '.join(DeletionPolicy)}", DeletionPolicy.RETAIN
    )
    cache, bundle = value.at("huggingFaceCache"), _ca_bundle(value.at("caBundle"))
    cache.must_only_have("claimName")
    return RunDefaults(
        storage_class_name=value.at("storageClassName").text(_OBJECT_NAME, "name a StorageClass"),
        deletion_policy=DeletionPolicy(policy),
        env=_variables(value.at("env"), bundle),
        ca_bundle=bundle,
        hub_cache_claim=cache.at("claimName").text(_OBJECT_NAME, "name a PersistentVolumeClaim"),
    )


def _ca_bundle(value: "_Value") -> CaBundle | None:
    value.must_only_have("configMap", "key")
    config_map = value.at("configMap").text(_OBJECT_NAME, "name a ConfigMap")
    key = value.at("key").text(CONFIG_KEY_PATTERN, "name a key of the ConfigMap", CaBundle.key)
    return CaBundle(config_map, key) if config_map else None


def _variables(value: "_Value", bundle: CaBundle | None) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for item in value.items():
        item.must_only_have("name", "value")
        place = item.at("name")
        name = place.text(_VARIABLE, "use letters, digits and underscores, no digit first")
        if name in found:
            raise place.wrong("it is set twice: remove one")
        if name == HUB_HOME:
            raise place.wrong("the operator sets it: for a shared cache use `defaults.huggingFaceCache`")
        if name in CA_VARIABLES and bundle:
            raise place.wrong("`defaults.caBundle` sets it: remove one of the two")
        if name in RESERVED_VARIABLES or name.startswith("TUNING_"):
            raise place.wrong("the operator sets it: remove it")
        found[name] = item.at("value").text()
    return found


@dataclass(frozen=True)
class _Value:
    """A part of a JSON document and its place there, which every error names. None is a part that is not there."""

    path: str
    content: Any

    def wrong(self, advice: str) -> SettingsError:
        """The error that says so."""
        return SettingsError(f"{self.path} is {json.dumps(self.content)}: {advice}")

    def entries(self) -> Mapping[str, Any]:
        """The entries of an object."""
        if self.content is None:
            return {}
        if not isinstance(self.content, dict):
            raise self.wrong("an object is needed")
        return self.content

    def must_only_have(self, *keys: str) -> None:
        """Refuse an object with another key."""
        for key in self.entries():
            if key not in keys:
                raise SettingsError(f"{self.path}.{key} is not known: known are {', '.join(keys)}")

    def at(self, key: str) -> "_Value":
        """The part under a key of an object."""
        return _Value(f"{self.path}.{key}", self.entries().get(key))

    def items(self) -> list["_Value"]:
        """The parts of a list."""
        if self.content is None:
            return []
        if not isinstance(self.content, list):
            raise self.wrong("a list is needed")
        return [_Value(f"{self.path}[{place}]", item) for place, item in enumerate(self.content)]

    def text(self, pattern: str = ".*", advice: str = "", default: str = "") -> str:
        """A text that matches the whole pattern; `advice` says what to write instead."""
        found = default if self.content is None else self.content
        if not isinstance(found, str):
            raise self.wrong("a text is needed: put it in quotes")
        if not re.fullmatch(pattern, found, re.DOTALL):
            raise _Value(self.path, found).wrong(advice)
        return found

    def labels(self) -> Mapping[str, str]:
        """The entries of an object of labels."""
        for key in self.entries():
            if not re.fullmatch(_LABEL_KEY, key):
                raise SettingsError(f"{self.path} has the key {json.dumps(key)}: {_LABEL_ADVICE}")
        return {key: self.at(key).text(_LABEL_VALUE, _LABEL_VALUE_ADVICE) for key in self.entries()}

    def count_or_none(self) -> int | None:
        """A whole number, 0 among them."""
        if self.content is None:
            return None
        if not isinstance(self.content, int) or isinstance(self.content, bool) or self.content < 0:
            raise self.wrong("a whole number is needed, not below 0")
        return self.content
