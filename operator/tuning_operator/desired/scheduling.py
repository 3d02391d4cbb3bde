"""On which nodes the pods run: a run's own wishes on top of what its node pool brings.

Used by the builders of pods. What the pools are, the installation's settings say.
"""

from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_cluster import PodSpec
from tuning_operator.api.v1alpha1_scheduling import Affinity, Toleration
from tuning_operator.desired.fragments import Manifest
from tuning_operator.settings import GPU_RESOURCE, NodePool, Settings


def pool(pod: PodSpec, settings: Settings) -> NodePool | None:
    """The node pool that a pod names, None if it names none.

    Raises:
        KeyError: the installation has no such pool; `Accepted` keeps such runs away.
    """
    return settings.node_pools[pod.node_pool] if pod.node_pool else None


def gpu_resource(pod: PodSpec, settings: Settings) -> str:
    """What a pod asks for when it wants a GPU."""
    found = pool(pod, settings)
    return found.resource_name if found else GPU_RESOURCE


def placement(run: TuningRun, pod: PodSpec, settings: Settings) -> Manifest:
    """The parts of a pod spec that choose nodes, rank and container runtime; those that say nothing are left out."""
    found = pool(pod, settings)
    parts: Manifest = {
        "nodeSelector": {**(found.node_selector if found else {}), **pod.node_selector},
        "tolerations": [
            *(dict(toleration) for toleration in (found.tolerations if found else ())),
            *(_as_written(toleration) for toleration in pod.tolerations),
        ],
        "affinity": _as_written(pod.affinity) if pod.affinity else {},
        "priorityClassName": pod.priority_class_name or run.spec.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
    }
    return {key: value for key, value in parts.items() if value}


def _as_written(value: Toleration | Affinity) -> Manifest:
    """As Kubernetes has it: an empty selector means all, one that was not written means none."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
