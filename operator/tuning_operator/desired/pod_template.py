"""The pod templates of an attempt as they are sent: what the operator builds with the run's `podTemplatePatch` in it.

Used by `raycluster`; `problems` is what acceptance asks before anything is made.
"""

from collections.abc import Mapping
from typing import Any

from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_cluster import PodSpec, WorkerSpec
from tuning_operator.desired import pods
from tuning_operator.desired.fragments import Manifest
from tuning_operator.desired.model_source import ModelSource
from tuning_operator.desired.patch import PatchRefused, merge
from tuning_operator.desired.patch_guard import faults
from tuning_operator.settings import Settings


def head(run: TuningRun, settings: Settings, attempt: int, source: ModelSource | None) -> Manifest:
    """Template of the head's pod.

    Raises:
        PatchRefused: the run's patch for the head is not allowed; `problems` tells before.
    """
    return _patched(pods.head(run, settings, attempt, source), run.spec.cluster.head.pod_template_patch)


def worker(run: TuningRun, settings: Settings, attempt: int, group: WorkerSpec, source: ModelSource | None) -> Manifest:
    """Template of the pods of a worker group.

    Raises:
        PatchRefused: the group's patch is not allowed; `problems` tells before.
    """
    return _patched(pods.worker(run, settings, attempt, group, source), group.pod_template_patch)


def problems(run: TuningRun, settings: Settings) -> tuple[str, ...]:
    """What is wrong with the patches of a run, each a sentence that says where and what to change.

    A patch for a pod whose node pool is not known is not looked at: the pool must be set right first.
    """
    cluster = run.spec.cluster
    # Which claim has the model of another run makes no difference here.
    source = ModelSource("", "", "model") if run.spec.model.run else None
    found: list[str] = []
    pairs: list[tuple[str, PodSpec]] = [("head", cluster.head)]
    pairs += [(f"workers[{group.name}]", group) for group in cluster.workers]
    for field, pod in pairs:
        if not pod.pod_template_patch or (pod.node_pool and pod.node_pool not in settings.node_pools):
            continue
        if isinstance(pod, WorkerSpec):
            template = pods.worker(run, settings, 1, pod, source)
        else:
            template = pods.head(run, settings, 1, source)
        place = f"spec.cluster.{field}.podTemplatePatch"
        refused = _faults(template, pod.pod_template_patch)
        found += [f"`{'.'.join((place, *fault.path))}` {fault.advice}" for fault in refused]
    return tuple(found)


def _faults(template: Manifest, patch: Mapping[str, Any]) -> list[PatchRefused]:
    try:
        return list(faults(template, merge(template, patch)))
    except PatchRefused as fault:
        return [fault]


def _patched(template: Manifest, patch: Mapping[str, Any]) -> Manifest:
    if not patch:
        return template
    made = merge(template, patch)
    for fault in faults(template, made):
        raise fault
    return made
