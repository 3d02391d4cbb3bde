"""What may happen to a run: functions that do it to a scene, and the runs that they are done to.

Called by `kills`, whose table says when each happens and what has to become of the run, and by `soak`, which draws
some of them by lot.
"""

import json
import os
import signal
import time
from typing import Any

from tests.cluster.node import NODE
from tests.cluster.outages import kill_all, without
from tests.cluster.small_volume import SmallVolume, small_volume
from tests.e2e.runs import a_short_run, with_workflow
from tests.e2e.scene import Scene, names
from tests.harness import OPERATOR_NAMESPACE, RELEASE, Object, wait_for

SAVE_EVERY = 4
STEPS = 20
KUBERAY = ("deployment/kuberay-operator", "--namespace", "ray-system")
GPU = "nvidia.com/gpu"

# Many small processes, since the kernel ends the largest one first.
_EXHAUST = """
import os, pathlib, select, signal

def field(pid, name):
    try:
        return pathlib.Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""

pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and b"-m\\0tuning_runner.training" in field(pid, "cmdline")]
(trainer,) = pids
ready, done = os.pipe()
takers = []
# One after the other, and back at once: more than one piece too many would end others, too.
while field(trainer, "cmdline") and len(takers) < 128:
    if (taker := os.fork()) == 0:
        taken = b"x" * (48 << 20)
        os.write(done, b".")
        signal.pause()
    takers.append(taker)
    if select.select([ready], [], [], 5)[0]:
        os.read(ready, 1)
for taker in takers:
    os.kill(taker, signal.SIGKILL)
print("the trainer is gone" if not field(trainer, "cmdline") else "the trainer lives", "after", len(takers))
"""


def a_paced_run(scene: Scene, steps: int = STEPS, pace: float = 0.6, **spec: Any) -> list[Object]:
    """A run of small steps that take about `pace` seconds each, and little of the processor."""
    changes: dict[str, Any] = {
        "retry": {"backoffSeconds": 1},
        "deadlines": {"stopGraceSeconds": 30},
        "rollout": {"concurrency": 8},
    }
    run = a_short_run(scene.here, scene.name, steps, **(changes | spec))
    run["spec"]["algorithm"] |= {"batchSize": 2, "groupSize": 4, "saveEverySteps": SAVE_EVERY}
    checkpoint = run["spec"]["checkpoint"]
    policy = {} if "claimName" in checkpoint["volume"] else {"deletionPolicy": "Delete"}
    run["spec"]["checkpoint"] = checkpoint | policy
    run["spec"]["workflow"]["env"] = [{"name": "PACE_SECONDS", "value": str(pace)}]
    return with_workflow(run, "paced.py")


def delete_head(scene: Scene) -> None:
    """Delete the head pod, as a person would."""
    scene.kubectl("delete", "pod", scene.pod("head"), "--wait=false")


def delete_worker(scene: Scene) -> None:
    """Delete one of the worker pods; episodes run in the workers and nowhere else, and soon in its successor, too."""
    before = names(scene.ray_pods("worker"))
    scene.kubectl("delete", "pod", before[0], "--wait=false")

    def used() -> set[str] | None:
        seen = marks(scene)
        return seen if len(seen) > len(before) else None

    seen = wait_for("an episode in the successor", used, 120)
    assert seen == {*before, *names(scene.ray_pods("worker"))}


def marks(scene: Scene) -> set[str]:
    """Names of the pods in which episodes have run."""
    folder = scene.folder
    return {path.name for path in (folder / "marks").glob("*")} if folder else set()


def delete_driver_pod(scene: Scene) -> None:
    """Delete the pod of the Job."""
    scene.kubectl("delete", "pod", scene.pod("driver"), "--wait=false")


def delete_job(scene: Scene) -> None:
    """Delete the Job, and its pod with it."""
    scene.kubectl("delete", "job", "--selector", f"agenttuning.io/run={scene.name}", "--wait=false")


def delete_cluster(scene: Scene) -> None:
    """Delete the RayCluster by hand."""
    scene.kubectl("delete", "raycluster", "--selector", f"agenttuning.io/run={scene.name}", "--wait=false")


def delete_run(scene: Scene) -> None:
    """Delete the run itself."""
    scene.kubectl("delete", "trun", scene.name, "--wait=false")


def kill_ray_container(scene: Scene) -> None:
    """Kill the first process of the Ray container in the head pod."""
    pod = scene.pod("head")
    kill_all([scene.full.node.container_pid(scene.namespace, pod, "ray-head")])


def exhaust_memory(scene: Scene) -> None:
    """Take memory in the head's Ray container until the kernel ends the process that trains, the largest there."""
    said = scene.kubectl("exec", scene.pod("head"), "-c", "ray-head", "--", "python", "-c", _EXHAUST)
    assert "is gone" in said, said


def drain(scene: Scene) -> None:
    """Drain the node of the run's pods, and open it again."""
    selected = [f"--pod-selector=agenttuning.io/run={scene.name}", "--delete-emptydir-data", "--force"]
    try:
        scene.here.cluster.kubectl("drain", NODE, *selected, "--timeout=100s")
    finally:
        scene.here.cluster.kubectl("uncordon", NODE)


def stop_kuberay(scene: Scene, seconds: float = 60) -> None:
    """Leave the cluster without KubeRay's operator for a while."""
    scene.here.cluster.kubectl("scale", *KUBERAY, "--replicas=0")
    try:
        time.sleep(seconds)
    finally:
        scene.here.cluster.kubectl("scale", *KUBERAY, "--replicas=1")


def stop(scene: Scene, *processes: str, seconds: float) -> None:
    """Leave the cluster without some of its processes for a while."""
    with without(scene.full, *processes):
        time.sleep(seconds)


def lose_node_until_retried(scene: Scene, *processes: str) -> None:
    """Leave the node without those who speak for it, until the operator has given its pods up and begun anew."""
    with without(scene.full, *processes):
        scene.wait_for_phase("Retrying", seconds=200)
        wait_for("pods that stay", lambda: all("deletionTimestamp" in pod["metadata"] for pod in scene.ray_pods()), 30)
        assert scene.ray_pods(), "nobody is there who could end pods"
        wait_for("second attempt", lambda: scene.status()["attempt"]["number"] == 2, 120)


def leader_pod(scene: Scene) -> str:
    """Name of the operator's pod that leads."""
    pods = scene.here.cluster.objects("pods", OPERATOR_NAMESPACE, f"app.kubernetes.io/instance={RELEASE}")
    leases = scene.here.cluster.objects("leases", OPERATOR_NAMESPACE)
    holders = " ".join(str(lease["spec"].get("holderIdentity", "")) for lease in leases)
    running: list[str] = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
    leading = [name for name in running if name in holders]
    assert leading, f"none of {running} holds a Lease of {leases}"
    return leading[0]


def kill_leader(scene: Scene) -> None:
    """Kill the process of the operator that leads, with SIGKILL."""
    os.kill(scene.full.node.container_pid(OPERATOR_NAMESPACE, leader_pod(scene), "operator"), signal.SIGKILL)


def kill_leader_and_measure(scene: Scene) -> None:
    """Kill the operator that leads; another run that is applied at once is taken up within 20 seconds."""
    probe = Scene(scene.here, scene.full, f"{scene.name}-probe", scene.namespace)
    objects = a_paced_run(probe, steps=1)
    kill_leader(scene)
    probe.start(*objects)
    begun = time.monotonic()
    wait_for("first child of a run that is applied now", lambda: probe.objects("rayclusters"), 60)
    pause = time.monotonic() - begun
    delete_run(probe)
    assert pause <= 20, f"nobody acted for {pause:.0f} s"


def suspend(scene: Scene, wanted: bool = True) -> None:
    """Ask a run to stop, or to go on."""
    change = f'{{"spec":{{"suspend":{str(wanted).lower()}}}}}'
    scene.kubectl("patch", "trun", scene.name, "--type=merge", "-p", change)


def suspend_and_resume(scene: Scene) -> None:
    """Suspend a run, see that it holds nothing, and let it go on until it has made another step."""
    before = scene.steps()[-1]
    suspend(scene)
    scene.wait_for_phase("Suspended", seconds=90)
    assert scene.leftovers() == []
    suspend(scene, False)
    wait_for("a step after that", lambda: scene.steps()[-1].attempt > before.attempt, 120)


def suspend_three_times(scene: Scene) -> None:
    """Suspend a run and let it go on, three times."""
    for _ in range(3):
        suspend_and_resume(scene)


def offer_a_gpu(scene: Scene) -> None:
    """See that a run waits for a GPU and says so, then let the node have one until the run is over."""
    wait_for("word of the missing GPU", lambda: f"Insufficient {GPU}" in scene.status().get("message", ""), 60)
    scene.undo.enter_context(scene.full.node.offering(GPU, 1))


def a_run_on_a_small_volume(scene: Scene, **spec: Any) -> list[Object]:
    """A run that saves on a volume of a few MiB."""
    volume = scene.undo.enter_context(small_volume(scene.full, scene.name, 24))
    objects = a_paced_run(scene, checkpoint={"volume": {"claimName": volume.name}}, **spec)
    claims = volume.manifests(scene.namespace)
    scene.undo.callback(scene.here.cluster.kubectl, "delete", "pv", volume.name, "--wait=false")
    scene.undo.callback(scene.kubectl, "delete", "pvc", volume.name, "--wait=false")
    return [*claims, *objects]


def the_small_volume(scene: Scene) -> SmallVolume:
    """The volume of `a_run_on_a_small_volume`."""
    seen = scene.volume(scene.name)
    assert seen is not None
    return SmallVolume(scene.name, 24, seen, seen)


def fill_volume(scene: Scene) -> None:
    """Fill the run's volume."""
    the_small_volume(scene).fill()


def fill_volume_and_free_it(scene: Scene) -> None:
    """Fill the run's volume, and make room again once an attempt has failed over it."""
    fill_volume(scene)
    wait_for("an attempt that failed", scene.history, 120)
    the_small_volume(scene).free()


def recreate(scene: Scene) -> None:
    """Delete the run and apply it again at once."""
    old = scene.run()
    assert old is not None
    delete_run(scene)
    scene.start(*a_paced_run(scene))
    new = scene.run()
    assert new is not None
    assert new["metadata"]["uid"] != old["metadata"]["uid"]


def a_claim(name: str) -> Object:
    """A claim that several runs may write."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def a_run_with_its_dataset_on_a_claim(scene: Scene) -> list[Object]:
    """A run whose tasks are a file on a claim of its own."""
    claim = f"{scene.name}-data"
    scene.start(a_claim(claim))
    scene.undo.callback(scene.kubectl, "delete", "pvc", claim, "--wait=false")
    folder = wait_for("volume", lambda: scene.volume(claim), 60)
    wait_for("folder of the volume", folder.is_dir, 60)
    rows = [json.dumps({"question": f"What is {a} + 1?", "answer": str(a + 1)}) for a in range(4)]
    (folder / "tasks.jsonl").write_text("\n".join(rows))
    objects = a_paced_run(scene)
    objects[-1]["spec"]["dataset"] |= {"train": {"volume": {"claimName": claim, "path": "tasks.jsonl"}}}
    return objects


def remove_dataset_and_head(scene: Scene) -> None:
    """Remove the file with the run's tasks, and its head pod, so that another attempt looks for them."""
    folder = scene.volume(f"{scene.name}-data")
    assert folder is not None
    (folder / "tasks.jsonl").unlink()
    delete_head(scene)
