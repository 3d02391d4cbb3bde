"""What the demo and the end-to-end tests do with a cluster: kubectl, images, chart, samples.

Everything goes through the commands that a user types (kubectl, helm), on the cluster that
`python -m tests.cluster` started. The cluster itself is in tests/cluster, the checks are in tests/e2e.
"""

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "agent-tuning-operator"
SAMPLES = ROOT / "crds" / "samples"
OPERATOR_NAMESPACE = "agent-tuning"
RELEASE = "agent-tuning-operator"

Object = dict[str, Any]
Found = TypeVar("Found")


class CommandError(RuntimeError):
    """A command failed; the message has its output."""


def run(command: Sequence[str], stdin: str | None = None, seconds: float = 300) -> str:
    """Run a command and return its standard output; CommandError has both outputs."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise CommandError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}".strip())
    return done.stdout


def wait_for(what: str, check: Callable[[], Found | None], seconds: float, every: float = 0.5) -> Found:
    """Call `check` until it returns something true; TimeoutError names what did not come."""
    end = time.monotonic() + seconds
    while True:
        if found := check():
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {seconds:.0f} s")
        time.sleep(every)


@dataclass(frozen=True)
class Cluster:
    """A running cluster, as `python -m tests.cluster status -o json` describes it."""

    status: Mapping[str, Any]

    @classmethod
    def current(cls) -> "Cluster":
        """The full cluster of this machine, which must be up."""
        return cls(json.loads(run([sys.executable, "-m", "tests.cluster", "status", "-o", "json"])))

    @cached_property
    def _kubectl(self) -> list[str]:
        return [self.status["kubectl"], "--kubeconfig", self.status["kubeconfig"]]

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 120) -> str:
        """Run kubectl as the administrator."""
        return run([*self._kubectl, *arguments], stdin, seconds)

    def answers(self) -> bool:
        """Whether the API server is there."""
        try:
            return self.kubectl("get", "--raw=/readyz") == "ok"
        except CommandError:
            return False

    def helm(self, *arguments: str, seconds: float = 300) -> str:
        """Run helm as the administrator."""
        return run([self.status["helm"], "--kubeconfig", self.status["kubeconfig"], *arguments], seconds=seconds)

    def apply(self, objects: Iterable[Object], namespace: str, *options: str) -> None:
        """Apply objects with kubectl."""
        text = yaml.safe_dump_all(list(objects))
        self.kubectl("apply", "--namespace", namespace, *options, "-f", "-", stdin=text)

    def find(self, kind: str, name: str, namespace: str) -> Object | None:
        """One object, or None when it is not there."""
        text = self.kubectl("get", kind, name, "--namespace", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text else None

    def objects(self, kind: str, namespace: str, selector: str = "") -> list[Object]:
        """All objects of a kind in a namespace."""
        selected = ["--selector", selector] if selector else []
        return json.loads(self.kubectl("get", kind, "--namespace", namespace, "-o", "json", *selected))["items"]

    def ensure_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Make a namespace if it is not there."""
        metadata = {"name": name, "labels": dict(labels or {})}
        self.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        )

    def query(self, path: str, **parameters: str) -> Any:
        """Ask Prometheus: `query`, `query_range` or `series` with their parameters; returns `data`."""
        url = f"{self.status['prometheus']}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def samples(self, series: str, since: float) -> list[tuple[float, float]]:
        """All raw samples of one series, as (seconds since 1970, value) in order of time.

        Args:
            series: its name and the label values of its run.
            since: seconds since 1970; a run of the same name may have left older samples.
        """
        values = [value for entry in self.series(series, since) for value in entry["values"]]
        return sorted((float(at), float(value)) for at, value in values if float(at) >= since)

    def series(self, selector: str, since: float) -> list[Any]:
        """All series that a selector matches, each with its labels (`metric`) and its raw `values` since a time."""
        window = int(time.time() - since) + 60
        return list(self.query("query", query=f"{selector}[{window}s]")["result"])


def build_images(*names: str) -> dict[str, str]:
    """Build and push what changed; references by name."""
    command = [sys.executable, "-m", "tests.cluster.images", "build", *names, "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise CommandError(f"building {', '.join(names)} failed")
    return json.loads(done.stdout)


def install_operator(
    cluster: Cluster, images: Mapping[str, str], chart: Path = CHART, values: Mapping[str, str] | None = None
) -> None:
    """Install or upgrade the chart and wait until the operator's pod is ready.

    Args:
        cluster: where.
        images: references of `operator` and `runner-trl`.
        chart: a folder or a packed chart.
        values: more of the chart's values, by their path; all others are the chart's own.
    """
    cluster.ensure_namespace(OPERATOR_NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
    _drop_interrupted_release(cluster)
    chosen = {"images.operator": images["operator"], "images.runner": images["runner-trl"], **(values or {})}
    options = [option for key, value in chosen.items() for option in ("--set", f"{key}={value}")]
    place = ["--namespace", OPERATOR_NAMESPACE, "--wait", "--timeout", "180s"]
    cluster.helm("upgrade", "--install", RELEASE, str(chart), *place, *options)


def remove_operator(cluster: Cluster) -> None:
    """Uninstall the chart, and remove its CRD with all runs, which an uninstallation leaves."""
    # Its hook would refuse while runs hold RayClusters; these go with the definition.
    place = ["--namespace", OPERATOR_NAMESPACE]
    cluster.helm("uninstall", RELEASE, *place, "--no-hooks", "--wait", "--ignore-not-found")
    cluster.kubectl("delete", "crd", "tuningruns.agenttuning.io", "--ignore-not-found", "--timeout=100s")


def _drop_interrupted_release(cluster: Cluster) -> None:
    """Uninstall a release whose installation was interrupted: helm refuses to touch it otherwise."""
    place = ["--namespace", OPERATOR_NAMESPACE]
    releases = json.loads(cluster.helm("list", "--pending", "-o", "json", *place))
    for release in releases:
        cluster.helm("uninstall", release["name"], "--no-hooks", *place)


def sample(name: str, image: str | None) -> list[Object]:
    """The objects of `crds/samples/tuningrun.<name>.yaml`, with a workflow image that was built here.

    Without one the run names none either, and gets the installation's.
    """
    objects = list(yaml.safe_load_all((SAMPLES / f"tuningrun.{name}.yaml").read_text()))
    for manifest in objects:
        if manifest["kind"] == "TuningRun":
            manifest["spec"]["workflow"].pop("image", None)
            manifest["spec"]["workflow"] |= {"image": image} if image else {}
    return objects


def condition(run_object: Object, kind: str) -> Object:
    """One condition of a TuningRun, `{}` when it has none of this type yet."""
    conditions = run_object.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {})


def created(run_object: Object) -> float:
    """Seconds since 1970 of an object's creation."""
    return moment(run_object["metadata"]["creationTimestamp"])


def moment(text: str) -> float:
    """Seconds since 1970 of a time stamp of the API."""
    return datetime.fromisoformat(text).timestamp()


def finished(run_object: Object | None) -> bool:
    """Whether a run has come to its end."""
    return run_object is not None and condition(run_object, "Finished").get("status") == "True"
