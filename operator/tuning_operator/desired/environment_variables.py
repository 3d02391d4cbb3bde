"""Variables of the Ray containers: the installation's, the run's own, and those that the operator needs.

Used by the builders of pods. Later ones win: what every run gets, then `workflow.env`, then ours. `workflow.envFrom`
loses to all of them, as Kubernetes has it.
"""

from collections.abc import Collection, Mapping

from tuning_contract import environment
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_cluster import PodSpec
from tuning_operator.api.v1alpha1_execution import EnvironmentVariable
from tuning_operator.api.v1alpha1_sources import KeyReference, VariablesSource
from tuning_operator.desired import sources
from tuning_operator.desired.fragments import Manifest
from tuning_operator.settings import CaBundle, Settings

_NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""NVIDIA's container runtime shows every GPU of the node to an image that is built on CUDA unless it is told not to:
a pod that asks for none would then train on one that the scheduler gives to others."""

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""Of a run that has all it needs: the libraries of the hub then look into the pod's own files only, and do not wait for
a hub that a cluster may not reach."""

_PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}
_NO_PROXY = "NO_PROXY"
_INSIDE = "localhost,127.0.0.1,::1,.svc,.cluster.local"
"""Hosts that no proxy outside the cluster can reach."""


def plain(values: Mapping[str, str]) -> list[Manifest]:
    """A container's `env` in the order given, each value taken literally."""
    return [_plain(name, value) for name, value in values.items()]


def authorities(bundle: CaBundle | None) -> dict[str, str]:
    """Where Python and its libraries find the installation's authorities."""
    return {name: f"{environment.CA_MOUNT}/{bundle.key}" for name in environment.CA_VARIABLES} if bundle else {}


def of_ray(
    run: TuningRun, settings: Settings, attempt: int, pod: PodSpec, tokens: Mapping[str, KeyReference]
) -> list[Manifest]:
    """`env` of the Ray container of a head or worker pod.

    Args:
        run: the run.
        settings: of the installation.
        attempt: its number.
        pod: the head or the worker group.
        tokens: Secrets, by the name of the variable that gets each.
    """
    every = (_NO_GPU if pod.gpus == 0 else {}) | ({} if sources.uses_hub(run) else _OFFLINE)
    every = every | authorities(settings.defaults.ca_bundle) | dict(settings.defaults.env)
    entries = {entry["name"]: entry for entry in plain(every)}
    entries |= {entry.name: _own(entry) for entry in run.spec.workflow.env}
    entries |= {entry["name"]: entry for entry in plain(_past_the_proxy(entries.keys()))}
    entries |= {entry["name"]: entry for entry in plain(_ours(run, settings, attempt))}
    entries |= {name: _from_secret(name, reference) for name, reference in tokens.items()}
    return list(entries.values())


def from_objects(run: TuningRun) -> list[Manifest]:
    """`envFrom` of the Ray containers."""
    return [_whole(source) for source in run.spec.workflow.env_from]


def _past_the_proxy(given: Collection[str]) -> dict[str, str]:
    """What a proxy must not be asked for, where there is one and nobody has said it.

    Libraries read either spelling, and most let the small one win: both are set, or, beside one that is given, none.
    """
    names = {name.upper() for name in given}
    return {} if names.isdisjoint(_PROXIES) or _NO_PROXY in names else {_NO_PROXY: _INSIDE, _NO_PROXY.lower(): _INSIDE}


def _ours(run: TuningRun, settings: Settings, attempt: int) -> dict[str, str]:
    ours = {
        environment.RUN_DOCUMENT: environment.RUN_DOCUMENT_PATH,
        # The hook that runs before the pod goes is no child of the driver, which tells them the runner.
        environment.ATTEMPT: str(attempt),
        environment.STOP_GRACE_SECONDS: str(run.spec.deadlines.stop_grace_seconds),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if limit := run.spec.deadlines.final_evaluation_seconds:
        ours[environment.FINAL_EVALUATION_SECONDS] = str(limit)
    if run.spec.workflow.source:
        ours["PYTHONPATH"] = environment.SOURCE_MOUNT
    if sources.uses_hub(run):
        shared = settings.defaults.hub_cache_claim
        ours[environment.HUB_HOME] = environment.HUB_CACHE_MOUNT if shared else environment.HUB_CACHE_FOLDER
    return ours


def _plain(name: str, value: str) -> Manifest:
    # Kubernetes replaces $(NAME) in a value; a doubled $ is a plain one.
    return {"name": name, "value": value.replace("$", "$$")}


def _own(entry: EnvironmentVariable) -> Manifest:
    """A variable of `workflow.env`; the API server has checked that it has exactly one source."""
    source = entry.value_from
    if source is None:
        return _plain(entry.name, entry.value or "")
    if source.secret_key_ref:
        return _from_secret(entry.name, source.secret_key_ref)
    reference = source.config_map_key_ref
    key = {"name": reference.name, "key": reference.key} if reference else {}
    return {"name": entry.name, "valueFrom": {"configMapKeyRef": key}}


def _from_secret(name: str, reference: KeyReference) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": reference.name, "key": reference.key}}}


def _whole(source: VariablesSource) -> Manifest:
    entry: Manifest = {"prefix": source.prefix} if source.prefix else {}
    if source.secret_ref:
        entry["secretRef"] = {"name": source.secret_ref.name}
    if source.config_map_ref:
        entry["configMapRef"] = {"name": source.config_map_ref.name}
    return entry
