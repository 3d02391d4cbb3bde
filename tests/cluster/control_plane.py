"""etcd and kube-apiserver with an audit log and the CRDs: the profile `control-plane`, and the base of `full`.

Called by the fixture `control_plane`, by the command line and by `full`. No controllers run in this profile: nothing
acts on the objects but whoever the test starts.
"""

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster import binaries, crds, packages
from tests.cluster.api import Api
from tests.cluster.certificates import Authority, groups_of
from tests.cluster.processes import Processes
from tests.cluster.report import step

READY_SECONDS = 90
CRD_SECONDS = 60
ETCD: Final = "etcd"
API_SERVER: Final = "kube-apiserver"
# Who did what to which object, and how it ended; never a body.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True)
class Ports:
    """Where a control plane listens (loopback, but for the API server of the full profile)."""

    etcd: int
    etcd_peer: int
    api: int


@dataclass(frozen=True)
class Address:
    """How the API server is reached, and the addresses of its Services."""

    node: str = "127.0.0.1"
    bind: str = "127.0.0.1"
    service_network: str = "10.97.0.0/16"
    service: str = "10.97.0.1"


class ControlPlane:
    """One etcd and one API server with a state folder of their own."""

    def __init__(self, state: Path, ports: Ports | None = None, address: Address | None = None) -> None:
        """Make a view on the control plane of a state folder; nothing starts.

        Args:
            state: Absolute; keep it short of 80 characters. Made by `start`, removed by `stop`.
            ports: Free ones are taken when None.
            address: Loopback only when None.
        """
        self.state = state
        self.address = address or Address()
        self.authority = Authority(state / "pki")
        self.audit_log = state / "audit.log"
        self.kubeconfig = state / "admin.kubeconfig"
        self.processes = Processes(state)
        self._given_ports = ports

    @property
    def ports(self) -> Ports:
        """The ports in use: given, or taken when it was first started and then kept."""
        if self._given_ports is not None:
            return self._given_ports
        record = self.state / "ports.json"
        if not record.exists():
            self.state.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps(asdict(Ports(*_free_ports(3)))))
        return Ports(**json.loads(record.read_text()))

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://127.0.0.1:{self.ports.api}"

    @property
    def api(self) -> Api:
        """A client with the administrator's rights."""
        return Api(self.server, self.authority.certificate, self.authority.client("admin", "admin", ["system:masters"]))

    def start(self, kuberay: str = binaries.KUBERAY_VERSION) -> "ControlPlane":
        """Start it and wait until it serves our CRDs and those of a KubeRay version; harmless when it runs.

        Returns itself.

        Raises:
            UnavailableError: This machine cannot run it.
            ClusterError: It did not come up; with the log's tail.
        """
        self.prepare(kuberay)
        with step("API server ready"):
            self.start_processes()
            self.wait_ready()
        with step("CRDs served"):
            self.use_kuberay(kuberay)
            self._apply_crds("ours", crds.ours())
        return self

    def prepare(self, kuberay: str) -> None:
        """Install and build what is missing, and write certificates and configuration."""
        packages.ensure(packages.CONTROL_PLANE_PACKAGES)
        binaries.kuberay_config(kuberay)
        binaries.go_program(binaries.KUBERNETES)
        self._configure()

    def start_processes(self) -> None:
        """Start etcd and the API server, which waits for etcd by itself."""
        program = binaries.go_program(binaries.KUBERNETES) / API_SERVER
        self.processes.start(ETCD, self._etcd_command())
        self.processes.start(API_SERVER, [str(program), *self._api_server_options()])

    def wait_ready(self) -> None:
        """Wait until the API server says that it is ready."""
        needs = (ETCD, API_SERVER)
        self.processes.wait("the API server's readiness", self.api.is_ready, READY_SECONDS, needs)

    @property
    def kuberay_version(self) -> str | None:
        """The version of KubeRay whose CRDs are applied; None before the first start."""
        record = self.state / "kuberay-version"
        return record.read_text() if record.exists() else None

    def use_kuberay(self, version: str) -> None:
        """Apply KubeRay's CRDs in one version, in place of those of another one if there are any.

        Objects stay, but lose the fields that the version does not know, and those of kinds that it does not know go.
        Returns when the server has taken the change up, in its OpenAPI documents too.
        """
        self._apply_crds("kuberay", crds.kuberay(binaries.kuberay_config(version)))
        (self.state / "kuberay-version").write_text(version)

    def _apply_crds(self, owner: str, files: Sequence[Path]) -> None:
        """Apply the owner's CRDs, and nothing when exactly these are still served."""
        api = self.api
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        record = self.state / f"crds-{owner}.json"
        before = json.loads(record.read_text()) if record.exists() else {"digest": None, "names": []}
        if before["digest"] == digest and crds.are_served(api, before["names"]):
            return
        names = crds.apply(api, files)
        crds.remove(api, sorted(set(before["names"]) - set(names)))
        self.processes.wait("the CRDs", lambda: crds.are_served(api, names), CRD_SECONDS, (API_SERVER,))
        if before["names"]:
            self.processes.wait("their schemas", lambda: crds.are_published(api, names), CRD_SECONDS, (API_SERVER,))
        record.write_text(json.dumps({"digest": digest, "names": names}))

    def is_healthy(self) -> bool:
        """Whether both processes run and the server says that it is ready."""
        if not (self.authority.key.exists() and (self.state / "run").is_dir()):
            return False
        running = all(self.processes.pid(name) is not None for name in (ETCD, API_SERVER))
        return running and self.api.is_ready()

    def stop(self) -> None:
        """End the processes and remove the state folder; harmless when nothing runs."""
        self.stop_processes()
        self.processes.sweep()
        shutil.rmtree(self.state, ignore_errors=True)

    def stop_processes(self) -> None:
        """End the API server, then etcd: a server whose etcd is gone would hold its port for minutes."""
        for name in (API_SERVER, ETCD):
            self.processes.stop(name)

    def client_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Return a kubeconfig for a user, whose name the audit log shows; `system:masters` as a group may do all.

        A name like `system:serviceaccount:agent-tuning:operator` gets a ServiceAccount's groups, so that role
        bindings to that ServiceAccount hold for it.
        """
        name = "user-" + "".join(c if c.isalnum() or c in "-_" else "-" for c in "_".join([user, *groups]))
        issued = self.authority.client(name, user, [*groups_of(user), *groups])
        return self.authority.kubeconfig(self.state / f"{name}.kubeconfig", self.server, issued)

    def audit_events(self, user: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the audit log's events, oldest first, of one user or all: verb, user, objectRef, responseStatus."""
        with self.audit_log.open() as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return  # being written just now
                event: dict[str, Any] = json.loads(line)
                if user is None or event["user"]["username"] == user:
                    yield event

    def _configure(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        self.authority.create()
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        names += ["kubernetes.default.svc.cluster.local", "localhost"]
        addresses = dict.fromkeys([self.address.service, "127.0.0.1", self.address.node])
        alternatives = [f"DNS:{name}" for name in names] + [f"IP:{address}" for address in addresses]
        self.authority.server("apiserver", "kube-apiserver", alternatives)
        self.authority.client("apiserver-kubelet", "apiserver-kubelet", ["system:masters"])
        admin = self.authority.client("admin", "admin", ["system:masters"])
        self.authority.kubeconfig(self.kubeconfig, self.server, admin)
        (self.state / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))

    def _etcd_command(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.ports.etcd, self.ports.etcd_peer))
        return [
            "etcd",
            "--name=local",
            f"--data-dir={self.state / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=local={peer}",
            "--quota-backend-bytes=4294967296",
            "--auto-compaction-retention=5m",
            "--log-level=warn",
        ]

    def _api_server_options(self) -> list[str]:
        pki = self.authority.folder
        return [
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            f"--secure-port={self.ports.api}",
            f"--bind-address={self.address.bind}",
            f"--advertise-address={self.address.node}",
            f"--service-cluster-ip-range={self.address.service_network}",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={self.authority.token_key}",
            f"--service-account-signing-key-file={self.authority.token_key}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--anonymous-auth=false",
            # Endpoints may not hold a loopback address.
            f"--endpoint-reconciler-type={'none' if self.address.node == '127.0.0.1' else 'lease'}",
            "--profiling=false",
            f"--audit-policy-file={self.state / 'audit-policy.json'}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=4096",
        ]


def running_control_planes(root: Path) -> list[str]:
    """Return the names of the state folders below `root`, running or left behind."""
    return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _free_ports(count: int) -> list[int]:
    """Return free ports below the range that the kernel gives to outgoing connections."""
    found: list[int] = []
    # Each process starts its search elsewhere, so that two that start at once do not pick the same ones.
    for port in (20000 + (os.getpid() * 37 + offset) % 9000 for offset in range(9000)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports from 20000 to 28999")
