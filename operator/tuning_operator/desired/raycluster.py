"""The RayCluster of one attempt: a head that trains, and groups of workers if the run has any.

KubeRay 1.6 and 1.5 accept it and add what is not set here, `num-cpus` from the CPU request among it. The pods are in
`pods`, what a run changes in them is in `pod_template`.
"""

from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_cluster import PodSpec, WorkerSpec
from tuning_operator.desired import fragments, names, pod_template
from tuning_operator.desired.fragments import Manifest
from tuning_operator.desired.model_source import ModelSource
from tuning_operator.settings import Settings

# A head that has trained is not made anew inside the attempt: Ray's state is gone with it. Before that, a failed
# head pod is replaced, since its restart policy is Never. KubeRay 1.5 knows no such annotation and makes another head
# whenever one goes; the operator takes that for a lost attempt once there is a Job, and ends the run.
_CLUSTER_ANNOTATIONS = {"ray.io/disable-provisioned-head-restart": "true"}


def build(run: TuningRun, settings: Settings, attempt: int, source: ModelSource | None = None) -> Manifest:
    """The RayCluster of the attempt with this number.

    Args:
        run: the run.
        settings: of the installation.
        attempt: its number.
        source: the finished run that `spec.model.run` names, if it does.

    Raises:
        PatchRefused: a `podTemplatePatch` is not allowed; `Accepted` keeps such runs away.
        KeyError: a node pool is not known; `Accepted` keeps such runs away, too.
        ValueError: the run starts from the model of another one, and `source` is None.
    """
    workers = [_workers(run, settings, attempt, group, source) for group in run.spec.cluster.workers]
    return {
        "apiVersion": meta.RAY_API_VERSION,
        "kind": "RayCluster",
        "metadata": {
            "name": names.attempt(run, attempt),
            "namespace": run.namespace,
            "labels": fragments.labels(run, meta.COMPONENT_CLUSTER, attempt),
            "annotations": dict(_CLUSTER_ANNOTATIONS),
            "ownerReferences": [fragments.owner(run)],
        },
        "spec": {
            "rayVersion": run.spec.engine.ray_version,
            # Ray's API runs any code that it is sent.
            "authOptions": {"mode": "token"},
            "headGroupSpec": {
                "rayStartParams": _head_parameters(run),
                "template": pod_template.head(run, settings, attempt, source),
            },
            **({"workerGroupSpecs": workers} if workers else {}),
        },
    }


def _head_parameters(run: TuningRun) -> dict[str, str]:
    parameters = {"dashboard-host": "0.0.0.0", **_gpu_count(run.spec.cluster.head)}  # noqa: S104 - the Job's pod must reach it
    # With workers, Ray's own tasks of an agent go there: the head's cores are the trainer's.
    return parameters | ({"num-cpus": "0"} if run.spec.cluster.workers else {})


def _workers(
    run: TuningRun, settings: Settings, attempt: int, group: WorkerSpec, source: ModelSource | None
) -> Manifest:
    return {
        "groupName": group.name,
        # KubeRay wants all three.
        "replicas": group.replicas,
        "minReplicas": group.replicas,
        "maxReplicas": group.replicas,
        "rayStartParams": _gpu_count(group),
        "template": pod_template.worker(run, settings, attempt, group, source),
    }


def _gpu_count(pod: PodSpec) -> dict[str, str]:
    """KubeRay derives it from some names of resources only; a pool may have any."""
    return {"num-gpus": str(pod.gpus)} if pod.gpus else {}
