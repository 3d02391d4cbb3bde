"""What runs on the full cluster from the start: cluster DNS, volumes, KubeRay and Prometheus.

Called by `full`. DNS and KubeRay run in pods, as they do anywhere; the volume provisioner and Prometheus are
processes of this machine, Prometheus with a Service in front of it. Manifests are plain objects, applied by the server.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import binaries
from tests.cluster.archive import StaticImage
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node import BUSYBOX_IMAGE, DNS_ADDRESS, DOMAIN

PROMETHEUS, PROVISIONER = "prometheus", "local-path-provisioner"
PROMETHEUS_PORT = 19090
SCRAPE_SECONDS = 5
DNS_NAMESPACE, STORAGE_NAMESPACE = "kube-system", "local-path-storage"
KUBERAY_NAMESPACE, MONITORING_NAMESPACE = "ray-system", "monitoring"
STORAGE_CLASS = "local-path"
COREFILE = f"""\
.:53 {{
    errors
    health
    ready
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        ttl 5
    }}
    forward . /etc/resolv.conf
    cache 5
    reload
}}
"""
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Addons:
    """The additions to a control plane with a node."""

    plane: ControlPlane

    @property
    def _state(self) -> Path:
        return self.plane.state

    @property
    def prometheus_url(self) -> str:
        """Where this machine reaches Prometheus."""
        return f"http://127.0.0.1:{PROMETHEUS_PORT}"

    def apply(self, kuberay: str) -> None:
        """Apply all manifests; the CRDs of that KubeRay version must be there, or its operator would give up."""
        for path, manifest in self._manifests():
            self.plane.api.apply(path, manifest)
        self.apply_kuberay(kuberay)

    def apply_kuberay(self, version: str) -> None:
        """Apply KubeRay's operator in one version, which replaces the pod of another."""
        for path, manifest in _kuberay(version):
            self.plane.api.apply(path, manifest)

    def kuberay_is(self, version: str) -> bool:
        """Whether KubeRay's operator was applied in this version, and in no other after it."""
        found = _deployed(self.plane, KUBERAY_NAMESPACE, "kuberay-operator")
        pod = found.get("spec", {}).get("template", {}).get("spec", {"containers": []})
        return [entry["image"] for entry in pod["containers"]] == [_kuberay_reference(version)]

    @property
    def scrape_targets(self) -> Path:
        """A folder for files `*.json` like `[{"targets": ["10.88.81.7:8080"]}]`, which Prometheus scrapes."""
        return self._state / "scrape"

    def start_processes(self, provisioner_kubeconfig: Path) -> None:
        """Start the volume provisioner and Prometheus."""
        program = binaries.go_program(binaries.LOCAL_PATH) / PROVISIONER
        configuration = self._state / "conf" / "local-path.json"
        configuration.write_text(json.dumps(self._storage_settings()))
        helper = self._state / "conf" / "local-path-helper.json"
        helper.write_text(json.dumps(_helper_pod()))
        (self._state / "volumes").mkdir(exist_ok=True)
        options = [
            f"--config={configuration}",
            f"--kubeconfig={provisioner_kubeconfig}",
            f"--helper-image={BUSYBOX_IMAGE}",
            f"--helper-pod-file={helper}",
            "--configmap-name=local-path-config",
            f"--namespace={STORAGE_NAMESPACE}",
        ]
        self.plane.processes.start(PROVISIONER, [str(program), "start", *options])
        settings = self._state / "conf" / "prometheus.json"
        self.scrape_targets.mkdir(exist_ok=True)
        settings.write_text(json.dumps(_scrape_settings(self.scrape_targets)))
        command = [
            "prometheus",
            f"--config.file={settings}",
            f"--storage.tsdb.path={self._state / 'prometheus'}",
            f"--web.listen-address=0.0.0.0:{PROMETHEUS_PORT}",
            "--web.enable-remote-write-receiver",
        ]
        self.plane.processes.start(PROMETHEUS, command)

    def unready(self) -> list[str]:
        """Return which Deployments are not available yet."""
        wanted = ((DNS_NAMESPACE, "coredns"), (KUBERAY_NAMESPACE, "kuberay-operator"))
        return [f"{namespace}/{name}" for namespace, name in wanted if not self._is_available(namespace, name)]

    def _is_available(self, namespace: str, name: str) -> bool:
        found = _deployed(self.plane, namespace, name)
        status = found.get("status", {})
        current = status.get("observedGeneration") == found.get("metadata", {}).get("generation")
        return bool(found) and current and status.get("availableReplicas", 0) >= 1 == status.get("updatedReplicas")

    def _storage_settings(self) -> Manifest:
        return {"nodePathMap": [], "sharedFileSystemPath": str(self._state / "volumes")}

    def _manifests(self) -> Iterator[tuple[str, Manifest | str]]:
        for namespace in (STORAGE_NAMESPACE, KUBERAY_NAMESPACE, MONITORING_NAMESPACE):
            yield f"/api/v1/namespaces/{namespace}", _object("v1", "Namespace", namespace)
        yield from _dns()
        yield from self._storage()
        yield from self._monitoring()

    def _storage(self) -> Iterator[tuple[str, Manifest | str]]:
        core = f"/api/v1/namespaces/{STORAGE_NAMESPACE}"
        account = "local-path-provisioner-service-account"
        yield f"{core}/serviceaccounts/{account}", _object("v1", "ServiceAccount", account)
        data = {
            "config.json": json.dumps(self._storage_settings()),
            # Any user may write: pods run as uid 1000, and fsGroup does not apply to folders of the host.
            "setup": '#!/bin/sh\nset -eu\nmkdir -m 0777 -p "$VOL_DIR"\n',
            "teardown": '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n',
            "helperPod.yaml": json.dumps(_helper_pod()),
        }
        yield f"{core}/configmaps/local-path-config", _object("v1", "ConfigMap", "local-path-config", data=data)
        storage_class = _object(
            "storage.k8s.io/v1",
            "StorageClass",
            STORAGE_CLASS,
            provisioner="rancher.io/local-path",
            reclaimPolicy="Delete",
            volumeBindingMode="Immediate",
        )
        storage_class["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
        yield f"/apis/storage.k8s.io/v1/storageclasses/{STORAGE_CLASS}", storage_class

    def _monitoring(self) -> Iterator[tuple[str, Manifest | str]]:
        service = _object("v1", "Service", "prometheus", spec={"ports": [{"name": "http", "port": 9090}]})
        service["spec"]["ports"][0]["targetPort"] = PROMETHEUS_PORT
        yield f"/api/v1/namespaces/{MONITORING_NAMESPACE}/services/prometheus", service
        endpoints = _object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            "prometheus",
            addressType="IPv4",
            endpoints=[{"addresses": [self.plane.address.node], "conditions": {"ready": True}}],
            ports=[{"name": "http", "port": PROMETHEUS_PORT, "protocol": "TCP"}],
        )
        endpoints["metadata"]["labels"] = {"kubernetes.io/service-name": "prometheus"}
        yield f"/apis/discovery.k8s.io/v1/namespaces/{MONITORING_NAMESPACE}/endpointslices/prometheus", endpoints


def dns_image() -> StaticImage:
    """Return the image of the cluster's DNS; a program's digest is its image's tag."""
    return StaticImage(_dns_reference(), {"/coredns": binaries.go_program(binaries.COREDNS) / "coredns"}, ["/coredns"])


def kuberay_image(version: str) -> StaticImage:
    """Return the image of KubeRay's operator in one version."""
    program = binaries.go_program(binaries.kuberay(version)) / "ray-operator"
    return StaticImage(_kuberay_reference(version), {"/manager": program}, ["/manager"], user="65532")


def _dns_reference() -> str:
    return f"localhost/coredns:{binaries.COREDNS.version}-{binaries.COREDNS.digest()}"


def _kuberay_reference(version: str) -> str:
    return f"localhost/kuberay-operator:{version}-{binaries.kuberay(version).digest()}"


def _dns() -> Iterator[tuple[str, Manifest | str]]:
    core, roles = f"/api/v1/namespaces/{DNS_NAMESPACE}", "/apis/rbac.authorization.k8s.io/v1"
    reads = [
        {
            "apiGroups": [""],
            "resources": ["endpoints", "services", "pods", "namespaces"],
            "verbs": ["list", "watch"],
        },
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    yield f"{core}/serviceaccounts/coredns", _object("v1", "ServiceAccount", "coredns")
    role = _object("rbac.authorization.k8s.io/v1", "ClusterRole", "system:coredns", rules=reads)
    yield f"{roles}/clusterroles/system:coredns", role
    yield f"{roles}/clusterrolebindings/system:coredns", _binding("system:coredns", DNS_NAMESPACE, "coredns")
    yield f"{core}/configmaps/coredns", _object("v1", "ConfigMap", "coredns", data={"Corefile": COREFILE})
    container = {
        "name": "coredns",
        "image": _dns_reference(),
        "args": ["-conf", "/etc/coredns/Corefile"],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "40Mi"}},
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/coredns"}],
    }
    pod = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [{"name": "configuration", "configMap": {"name": "coredns"}}],
    }
    deployment = _deployment("coredns", {"k8s-app": "kube-dns"}, pod)
    yield f"/apis/apps/v1/namespaces/{DNS_NAMESPACE}/deployments/coredns", deployment
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    spec = {"clusterIP": DNS_ADDRESS, "selector": {"k8s-app": "kube-dns"}, "ports": ports}
    yield f"{core}/services/kube-dns", _object("v1", "Service", "kube-dns", spec=spec)


def _kuberay(version: str) -> Iterator[tuple[str, Manifest | str]]:
    name, roles = "kuberay-operator", "/apis/rbac.authorization.k8s.io/v1"
    # The rights are KubeRay's own file; the Deployment is ours: its own waits ten seconds before the first probe
    # and may use a tenth of a core, which would slow down every run here.
    rights = (binaries.kuberay_config(version) / "rbac" / "role.yaml").read_text()
    yield f"{roles}/clusterroles/{name}", rights.removeprefix("---\n")
    yield f"{roles}/clusterrolebindings/{name}", _binding(name, KUBERAY_NAMESPACE, name)
    yield f"/api/v1/namespaces/{KUBERAY_NAMESPACE}/serviceaccounts/{name}", _object("v1", "ServiceAccount", name)
    container = {
        "name": name,
        "image": _kuberay_reference(version),
        "args": ["--enable-leader-election=false", "--metrics-addr=:8080", "--health-probe-bind-address=:8082"],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8082}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "serviceAccountName": name,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    deployment = _deployment(name, {"app.kubernetes.io/name": "kuberay", "app.kubernetes.io/component": name}, pod)
    yield f"/apis/apps/v1/namespaces/{KUBERAY_NAMESPACE}/deployments/{name}", deployment


def _deployed(plane: ControlPlane, namespace: str, name: str) -> Manifest:
    return plane.api.found(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}") or {}


def _object(version: str, kind: str, name: str, **content: Any) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}


def _binding(role: str, namespace: str, account: str) -> Manifest:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
    kind = "ClusterRoleBinding"
    return _object("rbac.authorization.k8s.io/v1", kind, role, roleRef=reference, subjects=subjects)


def _deployment(name: str, labels: dict[str, str], pod: Manifest) -> Manifest:
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return _object("apps/v1", "Deployment", name, spec=spec)


def _helper_pod() -> Manifest:
    container = {"name": "helper-pod", "image": BUSYBOX_IMAGE, "imagePullPolicy": "IfNotPresent"}
    return _object("v1", "Pod", "helper-pod", spec={"containers": [container], "terminationGracePeriodSeconds": 0})


def _scrape_settings(targets: Path) -> Manifest:
    """Scrape what the files of a folder name: Debian's Prometheus is built without the discovery of pods."""
    discovery = [{"files": [str(targets / "*.json")], "refresh_interval": f"{SCRAPE_SECONDS}s"}]
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "scrape_configs": [{"job_name": "files", "file_sd_configs": discovery}],
    }
