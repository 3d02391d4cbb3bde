"""The profile `full`: a whole cluster with one node, KubeRay and Prometheus. One per machine.

Called by the command line and the fixture `cluster`. Here is only the order of things: what each part is stands in
`control_plane`, `node`, `addons` and `host`.
"""

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.cluster import addons, binaries, host, node, packages, paths, registry
from tests.cluster.addons import Addons
from tests.cluster.control_plane import API_SERVER, ETCD, Address, ControlPlane, Ports
from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.host import HostState
from tests.cluster.node import Node
from tests.cluster.processes import Processes
from tests.cluster.report import say, step

# Away from the usual ports, so that another Kubernetes on this machine is not in the way.
PORTS = Ports(etcd=12379, etcd_peer=12380, api=16443)
MANAGER, SCHEDULER = "kube-controller-manager", "kube-scheduler"
MANAGER_PORT, SCHEDULER_PORT = 20257, 20259
NODE_SECONDS, ADDON_SECONDS = 120, 120
CALM_SECONDS = 8.0
"""Longer than the kubelet takes to notice after a restart that containers are gone."""
LOOPBACK = "127.0.0.1"
OWNER = Path(host.VOLATILE, "owner")
NODE_NEEDS = (node.KUBELET, node.CONTAINERD, API_SERVER, ETCD, MANAGER, SCHEDULER, node.HOLDER)
ADDON_NEEDS = (node.PROXY, *NODE_NEEDS)
PROCESSES = (*ADDON_NEEDS, addons.PROVISIONER, addons.PROMETHEUS)


class FullCluster:
    """The one full cluster of this machine, running or not."""

    def __init__(self) -> None:
        """Make a view; nothing starts."""
        self.state = paths.full_state()
        self.plane = ControlPlane(self.state, PORTS, Address(node=_own_address(), bind="0.0.0.0"))
        self.node = Node(self.plane, paths.containerd_root())
        self.addons = Addons(self.plane)

    @property
    def processes(self) -> Processes:
        """All processes of the cluster."""
        return self.plane.processes

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.plane.kubeconfig

    def up(self, kuberay: str = binaries.KUBERAY_VERSION) -> None:
        """Start what does not run, and wait until everything is ready; harmless when all is.

        Another version of KubeRay than the one that runs replaces it in place.

        Raises:
            UnavailableError: This machine cannot run it.
            ClusterError: A part did not come up; with the tail of its log.
        """
        require_machine()
        with self._locked():
            if self.faults() == []:
                say("the cluster is up")
                self.use_kuberay(kuberay)
                return
            self._require_free_host()
            self.build([kuberay])
            repair = self.state.is_dir()
            with step("cluster up"):
                self._start(kuberay)
                if repair:
                    self._settle()

    def use_kuberay(self, version: str) -> None:
        """Put a version of KubeRay, CRDs and operator, in place of the one that runs; nothing if it is the one."""
        if self.plane.kuberay_version == version and self.addons.kuberay_is(version):
            return
        with step(f"KubeRay {version} in place of {self.plane.kuberay_version}"):
            self.node.import_images([addons.kuberay_image(version)])
            self.plane.use_kuberay(version)
            self.addons.apply_kuberay(version)
            self.processes.wait("KubeRay", lambda: not self.addons.unready(), ADDON_SECONDS, ADDON_NEEDS)

    def _settle(self) -> None:
        """After a repair the API still tells of pods from before it; believe it when it stays the same for a while."""
        calm_since = time.monotonic()

        def calm() -> bool:
            nonlocal calm_since
            if self.faults():
                calm_since = time.monotonic()
            return time.monotonic() - calm_since >= CALM_SECONDS

        with step("everything settled"):
            self.processes.wait("a healthy cluster after the repair", calm, 180, ("kubelet", "containerd"))

    def build(self, kuberay: Sequence[str] = binaries.KUBERAY_VERSIONS) -> None:
        """Install packages and build programs; minutes on a fresh machine, nothing afterwards."""
        packages.ensure([*packages.CONTROL_PLANE_PACKAGES, *packages.NODE_PACKAGES])
        for program in (binaries.KUBERNETES, *map(binaries.kuberay, kuberay), binaries.LOCAL_PATH):
            binaries.go_program(program)
        for program in (binaries.CRICTL, binaries.COREDNS, binaries.PAUSE):
            binaries.go_program(program)
        binaries.clients()
        for version in kuberay:
            binaries.kuberay_config(version)
        binaries.busybox()

    def down(self, *, purge: bool = False, keep_registry: bool = False) -> None:
        """Stop everything and put the host back; works on whatever is left of a cluster.

        Args:
            purge: Remove the pulled images, too.
            keep_registry: Leave the registry of built images running.
        """
        with self._locked():
            with step("cluster down"):
                self._stop()
                if not keep_registry:
                    registry.stop()
            if purge:
                with step("images of the node removed"):
                    self.node.remove_images()

    def faults(self) -> list[str]:
        """Return what is wrong, in words; nothing when the cluster is healthy."""
        if not self.state.is_dir():
            return ["not started"]
        stopped = [name for name in PROCESSES if self.processes.pid(name) is None]
        if stopped:
            return [f"{name} does not run" for name in stopped]
        if not self.plane.api.is_ready():
            return ["the API server is not ready"]
        found = [] if self.node.is_ready() else ["the node is not Ready"]
        found += [f"{name} is not available" for name in self.addons.unready()]
        return found if self._prometheus_answers() else [*found, "Prometheus does not answer"]

    def describe(self) -> dict[str, Any]:
        """Return what a script needs: paths and URLs."""
        clients = binaries.clients()
        return {
            "profile": "full",
            "state": str(self.state),
            "kubeconfig": str(self.kubeconfig),
            "kubectl": str(clients / "kubectl"),
            "helm": str(clients / "helm"),
            "prometheus": self.addons.prometheus_url,
            "scrape_targets": str(self.addons.scrape_targets),
            "audit_log": str(self.plane.audit_log),
            "registry": registry.ADDRESS if registry.running_pid() is not None else None,
            "versions": {
                "kubernetes": binaries.KUBERNETES.version,
                "kuberay": self.plane.kuberay_version,
                "coredns": binaries.COREDNS.version,
                "local-path-provisioner": binaries.LOCAL_PATH.version,
            },
        }

    def _start(self, kuberay: str) -> None:
        self._stop_another_version()
        self._take_host()
        self.plane.prepare(kuberay)
        self.node.configure()
        with step("API server and containerd ready"):
            if self.processes.pid(node.HOLDER) is None:
                self._end_node()
            self.plane.start_processes()
            self.node.start_runtime()
            self.node.import_images(node.own_images())
            self.plane.wait_ready()
        with step("node Ready"):
            self._start_controllers()
            self.node.start_kubelet()
            self.processes.wait("the node's readiness", self.node.is_ready, NODE_SECONDS, NODE_NEEDS)
        with step("KubeRay's CRDs served"):
            # Our own CRDs come with the chart, which would not adopt those of somebody else.
            self.plane.use_kuberay(kuberay)
        with step("DNS, volumes, KubeRay, Prometheus and registry ready"):
            self._start_addons(kuberay)
            registry.ensure_running()

    def _start_controllers(self) -> None:
        programs = binaries.go_program(binaries.KUBERNETES)
        authority = self.plane.authority
        manager = [
            f"--service-account-private-key-file={authority.token_key}",
            f"--root-ca-file={authority.certificate}",
            f"--cluster-signing-cert-file={authority.certificate}",
            f"--cluster-signing-key-file={authority.key}",
            "--use-service-account-credentials=true",
            # At the default rate, collecting the garbage of a thousand runs takes minutes.
            "--kube-api-qps=300",
            "--kube-api-burst=600",
        ]
        for name, port, more in ((MANAGER, MANAGER_PORT, manager), (SCHEDULER, SCHEDULER_PORT, [])):
            kubeconfig = self.node.kubeconfig(name, f"system:{name}")
            roles = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
            options = [f"--{role}={kubeconfig}" for role in roles]
            options += ["--bind-address=127.0.0.1", f"--secure-port={port}", "--leader-elect=false"]
            self.processes.start(name, [str(programs / name), *options, "--profiling=false", *more])

    def _start_addons(self, kuberay: str) -> None:
        self.node.import_images([addons.dns_image(), addons.kuberay_image(kuberay)])
        self.addons.apply(kuberay)
        provisioner = self.node.kubeconfig(addons.PROVISIONER, addons.PROVISIONER, ["system:masters"])
        self.addons.start_processes(provisioner)
        self.processes.wait("Prometheus", self._prometheus_answers, 30, (addons.PROMETHEUS,))
        try:
            self.processes.wait("DNS and KubeRay", lambda: not self.addons.unready(), ADDON_SECONDS, ADDON_NEEDS)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self._pods_in_trouble()}") from error

    def _stop(self) -> None:
        """Stop what runs and put the host back; the state folder goes last, since it says how the host was."""
        for name in (addons.PROVISIONER, addons.PROMETHEUS, MANAGER, SCHEDULER):
            self.processes.stop(name)
        before = HostState.load(self._host_record) if self._host_record.exists() else None
        self._end_node()
        self.plane.stop_processes()
        swept = self.processes.sweep()
        if swept:
            say(f"         {len(swept)} more processes had no record and were killed")
        if before:
            before.restore()
        for folder in (self.state, self.node.image_root):
            _require_no_mounts_below(folder)
        shutil.rmtree(self.state, ignore_errors=True)

    def _end_node(self) -> None:
        """End kubelet, pods and containerd, also when containerd is not there to end its pods."""
        for name in (node.KUBELET, node.PROXY):
            self.processes.stop(name)
        if self._host_record.exists():
            HostState.load(self._host_record).kill_containers()
        self.node.stop()
        self.processes.sweep(keep_recorded=True)

    def _stop_another_version(self) -> None:
        """Stop a cluster that another version of this package, or another address of this machine, left running."""
        record = self.state / "identity.json"
        identity = {"address": self.plane.address.node, "kubernetes": binaries.KUBERNETES.digest()}
        if record.exists() and json.loads(record.read_text()) != identity:
            say("         the cluster that runs is of another version or address: starting anew")
            self._stop()
        self.state.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(identity))

    def _require_free_host(self) -> None:
        """Raise UnavailableError when this machine runs another cluster, of ours or of anybody."""
        if self._host_record.exists():
            return
        other = _owner()
        if other and other != self.state and Processes(other).strays():
            raise UnavailableError(f"a full cluster with its state in {other} runs on this machine already")
        if host.foreign_containers():
            raise UnavailableError("another Kubernetes node runs on this machine: its cgroups are in use")

    def _take_host(self) -> None:
        """Record how the host is before anything changes it, and that this cluster has it."""
        if not self._host_record.exists():
            HostState.now().save(self._host_record)
        OWNER.parent.mkdir(exist_ok=True)
        OWNER.write_text(str(self.state))

    @property
    def _host_record(self) -> Path:
        return self.state / "host.json"

    def _prometheus_answers(self) -> bool:
        try:
            with urlopen(f"{self.addons.prometheus_url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _pods_in_trouble(self) -> str:
        """Return, per pod that is not ready, what its containers wait for and the end of its last log."""
        lines = []
        for pod in (self.plane.api.found("/api/v1/pods") or {}).get("items", []):
            states = pod["status"].get("containerStatuses", [])
            if states and all(state["ready"] for state in states):
                continue
            waits = [state["state"].get("waiting") or state["state"].get("terminated") or {} for state in states]
            reasons = [f"{wait.get('reason')}: {wait.get('message', '')}" for wait in waits]
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            lines.append(f"pod {namespace}/{name} {pod['status'].get('phase')} {'; '.join(reasons)}")
            logs = (self.state / "podlogs").glob(f"{namespace}_{name}_*/*/*.log")
            for log in sorted(logs, key=lambda path: path.stat().st_mtime)[-1:]:
                lines += [f"  {line[:400]}" for line in log.read_text(errors="replace").splitlines()[-8:]]
        return "\n".join(lines)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep out a second `up` or `down` for as long as this one takes."""
        paths.cache_root().mkdir(parents=True, exist_ok=True)
        with (paths.cache_root() / "cluster.lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("         waiting for another `up` or `down` of this cluster")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _owner() -> Path | None:
    """Return the state folder of the cluster that this machine runs, or ran until it was switched off."""
    return Path(OWNER.read_text()) if OWNER.exists() else None


def require_machine() -> None:
    """Raise UnavailableError where a node cannot run."""
    if not sys.platform.startswith("linux"):
        raise UnavailableError(f"the full cluster needs Linux; this is {sys.platform}")
    if os.geteuid() != 0:
        raise UnavailableError("the full cluster needs root: it runs a kubelet and containerd")
    if not shutil.which("apt-get"):
        raise UnavailableError("the full cluster needs apt-get: containerd and etcd come from Debian packages")
    if _own_address() == LOOPBACK:
        raise UnavailableError("the full cluster needs a network interface with an address beside loopback")


def _own_address() -> str:
    """Return the address that this machine sends from; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK


def _require_no_mounts_below(folder: Path) -> None:
    """Unmount what is mounted below a folder before somebody removes it with all that it shows."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        done = subprocess.run(["umount", "--lazy", mount], capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0:
            raise ClusterError(f"{mount} cannot be unmounted: {done.stderr.strip()}")
