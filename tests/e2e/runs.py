"""Builders and checks of runs for the end-to-end tests."""

import json
import time
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Installation
from tests.harness import Object, finished, sample, wait_for

WORKFLOWS = Path(__file__).parent / "workflows"
VOLUME = "/mnt/agent-tuning"


def a_tiny_run(here: Installation, name: str, **spec: Any) -> Object:
    """The tiny sample under another name; `spec` replaces whole blocks of it."""
    run = next(item for item in sample("tiny", here.images["tiny"]) if item["kind"] == "TuningRun")
    run["metadata"] = {"name": name}
    run["spec"] |= spec
    return run


def a_short_run(here: Installation, name: str, steps: int = 3, **spec: Any) -> Object:
    """The tiny sample with few steps and no held-out set."""
    run = a_tiny_run(here, name, **spec)
    run["spec"]["algorithm"] = run["spec"]["algorithm"] | {"steps": steps, "saveEverySteps": steps}
    run["spec"]["dataset"] = run["spec"]["dataset"] | {"evaluation": []}
    return run


def with_workflow(run: Object, file: str) -> list[Object]:
    """The run with a workflow of this folder, brought by a ConfigMap."""
    name = f"{run['metadata']['name']}-code"
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    code["data"] = {file: (WORKFLOWS / file).read_text()}
    module = file.removesuffix(".py")
    run["spec"]["workflow"] |= {
        "entrypoint": f"{module}:run",
        "judge": f"{module}:judge",
        "source": {"configMap": {"name": name}},
    }
    return [code, run]


def start(here: Installation, *objects: Object) -> None:
    """Apply objects in the tests' namespace."""
    here.cluster.apply(objects, here.namespace)


def the_run(here: Installation, name: str) -> Object:
    """A run that exists."""
    run = here.cluster.find("tuningrun", name, here.namespace)
    assert run is not None, f"there is no TuningRun {name}"
    return run


def the_end(here: Installation, name: str, seconds: float = 240) -> Object:
    """Wait until a run has ended, and return it."""
    return wait_for(f"end of {name}", lambda: run if finished(run := the_run(here, name)) else None, seconds)


def pods(here: Installation, selector: str) -> list[Object]:
    """Pods that a selector matches."""
    return here.cluster.objects("pods", here.namespace, selector)


def log_of(here: Installation, name: str) -> str:
    """The training log of a run; empty before its driver has a pod."""
    job = the_run(here, name).get("status", {}).get("attempt", {}).get("jobName")
    if not job or not pods(here, f"batch.kubernetes.io/job-name={job}"):
        return ""
    return here.cluster.kubectl("logs", f"job/{job}", "--namespace", here.namespace, "--ignore-errors")


def wait_for_step(here: Installation, name: str, step: int, seconds: float = 150) -> None:
    """Wait until the training log shows that a step is over."""
    steps = the_run(here, name)["spec"]["algorithm"]["steps"]
    wait_for(f"step {step} of {name}", lambda: f"step {step}/{steps}" in log_of(here, name), seconds)


def succeeds(here: Installation, name: str, seconds: float = 240) -> Object:
    """Wait until a run has ended well and its cluster is gone; returns the run."""
    run = the_end(here, name, seconds)
    assert run["status"]["phase"] == "Succeeded", run["status"]
    cluster_is_gone(here, name)
    return run


def delete(here: Installation, name: str) -> None:
    """Delete a run, and wait until its cluster is gone."""
    here.cluster.kubectl("delete", "trun", name, "--namespace", here.namespace)
    cluster_is_gone(here, name, 60)


def cluster_is_gone(here: Installation, name: str, seconds: float = 30) -> float:
    """Wait until RayCluster and Ray pods of a run are gone; returns the time when they were."""
    selector = f"agenttuning.io/run={name}"

    def gone() -> float | None:
        ray = pods(here, f"{selector},ray.io/cluster")
        return None if ray or here.cluster.objects("rayclusters", here.namespace, selector) else time.time()

    return wait_for(f"end of the RayCluster of {name}", gone, seconds)


def in_a_pod(here: Installation, claim: str, code: str, seconds: float = 120) -> str:
    """Run Python code in a pod with the runner image and the claim mounted read-write; returns what it printed."""
    name = f"reader-{time.time_ns() % 10**9}"
    container = {
        "name": "reader",
        "image": here.images["tiny"],
        "command": ["python", "-c", code],
        "volumeMounts": [{"name": "runs", "mountPath": VOLUME}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }
    start(here, pod)

    def phase() -> str | None:
        found = here.cluster.find("pod", name, here.namespace) or {}
        state = found.get("status", {}).get("phase")
        return state if state in ("Succeeded", "Failed") else None

    state = wait_for(f"end of pod {name}", phase, seconds)
    text = here.cluster.kubectl("logs", name, "--namespace", here.namespace)
    here.cluster.kubectl("delete", "pod", name, "--namespace", here.namespace, "--wait=false")
    assert state == "Succeeded", text
    return text


def journal(here: Installation, run: Object) -> list[dict[str, Any]]:
    """All episode records of a run, read from its claim in a pod."""
    checkpoint = run["status"]["attempt"]
    claim = claim_of(run)
    folder = f"{VOLUME}/{here.namespace}/{claim}/episodes"
    code = (
        "import pathlib\n"
        f"for path in sorted(pathlib.Path({folder!r}).glob('*.jsonl')):\n"
        "    print(path.read_text(), end='')\n"
    )
    assert checkpoint["number"] == 1
    return [json.loads(line) for line in in_a_pod(here, claim, code).splitlines()]


def claim_of(run: Object) -> str:
    """Name of the claim that the operator made for a run; also the name of the run's folder on it."""
    return f"{run['metadata']['name']}-{run['metadata']['uid'].replace('-', '')[:6]}"
