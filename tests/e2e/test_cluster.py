"""The full local cluster: what every other end-to-end test takes for granted."""

import json
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import binaries
from tests.cluster.full import FullCluster
from tests.cluster.node import BUSYBOX_IMAGE

pytestmark = pytest.mark.cluster

NAMESPACE = "cluster-test"


def kubectl(cluster: FullCluster, *arguments: str, manifest: object = None) -> str:
    command = [str(binaries.clients() / "kubectl"), f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
    text = None if manifest is None else json.dumps(manifest)
    done = subprocess.run([*command, *arguments], input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
    return done.stdout


def eventually(condition: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)
    return value


@pytest.fixture(scope="module")
def namespace(cluster: FullCluster) -> Any:
    kubectl(cluster, "create", "namespace", NAMESPACE)
    yield cluster
    kubectl(cluster, "delete", "namespace", NAMESPACE, "--wait=true", "--timeout=90s")


def a_pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "command": ["/bin/sh", "-ec", script],
        **spec.pop("container", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


def run_pod(cluster: FullCluster, pod: dict[str, Any]) -> str:
    """Run a pod to its end and return its log; fails unless it succeeds."""
    name = pod["metadata"]["name"]
    kubectl(cluster, "create", "--filename=-", manifest=pod)

    def phase() -> str | None:
        found = kubectl(cluster, "get", "pod", name, "--output=jsonpath={.status.phase}")
        return found if found in ("Succeeded", "Failed") else None

    assert eventually(phase, f"the end of pod {name}") == "Succeeded", kubectl(cluster, "logs", name)
    return kubectl(cluster, "logs", name)


def test_the_node_is_ready_and_runs_the_pinned_kubernetes(cluster: FullCluster) -> None:
    node = json.loads(kubectl(cluster, "get", "node", "node1", "--output=json"))
    assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{binaries.KUBERNETES_VERSION}"


def test_a_pod_runs_and_leaves_its_log(namespace: FullCluster) -> None:
    assert run_pod(namespace, a_pod("hello", "echo hello from a pod")) == "hello from a pod\n"


def test_a_failing_pod_tells_its_exit_code(namespace: FullCluster) -> None:
    kubectl(namespace, "create", "--filename=-", manifest=a_pod("fails", "exit 7"))
    path = "--output=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
    assert eventually(lambda: kubectl(namespace, "get", "pod", "fails", path), "the exit code") == "7"


def test_names_of_services_resolve_and_the_api_answers_in_a_pod(namespace: FullCluster) -> None:
    script = (
        "nslookup kubernetes.default.svc.cluster.local && wget -q -O- http://prometheus.monitoring.svc:9090/-/ready"
    )
    output = run_pod(namespace, a_pod("names", script))
    assert "10.97.0.1" in output
    assert "Prometheus Server is Ready" in output


def test_a_shared_volume_is_writable_for_an_ordinary_user_of_two_pods_at_once(namespace: FullCluster) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl(namespace, "create", "--filename=-", manifest=claim)
    volumes = {
        "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "runAsNonRoot": True},
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
    }
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/data"}]}
    waiter = "until [ -e /data/from-writer ]; do sleep 0.1; done; cat /data/from-writer"
    kubectl(namespace, "create", "--filename=-", manifest=a_pod("reader", waiter, container=mount, **volumes))
    run_pod(
        namespace, a_pod("writer", "id -u > /data/draft; mv /data/draft /data/from-writer", container=mount, **volumes)
    )
    assert eventually(lambda: kubectl(namespace, "logs", "reader"), "what the other pod wrote") == "1000\n"


def test_a_claim_for_one_node_is_bound_too(namespace: FullCluster) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "single"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl(namespace, "create", "--filename=-", manifest=claim)
    phase = "--output=jsonpath={.status.phase}"
    eventually(lambda: kubectl(namespace, "get", "pvc", "single", phase) == "Bound", "the volume")


def test_an_image_that_does_not_exist_shows_why(namespace: FullCluster) -> None:
    pod = a_pod("no-image", "true", container={"image": "127.0.0.1:1/nothing:none"})
    kubectl(namespace, "create", "--filename=-", manifest=pod)
    path = "--output=jsonpath={.status.containerStatuses[0].state.waiting.message}"
    message = eventually(lambda: kubectl(namespace, "get", "pod", "no-image", path), "the message")
    assert "127.0.0.1:1" in message
    kubectl(namespace, "delete", "pod", "no-image")


def test_kuberay_makes_a_head_pod_of_a_raycluster(namespace: FullCluster) -> None:
    template = {"spec": a_pod("unused", "sleep 60", container={"name": "ray-head", "image": BUSYBOX_IMAGE})["spec"]}
    template["spec"].pop("restartPolicy")
    spec = {"rayVersion": "2.60.0", "headGroupSpec": {"rayStartParams": {}, "template": template}}
    manifest = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "tiny"}, "spec": spec}
    kubectl(namespace, "create", "--filename=-", manifest=manifest)
    owned = ["get", "pod", "--selector=ray.io/cluster=tiny", "--output=jsonpath={.items[*].metadata.name}"]
    assert eventually(lambda: kubectl(namespace, *owned), "the head pod").startswith("tiny-head-")
    kubectl(namespace, "delete", "raycluster", "tiny")
    eventually(lambda: not kubectl(namespace, *owned), "the end of the head pod")


def test_prometheus_takes_a_remote_write_and_answers_a_query(cluster: FullCluster) -> None:
    stamp = int(time.time() * 1000)
    request = urllib.request.Request(
        f"{cluster.addons.prometheus_url}/api/v1/write",
        data=a_remote_write("cluster_test_value", 42.5, stamp),
        headers={"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 204
    url = f"{cluster.addons.prometheus_url}/api/v1/query?query=cluster_test_value"

    def values() -> list[str]:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return [series["value"][1] for series in json.load(answer)["data"]["result"]]

    assert eventually(values, "the value") == ["42.5"]


def a_remote_write(name: str, value: float, milliseconds: int) -> bytes:
    """One sample as remote-write 1.0 (protocol buffer WriteRequest), in snappy's form for uncompressed bytes."""

    def number(n: int) -> bytes:
        out = b""
        while n > 127:
            out += bytes([n & 127 | 128])
            n >>= 7
        return out + bytes([n])

    def field(index: int, content: bytes) -> bytes:
        return number(index << 3 | 2) + number(len(content)) + content

    label = field(1, b"__name__") + field(2, name.encode())
    sample = number(1 << 3 | 1) + struct.pack("<d", value) + number(2 << 3) + number(milliseconds)
    message = field(1, field(1, label) + field(2, sample))
    assert len(message) <= 256
    return number(len(message)) + bytes([60 << 2, len(message) - 1]) + message


def test_starting_it_again_changes_nothing(cluster: FullCluster) -> None:
    before = {name: cluster.processes.pid(name) for name in cluster.processes.names()}
    cluster.up()
    assert {name: cluster.processes.pid(name) for name in cluster.processes.names()} == before


def test_the_status_tells_a_script_all_it_needs(cluster: FullCluster) -> None:
    command = [sys.executable, "-m", "tests.cluster", "status", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    status = json.loads(done.stdout)
    assert status["healthy"] is True
    version = [status["kubectl"], f"--kubeconfig={status['kubeconfig']}", "get", "--raw=/version"]
    assert f"v{status['versions']['kubernetes']}" in subprocess.check_output(version, text=True, timeout=60)
    assert subprocess.check_output([status["helm"], "version", "--short"], text=True, timeout=60).startswith("v4")
    with urllib.request.urlopen(f"{status['prometheus']}/-/ready", timeout=10) as answer:
        assert answer.status == 200
