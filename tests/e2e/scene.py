"""One run on the full cluster as a test sees it that takes things away from it: fast looks, no process for each.

Called by `kills`, `test_kills` and `soak`. Unlike `runs`, which looks at a cluster as a user would, it asks the API
server directly, lives through its absence, and reads the run's folder where the node keeps its volumes.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.cluster.api import Api
from tests.cluster.full import FullCluster
from tests.cluster.node import HOLDER
from tests.e2e.conftest import Installation
from tests.harness import OPERATOR_NAMESPACE, RELEASE, CommandError, Object, condition, finished, wait_for

RUNS = "/apis/agenttuning.io/v1alpha1/namespaces/{namespace}/tuningruns/{name}"
LISTS = {
    "pods": "/api/v1/namespaces/{namespace}/pods",
    "persistentvolumeclaims": "/api/v1/namespaces/{namespace}/persistentvolumeclaims",
    "configmaps": "/api/v1/namespaces/{namespace}/configmaps",
    "jobs": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "rayclusters": "/apis/ray.io/v1/namespaces/{namespace}/rayclusters",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
}
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Step:
    """A finished step, as the runner recorded it."""

    attempt: int
    number: int
    at: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class Scene:
    """One run: what is seen of it, and what is done to it."""

    here: Installation
    full: FullCluster
    name: str
    namespace: str
    undo: ExitStack = field(default_factory=ExitStack)
    """What an accident left behind that has to be put right when the run is over."""
    patience: float = 120
    """Seconds to wait for a pod that something is to happen to."""

    @cached_property
    def api(self) -> Api:
        """The API server, as its administrator."""
        return self.full.plane.api

    def start(self, *objects: Object) -> None:
        """Apply objects in the run's namespace."""
        self.here.cluster.apply(objects, self.namespace)

    def kubectl(self, *arguments: str, seconds: float = 120) -> str:
        """Run kubectl in the run's namespace."""
        return self.here.cluster.kubectl("--namespace", self.namespace, *arguments, seconds=seconds)

    def run(self) -> Object | None:
        """The run; None when it is not there or the API server does not answer."""
        answer = self.api.found(RUNS.format(namespace=self.namespace, name=self.name))
        return dict(answer) if answer else None

    def status(self) -> Object:
        """The run's status, `{}` as long as there is none."""
        return dict((self.run() or {}).get("status", {}))

    def history(self) -> list[Object]:
        """The attempts that are over."""
        return list(self.status().get("history", []))

    def objects(self, kind: str, *labels: str) -> list[Object] | None:
        """The run's objects of a kind, those with more labels only; None when the API server does not answer."""
        answer = self.api.found(self._list(kind, labels))
        return None if answer is None else list(answer["items"])

    def all(self, kind: str, *labels: str) -> list[Object]:
        """The run's objects of a kind, those with more labels only; ApiError when the API server does not answer."""
        return list(self.api.get(self._list(kind, labels))["items"])

    def _list(self, kind: str, labels: Sequence[str]) -> str:
        selector = ",".join([f"agenttuning.io/run={self.name}", *labels])
        return f"{LISTS[kind].format(namespace=self.namespace)}?labelSelector={selector}"

    def ray_pods(self, component: str = "") -> list[Object]:
        """The pods of the run's Ray cluster: head and workers, or those of one component."""
        chosen = [f"agenttuning.io/component={component}"] if component else []
        return self.objects("pods", "ray.io/cluster", *chosen) or []

    def pod(self, component: str) -> str:
        """The name of a pod of a component that is not about to go; waits until there is one."""

        def found() -> str | None:
            listed = self.objects("pods", f"agenttuning.io/component={component}") or []
            names = [pod["metadata"]["name"] for pod in listed if "deletionTimestamp" not in pod["metadata"]]
            return min(names, default=None)

        return wait_for(f"{component} pod of {self.name}", found, self.patience, LOOK_SECONDS)

    def wait_for_phase(self, *phases: str, seconds: float = 120) -> Object:
        """Wait until the run is in one of some phases; returns its status."""

        def reached() -> Object | None:
            status = self.status()
            return status if status.get("phase") in phases else None

        try:
            return wait_for(f"phase {' or '.join(phases)} of {self.name}", reached, seconds, LOOK_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; its status is {json.dumps(self.status())}") from error

    def wait_for_step(self, number: int, seconds: float = 150) -> None:
        """Wait until the runner has recorded a step, in whatever attempt."""

        def reached() -> bool:
            return any(step.number >= number for step in self.steps())

        try:
            wait_for(f"step {number} of {self.name}", reached, seconds, LOOK_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; its status is {json.dumps(self.status())}") from error

    @property
    def folder(self) -> Path | None:
        """The run's folder on its volume, where this machine keeps it; None while there is none."""
        run = self.run()
        if run is None:
            return None
        child = f"{self.name}-{run['metadata']['uid'].replace('-', '')[:6]}"
        volume = self.volume(run["spec"]["checkpoint"]["volume"].get("claimName", child))
        return volume / self.namespace / child if volume else None

    def volume(self, claim: str) -> Path | None:
        """The root of the volume that a claim is bound to, where this machine keeps it; None while there is none."""
        found = self.api.found(f"{LISTS['persistentvolumeclaims'].format(namespace=self.namespace)}/{claim}")
        name = (found or {}).get("spec", {}).get("volumeName")
        volume = self.api.found(f"/api/v1/persistentvolumes/{name}") if name else None
        if volume is None:
            return None
        path = (volume["spec"].get("hostPath") or volume["spec"]["local"])["path"]
        # Seen from the node's mount namespace, in which a volume may be a mount of its own.
        return Path(f"/proc/{self.full.processes.pid(HOLDER)}/root", path.lstrip("/"))

    def steps(self) -> list[Step]:
        """All steps that the runner has recorded, in their order in time, those of the newest attempt last."""
        folder = self.folder
        records = folder / "metrics.jsonl" if folder else None
        if records is None or not records.is_file():
            return []
        lines = records.read_text().split("\n")[:-1]  # the last one is being written, or empty
        found = [json.loads(line) for line in lines if line]
        return [
            Step(record["attempt"], record["step"], record["ts"]) for record in found if record["role"] == "trainer"
        ]

    def end(self, seconds: float = 300) -> Object:
        """Wait until the run has ended, and make sure that never two of its attempts are alive; returns the run."""

        def ended() -> Object | None:
            self.assert_one_attempt()
            run = self.run()
            return run if finished(run) else None

        try:
            return wait_for(f"end of {self.name}", ended, seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; its status is {json.dumps(self.status())}") from error

    def assert_one_attempt(self) -> None:
        """Fail if pods of two attempts hold resources; those that a dead node left do not."""
        alive = {pod["metadata"]["labels"]["agenttuning.io/attempt"] for pod in self.ray_pods() if not _is_lost(pod)}
        assert len(alive) < 2, f"attempts {sorted(alive)} of {self.name} are alive at once"

    def leftovers(self) -> list[str]:
        """What holds resources for a run that has ended: clusters, pods, unfinished Jobs, locks."""
        left = [f"RayCluster {name}" for name in names(self.all("rayclusters"))]
        left += [f"pod {name}" for name in names(self.all("pods", "ray.io/cluster"))]
        running = [pod for pod in self.all("pods") if pod["status"].get("phase") in ("Pending", "Running")]
        left += [f"pod {name} (running)" for name in names(running)]
        left += [f"Job {name}" for name in names(job for job in self.all("jobs") if not _is_over(job))]
        return left + [f"Lease {name}" for name in names(self.all("leases"))]

    def children(self) -> list[str]:
        """Everything that was made for the run and is still there, what its end leaves included."""
        return [f"{kind} {name}" for kind in LISTS for name in names(self.all(kind))]

    def wait_until_nothing_is_left(self, seconds: float = 90) -> None:
        """Wait until a run that has ended holds nothing any more."""
        _wait_for_none(f"what {self.name} holds after its end", self.leftovers, seconds)

    def wait_until_gone(self, seconds: float = 120) -> None:
        """Wait until a run that was deleted is gone, with everything that was made for it."""

        def left() -> Sequence[str]:
            there = ["the run"] if self.run() is not None else []
            return [*there, *self.children()]

        _wait_for_none(f"what is left of {self.name}", left, seconds)

    def evidence(self) -> str:
        """What there is to read of a run that did not come to its right end: status, pods, the ends of all logs."""
        parts = [f"status: {json.dumps(self.status())}"]
        parts += [f"pod {pod['metadata']['name']}: {pod['status'].get('phase')}" for pod in self.objects("pods") or []]
        folder = self.folder
        for log in sorted(folder.glob("logs/*/runner.log")) if folder else []:
            parts.append(f"--- {log.parent.name}/{log.name}\n{_tail(log.read_text(errors='replace'))}")
        selected = ["--selector", f"agenttuning.io/run={self.name},agenttuning.io/component=driver", "--prefix"]
        of_operator = ["logs", f"deployment/{RELEASE}", "--namespace", OPERATOR_NAMESPACE, "--all-pods"]
        with suppress(CommandError):
            parts.append(f"--- drivers\n{_tail(self.kubectl('logs', *selected, '--tail=40'))}")
        with suppress(CommandError):
            lines = self.here.cluster.kubectl(*of_operator, "--since=15m").splitlines()
            told = "\n".join(line for line in lines if self.name in line)
            parts.append(f"--- operator\n{_tail(told)}")
        return "\n".join(parts)


def _tail(text: str, lines: int = 40) -> str:
    return "\n".join(line[:500] for line in text.splitlines()[-lines:])


def names(objects: Iterable[Object]) -> list[str]:
    """Names of objects."""
    return [item["metadata"]["name"] for item in objects]


def _wait_for_none(what: str, left: Callable[[], Sequence[str]], seconds: float) -> None:
    end = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < end, f"{what}, {seconds:.0f} s later: {', '.join(found)}"
        time.sleep(0.5)


def _is_lost(pod: Object) -> bool:
    """Whether a pod only stays because its node does not answer."""
    return "deletionTimestamp" in pod["metadata"] and condition(pod, "DisruptionTarget").get("status") == "True"


def _is_over(job: Object) -> bool:
    return any(condition(job, kind).get("status") == "True" for kind in ("Complete", "Failed"))
