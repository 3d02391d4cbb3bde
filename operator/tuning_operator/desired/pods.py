"""Pod templates of the Ray cluster: the head, which trains with the metrics sidecar beside it, and its workers.

Used by `pod_template`, which merges a run's patch into them. KubeRay adds what is not set here: the command, the
token of the cluster; to a worker an init container, too, that waits for the head with the Ray container's image,
variables, mounts and security context, so that a restricted namespace takes it.
"""

from collections.abc import Mapping

from tuning_contract import environment, stopping
from tuning_contract.algorithms import ENGINES
from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_cluster import PodSpec, WorkerSpec
from tuning_operator.api.v1alpha1_sources import KeyReference
from tuning_operator.desired import environment_variables, fragments, mounts, scheduling, sources
from tuning_operator.desired.fragments import Manifest
from tuning_operator.desired.model_source import ModelSource
from tuning_operator.desired.mounts import Mount
from tuning_operator.settings import Settings

RAY_CONTAINER = "ray-head"
RAY_WORKER_CONTAINER = "ray-worker"
SIDECAR_CONTAINER = "tuning-sidecar"
AGENT_PORT = 52365
"""Port of Ray's dashboard agent, which answers for the node's and the head's health since Ray 2.53."""
STOP_COMMAND = ("python", "-m", "tuning_runner.stop_hook")
"""Asks the training to save and waits until it has; the kubelet runs it before it stops the Ray container."""
AFTER_STOP_SECONDS = 30
"""Of a pod's grace, what is left when the training has used up its own: Ray ends, the sidecar pushes what it has."""

_ANNOTATIONS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}


def head(run: TuningRun, settings: Settings, attempt: int, source: ModelSource | None) -> Manifest:
    """Template of the head's pod. Only it gets tokens of the hub: it alone downloads."""
    wanted = run.spec.cluster.head
    seen = mounts.of_ray(run, settings, wanted, source)
    container = _ray(run, settings, attempt, wanted, seen, sources.tokens(run))
    return {
        "metadata": _metadata(run, meta.COMPONENT_HEAD, attempt),
        "spec": {
            **_spec(run, settings, wanted),
            **_grace(run),
            "initContainers": [_sidecar(run, settings, attempt)],
            # KubeRay takes the first container for Ray's.
            "containers": [{"name": RAY_CONTAINER, **container, **_hook()}],
            "volumes": mounts.volumes(seen),
        },
    }


def worker(run: TuningRun, settings: Settings, attempt: int, group: WorkerSpec, source: ModelSource | None) -> Manifest:
    """Template of the pods of a worker group: the same files and variables as the head's, no sidecar.

    Those that train are waited for like the head; episodes alone can run again elsewhere.
    """
    seen = mounts.of_ray(run, settings, group, source)
    trains = ENGINES[run.spec.engine.type].trains_on_workers
    container = _ray(run, settings, attempt, group, seen, {}) | (_hook() if trains else {})
    return {
        "metadata": _metadata(run, meta.COMPONENT_WORKER, attempt),
        "spec": {
            **_spec(run, settings, group),
            **(_grace(run) if trains else {}),
            "containers": [{"name": RAY_WORKER_CONTAINER, **container}],
            "volumes": mounts.volumes(seen),
        },
    }


def _metadata(run: TuningRun, component: str, attempt: int) -> Manifest:
    return fragments.pod_metadata(run, fragments.labels(run, component, attempt), _ANNOTATIONS)


def _spec(run: TuningRun, settings: Settings, pod: PodSpec) -> Manifest:
    """What head and workers have in common."""
    return {
        **fragments.identity(run),
        **scheduling.placement(run, pod, settings),
        # Of a Ray container that ended nothing is worth keeping: KubeRay deletes the pod, whose last state says why,
        # and makes another, which may go to a better node and waits for the head as the first one did.
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": fragments.pod_security(),
    }


def _grace(run: TuningRun) -> Manifest:
    """How long a pod may take to go; the kubelet counts from the beginning of the hook."""
    return {"terminationGracePeriodSeconds": run.spec.deadlines.stop_grace_seconds + AFTER_STOP_SECONDS}


def _hook() -> Manifest:
    """So that whatever takes the pod away, be it a drain, a preemption or the end of the cluster, loses no step."""
    return {"lifecycle": {"preStop": {"exec": {"command": list(STOP_COMMAND)}}}}


def _ray(
    run: TuningRun,
    settings: Settings,
    attempt: int,
    pod: PodSpec,
    seen: list[Mount],
    tokens: Mapping[str, KeyReference],
) -> Manifest:
    """The Ray container without its name."""
    from_objects = environment_variables.from_objects(run)
    return {
        "image": run.spec.workflow.image or settings.runner_image,
        "imagePullPolicy": settings.image_pull_policy,
        "env": environment_variables.of_ray(run, settings, attempt, pod, tokens),
        **({"envFrom": from_objects} if from_objects else {}),
        "resources": fragments.resources(pod.cpu, pod.memory, {scheduling.gpu_resource(pod, settings): pod.gpus}),
        "securityContext": fragments.container_security(read_only_root=False),
        # KubeRay's own probe asks the same from the tenth second on, which alone doubles the time to a ready head.
        "readinessProbe": _probe(delay=1, period=1, failures=10),
        # As KubeRay 1.6's own. That of 1.5 runs wget in the container, which obeys a proxy that the run's variables
        # name: it would kill every such pod after ten minutes.
        "livenessProbe": _probe(delay=30, period=5, failures=120),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts.volume_mounts(seen),
    }


def _probe(*, delay: int, period: int, failures: int) -> Manifest:
    """The kubelet asks Ray's agent for its health; delay and period in seconds."""
    return {
        "httpGet": {"path": "/api/healthz", "port": AGENT_PORT},
        "initialDelaySeconds": delay,
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _sidecar(run: TuningRun, settings: Settings, attempt: int) -> Manifest:
    """A native sidecar: it starts before Ray and is stopped after it, so that it sees the last step."""
    values = {environment.RUN_DOCUMENT: environment.RUN_DOCUMENT_PATH, environment.ATTEMPT: str(attempt)}
    if settings.stop_key:
        token = stopping.stop_token(settings.stop_key, run.uid, attempt)
        values[environment.STOP_TOKEN_DIGEST] = stopping.token_digest(token)
    # It may push to a receiver whose certificate only the installation's authorities know.
    values |= environment_variables.authorities(settings.defaults.ca_bundle)
    return {
        "name": SIDECAR_CONTAINER,
        "image": settings.operator_image,
        "imagePullPolicy": settings.image_pull_policy,
        "restartPolicy": "Always",
        "command": ["python", "-m", "tuning_sidecar"],
        "env": environment_variables.plain(values),
        "ports": [{"name": environment.SIDECAR_PORT_NAME, "containerPort": environment.SIDECAR_PORT}],
        "resources": fragments.resources("50m", "128Mi"),
        "securityContext": fragments.container_security(read_only_root=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts.volume_mounts(mounts.of_sidecar(run, settings)),
    }
