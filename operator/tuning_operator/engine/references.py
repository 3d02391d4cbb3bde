"""What a run refers to that somebody else makes: ConfigMaps and claims, each with the field that names it.

Used by the acceptance checks and by `cluster.observe`, which looks the claims up. Secrets are not here: they are never
read, and the kubelet's own words tell of a missing one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_cluster import VolumeSpec
from tuning_operator.desired import sources
from tuning_operator.desired.model_source import ModelSource
from tuning_operator.settings import Settings

HEAD = "head"
"""Key of the head in `pods_of`."""


@dataclass(frozen=True, slots=True)
class ConfigMapUse:
    """One ConfigMap that the pods cannot start without."""

    user: str
    """The field that names it, as a user would look for it."""
    name: str
    key: str = ""
    """Key that must be there; empty when any will do."""


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """One claim that pods mount."""

    user: str
    """The field that names it, as a user would look for it."""
    name: str
    groups: tuple[str, ...]
    """Groups of pods that mount it: keys of `pods_of`."""
    writes: bool = False


def pods_of(run: TuningRun) -> Mapping[str, int]:
    """Number of pods in each group: the head, and the worker groups as `workers[name]`."""
    workers = {f"workers[{group.name}]": group.replicas for group in run.spec.cluster.workers}
    return {HEAD: 1} | workers


def config_maps(run: TuningRun, settings: Settings) -> tuple[ConfigMapUse, ...]:
    """All ConfigMaps that the run needs."""
    bundle = settings.defaults.ca_bundle
    user = "the installation's `defaults.caBundle`"
    ours = [ConfigMapUse(user, bundle.config_map, bundle.key)] if bundle else []
    return (*_files(run), *_variables(run), *ours)


def claims(run: TuningRun, settings: Settings, source: ModelSource | None) -> tuple[ClaimUse, ...]:
    """All claims that must be there before the run: without the one that is made for it.

    Args:
        run: Whose.
        settings: The installation's, which may have a shared cache.
        source: The run whose model is wanted, once it is known.
    """
    return tuple(_claims(run, settings, source))


def _files(run: TuningRun) -> Iterator[ConfigMapUse]:
    spec = run.spec
    if spec.model.chat_template:
        template = spec.model.chat_template.config_map
        yield ConfigMapUse("`model.chatTemplate`", template.name, template.key)
    if spec.dataset.train.config_map:
        yield ConfigMapUse("`dataset.train`", spec.dataset.train.config_map.name, spec.dataset.train.config_map.key)
    for held_out in spec.dataset.evaluation:
        if held_out.config_map:
            user = f"`dataset.evaluation[{held_out.name}]`"
            yield ConfigMapUse(user, held_out.config_map.name, held_out.config_map.key)
    if spec.workflow.source:
        yield ConfigMapUse("`workflow.source`", spec.workflow.source.config_map.name)
    for user, _, volume in _volumes(run):
        if volume.config_map:
            yield ConfigMapUse(user, volume.config_map.name)


def _variables(run: TuningRun) -> Iterator[ConfigMapUse]:
    for variable in run.spec.workflow.env:
        reference = variable.value_from.config_map_key_ref if variable.value_from else None
        if reference:
            yield ConfigMapUse(f"`workflow.env[{variable.name}]`", reference.name, reference.key)
    for origin in run.spec.workflow.env_from:
        if origin.config_map_ref:
            yield ConfigMapUse("`workflow.envFrom`", origin.config_map_ref.name)


def _claims(run: TuningRun, settings: Settings, source: ModelSource | None) -> Iterator[ClaimUse]:
    spec, everywhere = run.spec, tuple(pods_of(run))
    yield from _checkpoints(run, everywhere)
    if spec.model.volume:
        yield ClaimUse("`model.volume`", spec.model.volume.claim_name, everywhere)
    if source:
        yield ClaimUse("`model.run`", source.claim_name, everywhere)
    if spec.dataset.train.volume:
        yield ClaimUse("`dataset.train`", spec.dataset.train.volume.claim_name, everywhere)
    for held_out in spec.dataset.evaluation:
        if held_out.volume:
            yield ClaimUse(f"`dataset.evaluation[{held_out.name}]`", held_out.volume.claim_name, everywhere)
    for user, group, volume in _volumes(run):
        if volume.claim_name:
            yield ClaimUse(user, volume.claim_name, (group,), writes=not volume.mounted_read_only)
    cache = settings.defaults.hub_cache_claim
    if cache and sources.uses_hub(run):
        yield ClaimUse("the installation's `defaults.huggingFaceCache`", cache, everywhere, writes=True)


def _checkpoints(run: TuningRun, everywhere: tuple[str, ...]) -> Iterator[ClaimUse]:
    """Where the run's own are written, and another run's are read."""
    own, other = run.spec.checkpoint.volume.claim_name, run.spec.checkpoint.resume_from
    if own:
        yield ClaimUse("`checkpoint.volume`", own, everywhere, writes=True)
    if other:
        yield ClaimUse("`checkpoint.resumeFrom`", other.claim_name, everywhere)


def _volumes(run: TuningRun) -> Iterator[tuple[str, str, VolumeSpec]]:
    """The field, the group of pods and the volume, for every further volume."""
    cluster = run.spec.cluster
    groups = [(HEAD, cluster.head), *((f"workers[{group.name}]", group) for group in cluster.workers)]
    for name, pod in groups:
        for volume in pod.volumes:
            yield f"`cluster.{name}.volumes[{volume.name}]`", name, volume
