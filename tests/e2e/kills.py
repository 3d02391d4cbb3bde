"""The table of kills: what happens to a run, when, and what has to become of it.

`test_kills` makes a test of every row. What happens is in `accidents`, how it is looked at in `scene`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.cluster.control_plane import API_SERVER, ETCD
from tests.cluster.node import CONTAINERD, KUBELET
from tests.e2e import accidents
from tests.e2e.accidents import a_paced_run
from tests.e2e.runs import with_workflow
from tests.e2e.scene import Scene
from tests.harness import Object, sample

SUCCEEDED, FAILED, GONE = "Succeeded", "Failed", "gone"
APPLIED, STARTING, RUNNING = "applied", "starting", "running"
"""When something happens: as soon as the run is there, its head pod is there, its third step is done."""
IMPATIENT = {"defaults.startupPatienceSeconds": "20", "defaults.nodeLostSeconds": "20"}
"""Values of the chart with which an installation gives up sooner than anybody wants outside a test."""


def nothing(scene: Scene) -> None:
    """The run itself is the accident."""


@dataclass(frozen=True)
class Kill:
    """A row of the table: what happens to a run, and the end that it has to come to."""

    name: str
    act: Callable[[Scene], None] = nothing
    when: str = RUNNING
    phase: str = SUCCEEDED
    causes: tuple[str, ...] = ()
    """Why its attempts failed, in their order."""
    attempts: int = 1
    counted: int = 0
    """Failed attempts that count for `retry.maxAttempts`."""
    saves: bool = False
    """Whether the training is asked to stop before it goes, so that no finished step is lost."""
    says: str = ""
    """Words that the status or its history must have."""
    run: Callable[[Scene], list[Object]] = a_paced_run
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of the chart that the row needs."""
    seconds: float = 300
    """How long the run may take from there on."""
    often: bool = False
    """Whether it is one of the eight of every CI run."""


def _with(**spec: Any) -> Callable[[Scene], list[Object]]:
    return lambda scene: a_paced_run(scene, **spec)


def _without(*processes: str, seconds: float) -> Callable[[Scene], None]:
    return lambda scene: accidents.stop(scene, *processes, seconds=seconds)


def _with_workflow(file: str, **spec: Any) -> Callable[[Scene], list[Object]]:
    return lambda scene: with_workflow(a_paced_run(scene, **spec)[-1], file)


def _with_workers(scene: Scene) -> list[Object]:
    """With the worker pods of the sample that has some."""
    (example,) = sample("episode-workers", None)
    cluster = example["spec"]["cluster"]
    for pod in (cluster["head"], *cluster["workers"]):
        pod["cpu"] = "300m"  # all three fit on a machine with two cores
    return a_paced_run(scene, steps=80, cluster=cluster)


def _with_wrong_entry_point(scene: Scene) -> list[Object]:
    objects = a_paced_run(scene)
    objects[-1]["spec"]["workflow"]["entrypoint"] = "paced:absent"
    return objects


def _with_missing_image(scene: Scene) -> list[Object]:
    objects = a_paced_run(scene)
    registry = scene.here.images["tiny"].split("/")[0]
    objects[-1]["spec"]["workflow"]["image"] = f"{registry}/agent-tuning/absent:1"
    return objects


def _with_short_toleration(scene: Scene) -> list[Object]:
    objects = a_paced_run(scene, steps=40, pace=2)
    key = "node.kubernetes.io/unreachable"
    toleration = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
    objects[-1]["spec"]["cluster"]["head"]["tolerations"] = [toleration]
    return objects


def _two_on_one_claim(scene: Scene) -> list[Object]:
    volume = {"volume": {"claimName": scene.name}}
    other = Scene(scene.here, scene.full, f"{scene.name}-too", scene.namespace)
    scene.undo.callback(scene.kubectl, "delete", "pvc", scene.name, "--wait=false")
    runs = [item for each in (scene, other) for item in a_paced_run(each, steps=8, checkpoint=volume)]
    for run in runs:
        if run["kind"] == "TuningRun":
            run["spec"]["cluster"] = {"head": {"cpu": "500m", "memory": "4Gi"}}
    return [accidents.a_claim(scene.name), *runs]


def _end_of_the_other(scene: Scene) -> None:
    other = Scene(scene.here, scene.full, f"{scene.name}-too", scene.namespace)
    run = other.end(240)
    assert run["status"]["phase"] == SUCCEEDED, run["status"]
    mine, its = scene.folder, other.folder
    assert mine is not None
    assert its is not None
    assert mine != its
    assert mine.parent == its.parent
    assert {step.number for step in other.steps()} == set(range(1, 9))
    accidents.delete_run(other)


def _deleted(phase: str, bring_about: Callable[[Scene], None] = nothing, **row: Any) -> Kill:
    def act(scene: Scene) -> None:
        bring_about(scene)
        scene.wait_for_phase(phase)
        accidents.delete_run(scene)

    return Kill(f"run-deleted-while-{phase.lower()}", act, phase=GONE, **row)


def _delete_namespace(scene: Scene) -> None:
    scene.here.cluster.kubectl("delete", "namespace", scene.namespace, "--wait=false")


def _lose_node(scene: Scene) -> None:
    accidents.lose_node_until_retried(scene, KUBELET, CONTAINERD)


_LOST_HEAD: dict[str, Any] = {"causes": ("HeadLost",), "attempts": 2, "counted": 1}
_SLOW = {"backoffSeconds": 300}

KILLS = (
    # What is taken away by hand.
    Kill("head-deleted-while-starting", accidents.delete_head, STARTING),
    Kill("head-deleted-while-running", accidents.delete_head, saves=True, often=True, **_LOST_HEAD),
    Kill("ray-container-killed", accidents.kill_ray_container, **_LOST_HEAD),
    Kill("worker-deleted", accidents.delete_worker, run=_with_workers, often=True),
    Kill("driver-pod-deleted", accidents.delete_driver_pod, often=True),
    Kill("job-deleted", accidents.delete_job, often=True),
    Kill("raycluster-deleted", accidents.delete_cluster, **_LOST_HEAD),
    Kill(
        "runner-out-of-memory",
        accidents.exhaust_memory,
        phase=FAILED,
        causes=("OutOfMemory",),
        counted=1,
        says="memory",
        run=_with(steps=60),
    ),
    Kill("node-drained", accidents.drain, causes=("Evicted",), attempts=2, saves=True, often=True),
    # The cluster's own processes.
    Kill("operator-killed", accidents.kill_leader_and_measure, often=True),
    Kill("kube-apiserver-restarted", _without(API_SERVER, seconds=5), often=True),
    Kill("etcd-restarted", _without(ETCD, seconds=5)),
    Kill("kuberay-down-for-a-minute", accidents.stop_kuberay),
    Kill("kuberay-down-at-the-start", partial(accidents.stop_kuberay, seconds=30), APPLIED),
    Kill("kubelet-stopped-for-two-minutes", _without(KUBELET, seconds=120), run=_with(steps=40)),
    Kill(
        "node-lost",
        _lose_node,
        causes=("NodeLost",),
        attempts=2,
        run=_with_short_toleration,
        values=IMPATIENT,
        seconds=360,
    ),
    # What is not there.
    Kill(
        "image-missing",
        when=APPLIED,
        phase=FAILED,
        causes=("ImagePullFailed",),
        counted=1,
        says="agent-tuning/absent",
        run=_with_missing_image,
        values=IMPATIENT,
    ),
    Kill(
        "gpu-that-comes-late",
        accidents.offer_a_gpu,
        APPLIED,
        run=_with(cluster={"head": {"cpu": "1", "memory": "4Gi", "gpus": 1}}),
    ),
    Kill(
        "volume-full",
        accidents.fill_volume,
        phase=FAILED,
        causes=("StorageFailed", "StorageFailed"),
        attempts=2,
        counted=2,
        says="No space left",
        run=partial(accidents.a_run_on_a_small_volume, retry={"maxAttempts": 2, "backoffSeconds": 1}),
    ),
    Kill(
        "volume-full-and-freed",
        accidents.fill_volume_and_free_it,
        causes=("StorageFailed",),
        attempts=2,
        counted=1,
        run=accidents.a_run_on_a_small_volume,
    ),
    Kill(
        "dataset-removed",
        accidents.remove_dataset_and_head,
        phase=FAILED,
        causes=("HeadLost", "DatasetInvalid"),
        attempts=2,
        counted=2,
        saves=True,
        says="tasks.jsonl",
        run=accidents.a_run_with_its_dataset_on_a_claim,
    ),
    # The user's own code.
    Kill(
        "wrong-entry-point",
        when=APPLIED,
        phase=FAILED,
        causes=("ConfigInvalid",),
        counted=1,
        says="absent",
        run=_with_wrong_entry_point,
    ),
    Kill(
        "judge-returns-nan",
        when=APPLIED,
        phase=FAILED,
        causes=("WorkflowError",),
        counted=1,
        says="nan",
        run=_with_workflow("judge_nan.py"),
    ),
    Kill(
        "judge-hangs",
        when=APPLIED,
        phase=FAILED,
        causes=("JudgeUnavailable", "JudgeUnavailable"),
        attempts=2,
        counted=2,
        run=_with_workflow(
            "judge_hangs.py",
            rollout={"limits": {"turns": 4, "seconds": 3}, "maxAttempts": 1},
            retry={"maxAttempts": 2, "backoffSeconds": 1},
        ),
    ),
    # What its owner does to it.
    Kill("suspended-three-times", accidents.suspend_three_times, attempts=4, saves=True, often=True),
    Kill("two-runs-on-one-claim", _end_of_the_other, APPLIED, run=_two_on_one_claim),
    Kill("run-recreated-at-once", accidents.recreate),
    Kill("namespace-deleted", _delete_namespace, phase=GONE),
    Kill("run-deleted-at-once", accidents.delete_run, APPLIED, GONE),
    _deleted("Starting", when=APPLIED),
    _deleted("Running"),
    _deleted("Retrying", accidents.delete_head, run=_with(retry=_SLOW)),
    _deleted("Suspending", accidents.suspend),
    _deleted("Suspended", accidents.suspend),
    _deleted(
        "Rejected", when=APPLIED, run=_with(cluster={"head": {"cpu": "1", "memory": "4Gi", "nodePool": "absent"}})
    ),
    _deleted("Succeeded", when=APPLIED, run=_with(steps=1)),
    _deleted("Failed", when=APPLIED, run=_with_wrong_entry_point),
)
