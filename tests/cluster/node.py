"""The node of the full cluster: containerd, kubelet and kube-proxy, and the images that the cluster itself needs.

Called by `full`. containerd and the kubelet share a mount namespace of their own, held by one idle process: pods need
shared mounts, the host's are private, and so no mount of a pod is ever seen outside. The host's settings that change
are the matter of `host`.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import binaries
from tests.cluster.archive import StaticImage
from tests.cluster.control_plane import ControlPlane
from tests.cluster.errors import ClusterError
from tests.cluster.host import BRIDGE, VOLATILE
from tests.cluster.processes import Processes

NODE = "node1"
POD_NETWORK = "10.88.81.0/24"
DNS_ADDRESS = "10.97.0.10"
DOMAIN = "cluster.local"
SOCKET = Path(VOLATILE, "containerd.sock")
PAUSE_IMAGE = "localhost/pause:1"
BUSYBOX_IMAGE = "localhost/busybox:1"
HOLDER, CONTAINERD, KUBELET, PROXY = "mount-namespace", "containerd", "kubelet", "kube-proxy"
KUBELET_PORT, KUBELET_HEALTH_PORT, PROXY_HEALTH_PORT, PROXY_METRICS_PORT = 20250, 20248, 20256, 20249
# Links in the busybox image: what shell scripts of tests and of the volume provisioner call.
APPLETS = "cat chmod cp date df env false grep head id ls mkdir nslookup rm sed sh sleep stat tail test touch true wget"


@dataclass(frozen=True)
class Node:
    """The one node of the cluster in a state folder; images lie in `image_root`, which outlives it."""

    plane: ControlPlane
    image_root: Path

    @property
    def state(self) -> Path:
        """The cluster's state folder."""
        return self.plane.state

    @property
    def processes(self) -> Processes:
        """The cluster's processes."""
        return self.plane.processes

    def configure(self) -> None:
        """Write certificates and configuration files."""
        for folder in ("conf", "cni", "podlogs", "volume-plugins"):
            (self.state / folder).mkdir(parents=True, exist_ok=True)
        SOCKET.parent.mkdir(exist_ok=True)
        self.image_root.mkdir(parents=True, exist_ok=True)
        address = self.plane.address.node
        self.plane.authority.server("kubelet-server", NODE, [f"DNS:{NODE}", f"IP:{address}", "IP:127.0.0.1"])
        self.kubeconfig(KUBELET, f"system:node:{NODE}", ["system:nodes"])
        self.kubeconfig(PROXY, "system:kube-proxy")
        (self.state / "conf" / "containerd.toml").write_text(self._containerd_settings())
        (self.state / "cni" / "10-bridge.conflist").write_text(json.dumps(self._network()))
        (self.state / "cni" / "99-loopback.conf").write_text(
            '{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}'
        )
        (self.state / "conf" / "kubelet.json").write_text(json.dumps(self._kubelet_settings()))
        (self.state / "conf" / "proxy.json").write_text(json.dumps(self._proxy_settings()))

    def kubeconfig(self, name: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write the kubeconfig of a component and return its path."""
        issued = self.plane.authority.client(name, user, groups)
        return self.plane.authority.kubeconfig(self.state / "conf" / f"{name}.kubeconfig", self.plane.server, issued)

    def start_runtime(self) -> None:
        """Start containerd in a mount namespace of its own; pods of an earlier cluster are removed."""
        self.start_containerd()
        if self.processes.pid(KUBELET) is None:
            self.remove_pods()

    def start_containerd(self) -> None:
        """Start containerd alone, which finds the containers again that outlived it."""
        holder = self.processes.start(HOLDER, ["unshare", "--mount", "--propagation", "shared", "sleep", "infinity"])
        # Until it has become `sleep`, its namespace is still the host's.
        self.processes.wait("the mount namespace", lambda: _command_name(holder) == "sleep", 10, (HOLDER,))
        settings = self.state / "conf" / "containerd.toml"
        self.processes.start(CONTAINERD, ["containerd", "--config", str(settings)], namespace_of=holder)
        self.processes.wait("containerd", self._serves_pods, 60, (HOLDER, CONTAINERD))

    def start_kubelet(self) -> None:
        """Start the kubelet and kube-proxy."""
        programs = binaries.go_program(binaries.KUBERNETES)
        pki = self.plane.authority.folder
        kubelet = [
            str(programs / KUBELET),
            f"--config={self.state / 'conf' / 'kubelet.json'}",
            f"--kubeconfig={self.state / 'conf' / 'kubelet.kubeconfig'}",
            f"--hostname-override={NODE}",
            f"--node-ip={self.plane.address.node}",
            f"--root-dir={self.state / 'kubelet'}",
            f"--cert-dir={pki}",
        ]
        self.processes.start(KUBELET, kubelet, namespace_of=self.processes.pid(HOLDER))
        self.processes.start(PROXY, [str(programs / PROXY), f"--config={self.state / 'conf' / 'proxy.json'}"])

    def is_ready(self) -> bool:
        """Whether the API server knows the node as Ready."""
        found = self.plane.api.found(f"/api/v1/nodes/{NODE}") or {}
        conditions = found.get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    @contextmanager
    def offering(self, resource: str, count: int) -> Iterator[None]:
        """Let the node offer so many of an extended resource, which nothing stands behind, for as long as the block.

        The scheduler and the kubelet count it as they count real ones; no device comes into the container.
        """
        key = resource.replace("/", "~1")
        places = (f"/status/capacity/{key}", f"/status/allocatable/{key}")
        self._patch_status([{"op": "add", "path": place, "value": str(count)} for place in places])
        try:
            yield
        finally:
            self._patch_status([{"op": "remove", "path": place} for place in places])

    def _patch_status(self, changes: list[dict[str, str]]) -> None:
        path = f"/api/v1/nodes/{NODE}/status"
        self.plane.api.request("PATCH", path, changes, "application/json-patch+json")

    def import_images(self, images: Sequence[StaticImage]) -> list[str]:
        """Import those images that are not there yet; returns their names. A name stands for one content."""
        present = set(self.ctr("images", "list", "--quiet").split())
        fresh = [image for image in images if image.reference not in present]
        for image in fresh:
            archive = self.state / "image.tar"
            image.write(archive)
            self.load_archive(archive)
            archive.unlink()
        return [image.reference for image in fresh]

    def load_archive(self, archive: Path) -> str:
        """Import an image archive (docker or OCI) so that pods find it; returns what containerd says."""
        return self.ctr("images", "import", str(archive.absolute()), seconds=900)

    def ctr(self, *arguments: str, seconds: float = 120) -> str:
        """Run containerd's own client in the kubelet's namespace of images."""
        return _run(["ctr", "--address", str(SOCKET), "--namespace", "k8s.io", *arguments], seconds)

    def container_pid(self, namespace: str, pod: str, container: str) -> int:
        """Return the process id, on this machine, of the first process of a running container."""
        labels = {"pod.namespace": namespace, "pod.name": pod, "container.name": container}
        selected = [word for key, value in labels.items() for word in ("--label", f"io.kubernetes.{key}={value}")]
        found = self._crictl("ps", "--quiet", *selected, seconds=30).split()
        if not found:
            raise ClusterError(f"container {container} of pod {namespace}/{pod} does not run")
        return int(json.loads(self._crictl("inspect", found[0], seconds=30))["info"]["pid"])

    def remove_pods(self) -> None:
        """Remove all pods from the runtime, as far as it is there to do so; the kubelet must not run."""
        with suppress(ClusterError):
            if self.processes.pid(CONTAINERD) is not None and self._crictl("pods", "--quiet", seconds=30):
                self._crictl("rmp", "--all", "--force", seconds=90)

    def stop(self) -> None:
        """End kubelet, kube-proxy, containerd and what it started; pods are killed."""
        for name in (KUBELET, PROXY):
            self.processes.stop(name)
        self.remove_pods()
        for name in (CONTAINERD, HOLDER):
            self.processes.stop(name)

    def remove_images(self) -> None:
        """Remove containerd's folder with all images; nothing may run."""
        shutil.rmtree(self.image_root, ignore_errors=True)

    def _crictl(self, *arguments: str, seconds: float) -> str:
        """Run the client of the kubelet's protocol (CRI)."""
        program = binaries.go_program(binaries.CRICTL) / "crictl"
        return _run([str(program), "--runtime-endpoint", f"unix://{SOCKET}", "--timeout", "20s", *arguments], seconds)

    def _serves_pods(self) -> bool:
        """Whether a kubelet may start: one that asks before the CRI plugin has recovered its pods ends at once.

        containerd's own client answers earlier, before that recovery.
        """
        try:
            return bool(self._crictl("version", seconds=25))
        except ClusterError:
            return False

    def _containerd_settings(self) -> str:
        # restrict_oom_score_adj: without CAP_SYS_RESOURCE no process may lower its score, and no pod would start.
        return f"""\
version = 2
root = "{self.image_root}"
state = "{VOLATILE}/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{self.state}/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  max_concurrent_downloads = 8
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{shutil.which("runc", path="/usr/sbin:/usr/bin") or "runc"}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self.state}/cni"
"""

    def _network(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "dataDir": str(self.state / "cni-data"),
            "ranges": [[{"subnet": POD_NETWORK}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": addresses,
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}

    def _kubelet_settings(self) -> dict[str, object]:
        pki = self.plane.authority.folder
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "port": KUBELET_PORT,
            "healthzPort": KUBELET_HEALTH_PORT,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet-server.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet-server.key"),
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": DOMAIN,
            "resolvConf": "/etc/resolv.conf",
            "podLogsDir": str(self.state / "podlogs"),
            "volumePluginDir": str(self.state / "volume-plugins"),
            "failSwapOn": False,
            "serializeImagePulls": False,
            # Images come by hand and must stay; a small disk must not evict the tests' pods.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "imagePullCredentialsVerificationPolicy": "NeverVerify",
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
        }

    def _proxy_settings(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self.state / "conf" / "kube-proxy.kubeconfig")},
            "clusterCIDR": POD_NETWORK,
            "hostnameOverride": NODE,
            "healthzBindAddress": f"127.0.0.1:{PROXY_HEALTH_PORT}",
            "metricsBindAddress": f"127.0.0.1:{PROXY_METRICS_PORT}",
            # Zeros: the host's connection tracking settings stay as they are.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }


def own_images() -> list[StaticImage]:
    """Return the images that every pod or the volume provisioner needs; tests may use busybox."""
    pause = binaries.go_program(binaries.PAUSE) / "pause"
    links = {f"/bin/{applet}": "busybox" for applet in APPLETS.split()}
    return [
        StaticImage(PAUSE_IMAGE, {"/pause": pause}, ["/pause"], user="65535"),
        StaticImage(BUSYBOX_IMAGE, {"/bin/busybox": binaries.busybox() / "busybox"}, ["/bin/sh"], links),
    ]


def _command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _run(command: Sequence[str], seconds: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(command)} did not end within {seconds:.0f} s") from error
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout
