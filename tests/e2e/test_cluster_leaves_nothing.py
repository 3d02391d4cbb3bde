"""Stopping the full cluster leaves the host as it was, whatever was killed before, and starting it repairs it.

These tests stop the cluster, so they run after all others, and only if it was not there before the test session.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import binaries, host, node, small_volume
from tests.cluster.full import PROCESSES, FullCluster
from tests.cluster.outages import kill

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.stops_cluster,
    pytest.mark.timeout(900),
]

# A pod with everything that leaves traces on a host: a volume, a port of the host, a memory-backed volume.
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "traces"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": node.BUSYBOX_IMAGE,
                "command": ["/bin/sleep", "3600"],
                "ports": [{"containerPort": 8080, "hostPort": 28080}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "memory", "mountPath": "/memory"}],
            }
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "traces"}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        ],
    },
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "traces"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.fixture
def fresh(cluster_was_there: bool, cluster: FullCluster) -> Iterator[FullCluster]:
    """The full cluster, stopped; stopped again after the test."""
    if cluster_was_there:
        pytest.skip("a cluster runs that this test session did not start: stop it first (make cluster-down)")
    cluster.down(keep_registry=True)
    yield cluster
    cluster.down(keep_registry=True)


def kubectl(cluster: FullCluster, *arguments: str, manifest: object = None) -> str:
    command = [str(binaries.clients() / "kubectl"), f"--kubeconfig={cluster.kubeconfig}", *arguments]
    text = None if manifest is None else json.dumps(manifest)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}"
    return done.stdout


def run_the_pod(cluster: FullCluster) -> None:
    for manifest in (CLAIM, POD):
        kubectl(cluster, "create", "--namespace=default", "--filename=-", manifest=manifest)
    kubectl(cluster, "wait", "--namespace=default", "--for=condition=Ready", "pod/traces", "--timeout=120s")


def traces() -> dict[str, list[str]]:
    """All that a cluster leaves on a host, by kind."""
    rules = [line for tool in ("iptables-save", "ip6tables-save") for line in output(tool).splitlines()]
    cgroups = Path("/sys/fs/cgroup")
    return {
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "rules": sorted(rule.split(" [")[0] for rule in rules if rule.startswith((":", "-", "*"))),
        "filter tables": sorted(output("nft", "list", "tables").splitlines()),
        "loop devices": sorted(output("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines()),
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": sorted(str(path) for path in [*cgroups.glob("*"), *cgroups.glob("*/*")] if path.is_dir()),
        "settings": sorted(
            output("sysctl", "--all", "--ignore", "--pattern", "^(vm.over|vm.panic|kernel.panic)").splitlines()
        ),
        "network settings": sorted(
            line
            for line in output(
                "sysctl", "--all", "--ignore", "--pattern", "^net[.]ipv[46][.](conf|ip_forward)"
            ).splitlines()
        ),
        "folders": [folder for folder in host.FOLDERS if Path(folder).exists()],
    }


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def assert_nothing_is_left(cluster: FullCluster, before: dict[str, list[str]]) -> None:
    after = traces()
    assert {kind: after[kind] for kind in after if after[kind] != before[kind]} == {}
    assert not [rule for rule in after["rules"] if "KUBE-" in rule or "CNI-" in rule]
    assert host.BRIDGE not in after["interfaces"]
    assert cluster.processes.strays() == []
    assert not cluster.state.exists()


def test_stopping_leaves_the_host_as_it_was(fresh: FullCluster) -> None:
    before = traces()
    fresh.up()
    run_the_pod(fresh)
    during = traces()
    assert any("KUBE-" in rule for rule in during["rules"])
    assert host.BRIDGE in during["interfaces"]
    assert any(path.endswith("/kubepods") for path in during["cgroups"])
    fresh.down(keep_registry=True)
    assert_nothing_is_left(fresh, before)


@pytest.mark.parametrize("names", [("kubelet", node.HOLDER, "etcd"), PROCESSES])
def test_stopping_leaves_nothing_after_processes_were_killed(fresh: FullCluster, names: tuple[str, ...]) -> None:
    before = traces()
    fresh.up()
    run_the_pod(fresh)
    # As a test that is killed itself leaves it: mounted, and with a loop device behind it.
    small_volume.mount(fresh, "abandoned", 4)
    assert traces()["loop devices"] != before["loop devices"]
    kill(fresh, *names)
    fresh.down(keep_registry=True)
    assert_nothing_is_left(fresh, before)


@pytest.mark.parametrize("names", [("containerd", "kubelet"), PROCESSES])
def test_starting_again_repairs_what_was_killed_and_keeps_the_objects(
    fresh: FullCluster, names: tuple[str, ...]
) -> None:
    fresh.up()
    run_the_pod(fresh)
    kill(fresh, *names)
    assert fresh.faults()
    fresh.up()
    assert fresh.faults() == []
    kubectl(fresh, "get", "--namespace=default", "pvc/traces")
    kubectl(fresh, "delete", "--namespace=default", "pod/traces", "--grace-period=1")
    kubectl(fresh, "create", "--namespace=default", "--filename=-", manifest=POD)
    kubectl(fresh, "wait", "--namespace=default", "--for=condition=Ready", "pod/traces", "--timeout=120s")


def test_stopping_twice_is_harmless(fresh: FullCluster) -> None:
    before = traces()
    fresh.down(keep_registry=True)
    assert_nothing_is_left(fresh, before)
