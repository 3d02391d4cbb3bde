"""The operator's own pods: one of two acts, the other takes over, and helm asks before it removes both."""

import json
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Installation
from tests.harness import CHART, Cluster, CommandError, wait_for

pytestmark = pytest.mark.cluster

NAMESPACE = "one-team"
RELEASE = "team"
NAME = f"{RELEASE}-agent-tuning-operator"
HELD = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "math-agent-123456-1", "labels": {"agenttuning.io/run-uid": "123456"}},
    # KubeRay makes no pod of it.
    "spec": {
        "suspend": True,
        "headGroupSpec": {
            "rayStartParams": {},
            "template": {"spec": {"containers": [{"name": "ray-head", "image": "none"}]}},
        },
    },
}


@pytest.fixture(scope="module")
def team(installation: Installation) -> Iterator[Cluster]:
    """A second operator, for one namespace, in a namespace that admits restricted pods alone."""
    here = installation.cluster
    here.ensure_namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
    values = {
        "crds.enabled": "false",
        "rbac.aggregate": "false",
        "watchNamespace": NAMESPACE,
        "images.operator": installation.images["operator"],
    }
    options = [option for key, value in values.items() for option in ("--set", f"{key}={value}")]
    here.helm("install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--wait", "--timeout", "180s", *options)
    yield here
    here.kubectl("delete", "namespace", NAMESPACE, "--timeout=100s")


def holder(here: Cluster) -> str:
    """The pod that acts; empty while none does."""
    lease = here.find("lease", NAME, NAMESPACE) or {"spec": {}}
    return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]


def ready(here: Cluster) -> int:
    """How many of the pods are ready."""
    deployment = here.find("deployment", NAME, NAMESPACE) or {"status": {}}
    return int(deployment["status"].get("readyReplicas", 0))


def test_another_pod_acts_when_the_one_that_acts_is_deleted(team: Cluster) -> None:
    first = wait_for("leader", lambda: holder(team), 30)
    assert len(team.objects("pods", NAMESPACE)) == 2
    team.kubectl("delete", "pod", first, "--namespace", NAMESPACE, "--wait=false")
    # The one that waited, or the one that replaces the first: on an idle machine a new pod is up within seconds.
    wait_for("another leader", lambda: holder(team) not in ("", first), 15, 0.1)


def test_helm_refuses_to_remove_the_operator_while_the_cluster_of_a_run_is_left(team: Cluster) -> None:
    team.apply([HELD], NAMESPACE)
    with pytest.raises(CommandError, match=f"RayClusters that nobody would free: {NAMESPACE}/math-agent-123456-1"):
        team.helm("uninstall", RELEASE, "--namespace", NAMESPACE)
    wait_for("two operators", lambda: ready(team) == 2, 30)
    team.helm("rollback", RELEASE, "1", "--namespace", NAMESPACE)
    (release,) = json.loads(team.helm("list", "--namespace", NAMESPACE, "-o", "json"))
    assert release["status"] == "deployed"
    team.kubectl("delete", "raycluster", "math-agent-123456-1", "--namespace", NAMESPACE)
    team.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
    assert team.find("deployment", NAME, NAMESPACE) is None
    assert team.find("secret", f"{NAME}-stop-key", NAMESPACE) is None
