"""Half an hour of runs with something killed every 20 seconds: `python -m tests.e2e.soak`, or `make soak`.

Opt-in. Runs of the smallest sample follow one another, two at a time, and accidents are drawn by lot. Whatever happens,
every run has to succeed with all of its steps, and nothing of it may be left. Progress goes to standard error, the
figures at the end to standard output.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.api import ApiError
from tests.cluster.control_plane import API_SERVER, ETCD
from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.full import FullCluster
from tests.cluster.node import KUBELET
from tests.cluster.report import say
from tests.e2e import accidents
from tests.e2e.conftest import Installation
from tests.e2e.scene import Scene
from tests.harness import Cluster, CommandError, build_images, created, finished, install_operator

OK, FOUND_SOMETHING, INTERRUPTED, UNAVAILABLE = 0, 1, 3, 5
EXIT_CODES = """\
exit codes: 0 every run succeeded and nothing was left, 1 some did not or something was left, 2 wrong usage,
3 interrupted, 5 this machine cannot run the cluster
"""
NAMESPACE = "soak"
AT_ONCE = 2
STEPS = 12
STUCK_SECONDS = 900
LEFT_SECONDS = 120
Accident = Callable[[Scene], None]


def _stopped(process: str, seconds: float) -> Accident:
    return lambda scene: accidents.stop(scene, process, seconds=seconds)


def _suspend_for_a_moment(scene: Scene) -> None:
    accidents.suspend(scene)
    time.sleep(5)
    accidents.suspend(scene, False)


def _delete_kuberay_pod(scene: Scene) -> None:
    scene.here.cluster.kubectl("delete", "pod", "--all", "--namespace", "ray-system", "--wait=false")


ACCIDENTS: dict[str, Accident] = {
    "head-deleted": accidents.delete_head,
    "ray-container-killed": accidents.kill_ray_container,
    "driver-pod-deleted": accidents.delete_driver_pod,
    "job-deleted": accidents.delete_job,
    "raycluster-deleted": accidents.delete_cluster,
    "node-drained": accidents.drain,
    "operator-killed": accidents.kill_leader,
    "kube-apiserver-restarted": _stopped(API_SERVER, 2),
    "etcd-restarted": _stopped(ETCD, 2),
    "kubelet-stopped": _stopped(KUBELET, 10),
    "kuberay-deleted": _delete_kuberay_pod,
    "suspended": _suspend_for_a_moment,
}


@dataclass
class Figures:
    """What came of it."""

    seed: int
    minutes: float = 0
    succeeded: int = 0
    attempts: int = 0
    longest_seconds: int = 0
    """From the creation of a run to its end."""
    accidents: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    """Accidents that found nothing to happen to."""
    causes: Counter[str] = field(default_factory=Counter)
    """Why attempts failed."""
    wrong: list[str] = field(default_factory=list)
    """What should not have been, in words."""


class Soak:
    """Runs, accidents, and what is found."""

    def __init__(self, installation: Installation, full: FullCluster, seed: int) -> None:
        self._here, self._full = installation, full
        self._random = random.Random(seed)
        self._scenes: list[Scene] = []
        self._started = 0
        self.figures = Figures(seed)

    def go_on(self, minutes: float, every: float) -> None:
        """Start runs and kill things for so long, then let the runs that are left come to their ends."""
        begun = time.monotonic()
        next_accident = begun + every
        while (now := time.monotonic()) < begun + minutes * 60 or self._scenes:
            over = now >= begun + minutes * 60
            self._look_at_runs()
            while not over and len(self._scenes) < AT_ONCE:
                self._start_run()
            if not over and now >= next_accident:
                self._have_an_accident()
                next_accident = max(next_accident + every, time.monotonic())
            time.sleep(1)
        self.figures.minutes = round((time.monotonic() - begun) / 60, 1)

    def _start_run(self) -> None:
        self._started += 1
        scene = Scene(self._here, self._full, f"soak-{self._started}", NAMESPACE, patience=2)
        spec = {"retry": {"maxAttempts": 100, "backoffSeconds": 1}}
        objects = accidents.a_paced_run(scene, STEPS, 0.5, **spec)
        # Two of them, and the operator, on a machine with two cores.
        objects[-1]["spec"]["cluster"] = {"head": {"cpu": "500m", "memory": "4Gi"}}
        scene.start(*objects)
        self._scenes.append(scene)
        self._say(scene, "applied")

    def _have_an_accident(self) -> None:
        name = self._random.choice(sorted(ACCIDENTS))
        scene = self._random.choice(self._scenes)
        phase = scene.status().get("phase", "")
        try:
            ACCIDENTS[name](scene)
        except (TimeoutError, CommandError, ClusterError, ApiError) as error:
            self.figures.missed[name] += 1
            self._say(scene, f"{phase}: {name} did not happen: {str(error).splitlines()[0][:120]}")
            return
        self.figures.accidents[name] += 1
        self._say(scene, f"{phase}: {name}")

    def _look_at_runs(self) -> None:
        for scene in list(self._scenes):
            run = scene.run()
            try:
                scene.assert_one_attempt()
            except AssertionError as error:
                self._wrong(scene, str(error))
            if run is not None and finished(run):
                self._scenes.remove(scene)
                self._judge(scene, run)
            elif run is not None and time.time() - created(run) > STUCK_SECONDS:
                self._scenes.remove(scene)
                self._wrong(scene, f"not over after {STUCK_SECONDS} s: {json.dumps(run['status'])}")

    def _judge(self, scene: Scene, run: dict[str, Any]) -> None:
        status = run["status"]
        seconds = round(time.time() - created(run))
        self._say(scene, f"{status['phase']} after {seconds} s and {status['attempt']['number']} attempts")
        self.figures.attempts += status["attempt"]["number"]
        self.figures.longest_seconds = max(self.figures.longest_seconds, seconds)
        failed = [entry for entry in status.get("history", []) if entry["outcome"] == "Failed"]
        self.figures.causes.update(entry["cause"] for entry in failed)
        if status["phase"] != "Succeeded":
            self._wrong(scene, f"ended as {json.dumps(status)}")
            return
        made = {step.number for step in scene.steps()}
        folder = scene.folder
        if made != set(range(1, STEPS + 1)) or folder is None or not (folder / "final" / "config.json").is_file():
            self._wrong(scene, f"succeeded without all it has to have: steps {sorted(made)} in {folder}")
            return
        try:
            scene.wait_until_nothing_is_left(LEFT_SECONDS)
            accidents.delete_run(scene)
            scene.wait_until_gone(LEFT_SECONDS)
        except (AssertionError, ApiError) as error:
            self._wrong(scene, str(error))
            return
        self.figures.succeeded += 1

    def _wrong(self, scene: Scene, what: str) -> None:
        self._say(scene, f"WRONG: {what}")
        self.figures.wrong.append(f"{scene.name}: {what}")

    def _say(self, scene: Scene, what: str) -> None:
        say(f"{time.strftime('%H:%M:%S')} {scene.name} {what}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.soak",
        description="Runs one after another, two at a time, and a random accident every few seconds.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30, help="how long (default: %(default)s)")
    parser.add_argument("--every", type=float, default=20, help="seconds between accidents (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the lot that is drawn; a random one by default, and printed")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: %(default)s")
    chosen = parser.parse_args(arguments)
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(10**6)
    say(f"seed {seed}")
    try:
        full = FullCluster()
        full.up()
        soak = Soak(_install(), full, seed)
        soak.go_on(chosen.minutes, chosen.every)
    except UnavailableError as error:
        say(f"not possible here: {error}")
        return UNAVAILABLE
    except KeyboardInterrupt:
        say("interrupted; `make cluster-down` cleans up")
        return INTERRUPTED
    _print(soak.figures, chosen.output)
    return FOUND_SOMETHING if soak.figures.wrong else OK


def _install() -> Installation:
    cluster = Cluster.current()
    images = build_images("operator", "runner-trl", "tiny")
    install_operator(cluster, images)
    cluster.ensure_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
    return Installation(cluster, images, NAMESPACE)


def _print(figures: Figures, form: str) -> None:
    answer = vars(figures)
    if form == "json":
        print(json.dumps(answer, indent=1))
        return
    for key, value in answer.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {count}" for name, count in sorted(value.items()))
        elif isinstance(value, list):
            value = "\n  " + "\n  ".join(value) if value else "nothing"
        print(f"{key + ':':18} {value}")


if __name__ == "__main__":
    sys.exit(main())
