"""Volumes of the pods and where their containers see them.

Used by the builders of pods. A claim is one volume of a pod, however often it is mounted: with two, some drivers
never finish mounting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuning_contract import environment
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_cluster import PodSpec, VolumeSpec
from tuning_operator.desired import names, sources
from tuning_operator.desired.fragments import Manifest
from tuning_operator.desired.model_source import ModelSource
from tuning_operator.settings import CaBundle, Settings

USER_PREFIX = "user-"
"""Begins the names of the volumes that a run adds, so that none is called like one of ours."""


@dataclass(frozen=True)
class Mount:
    """A volume of a pod and where a container sees it."""

    name: str
    source: Mapping[str, Any]
    """The volume's source, such as `{"emptyDir": {}}`."""
    path: str
    read_only: bool = True

    @property
    def claim(self) -> str | None:
        """Name of the claim that it is, if it is one."""
        found = self.source.get("persistentVolumeClaim")
        return found["claimName"] if found else None

    def volume(self) -> Manifest:
        """Entry of `spec.volumes`."""
        return {"name": self.name, **self.source}

    def volume_mount(self) -> Manifest:
        """Entry of `volumeMounts`."""
        mount: Manifest = {"name": self.name, "mountPath": self.path}
        return mount | ({"readOnly": True} if self.read_only else {})


def volumes(mounts: Iterable[Mount]) -> list[Manifest]:
    """A pod's `volumes`: each once."""
    found: dict[str, Manifest] = {}
    for mount in mounts:
        found.setdefault(mount.name, mount.volume())
    return list(found.values())


def volume_mounts(mounts: Iterable[Mount]) -> list[Manifest]:
    """A container's `volumeMounts`."""
    return [mount.volume_mount() for mount in mounts]


def run_document(run: TuningRun) -> Mount:
    """run.json."""
    return _config_map("run", names.child(run), environment.CONFIG_MOUNT)


def of_sidecar(run: TuningRun, settings: Settings) -> list[Mount]:
    """What the sidecar sees."""
    return [run_document(run), _checkpoints(run), *_authorities(settings.defaults.ca_bundle)]


def of_ray(run: TuningRun, settings: Settings, pod: PodSpec, source: ModelSource | None) -> list[Mount]:
    """What the Ray container of a head or worker pod sees."""
    mounts = [
        run_document(run),
        _checkpoints(run),
        _shared_memory(pod.shared_memory),
        *_config_maps(run),
        *(
            _claim(f"source-{place}", claim, sources.mount_path(claim))
            for place, claim in enumerate(sources.claims(run, source))
        ),
        *_authorities(settings.defaults.ca_bundle),
        *(_added(volume) for volume in pod.volumes),
    ]
    if settings.defaults.hub_cache_claim and sources.uses_hub(run):
        cache = settings.defaults.hub_cache_claim
        mounts.append(_claim("hub-cache", cache, environment.HUB_CACHE_MOUNT, read_only=False))
    return _one_volume_per_claim(mounts)


def _one_volume_per_claim(mounts: Iterable[Mount]) -> list[Mount]:
    """The same mounts, those of one claim all by the volume that names it first."""
    first: dict[str, str] = {}
    return [
        replace(mount, name=first.setdefault(mount.claim, mount.name)) if mount.claim else mount for mount in mounts
    ]


def _checkpoints(run: TuningRun) -> Mount:
    return _claim("checkpoints", names.claim(run), environment.VOLUME_MOUNT, read_only=False)


def _shared_memory(size: str) -> Mount:
    """Memory for Ray's object store: a container's own has 64 MiB."""
    return Mount("shared-memory", {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, "/dev/shm", read_only=False)  # noqa: S108


def _authorities(bundle: CaBundle | None) -> list[Mount]:
    return [_config_map("certificate-authorities", bundle.config_map, environment.CA_MOUNT)] if bundle else []


def _config_maps(run: TuningRun) -> list[Mount]:
    """The ConfigMaps that the spec names: source, chat template, datasets."""
    found = []
    if run.spec.workflow.source:
        found.append(_config_map("source", run.spec.workflow.source.config_map.name, environment.SOURCE_MOUNT))
    if run.spec.model.chat_template:
        name = run.spec.model.chat_template.config_map.name
        found.append(_config_map("chat-template", name, environment.TEMPLATE_MOUNT))
    if run.spec.dataset.train.config_map:
        path = f"{environment.DATASETS_MOUNT}/train"
        found.append(_config_map("dataset-train", run.spec.dataset.train.config_map.name, path))
    for place, evaluation in enumerate(run.spec.dataset.evaluation):
        if evaluation.config_map:
            path = f"{environment.DATASETS_MOUNT}/{evaluation.name}"
            # By place, since the name of a set may be as long as that of a volume.
            found.append(_config_map(f"dataset-evaluation-{place}", evaluation.config_map.name, path))
    return found


def _added(volume: VolumeSpec) -> Mount:
    """A volume of the run's own; the API server has checked that exactly one source is set."""
    source: Manifest = {}
    if volume.claim_name:
        source["persistentVolumeClaim"] = {"claimName": volume.claim_name}
    if volume.config_map:
        source["configMap"] = {"name": volume.config_map.name}
    if volume.secret:
        source["secret"] = {"secretName": volume.secret.secret_name}
    if volume.empty_dir:
        source["emptyDir"] = {"sizeLimit": volume.empty_dir.size_limit}
    return Mount(f"{USER_PREFIX}{volume.name}", source, volume.mount_path, volume.mounted_read_only)


def _claim(name: str, claim: str, path: str, *, read_only: bool = True) -> Mount:
    return Mount(name, {"persistentVolumeClaim": {"claimName": claim}}, path, read_only)


def _config_map(name: str, config_map: str, path: str) -> Mount:
    return Mount(name, {"configMap": {"name": config_map}}, path)
