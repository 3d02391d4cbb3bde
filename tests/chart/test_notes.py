"""What helm prints after the installation: what to do next, and what these values lack."""

import subprocess

import pytest

from tests.cluster import binaries
from tests.harness import CHART

ALL_IS_WELL = ("nodePools[0].name=a100",)


def notes(*options: str) -> str:
    """The notes of a release with these `--set` values, in a cluster that helm does not ask."""
    flags = [flag for option in options for flag in ("--set", option)]
    command = [str(binaries.clients() / "helm"), "install", "release", str(CHART), "--dry-run=client", *flags]
    done = subprocess.run(
        [*command, "--namespace", "agent-tuning"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return done.stdout.partition("\nNOTES:\n")[2]


def test_the_next_steps_name_the_release_that_was_made() -> None:
    text = notes()
    assert "serves all namespaces." in text
    assert "kubectl --namespace agent-tuning rollout status deployment/release-agent-tuning-operator" in text
    assert "kubectl get crd rayclusters.ray.io" in text
    assert "kubectl apply --dry-run=server -f tuningrun.tiny.yaml" in text
    assert "kubectl get tuningruns --all-namespaces --watch" in text
    assert "kubectl explain tuningrun.spec" in text
    assert "kubectl get rayclusters --all-namespaces --selector agenttuning.io/run-uid" in text


def test_with_one_namespace_every_command_names_it() -> None:
    text = notes("watchNamespace=ml")
    assert "serves the namespace ml." in text
    lines = [line.strip() for line in text.splitlines() if line.startswith("     kubectl")]
    commands = [line for line in lines if "tuningrun" in line and " explain " not in line]
    assert len(commands) == 4, "kubectl apply twice, get and describe"
    assert all("--namespace ml" in line for line in commands), commands
    assert "--all-namespaces" not in text


def test_the_pools_are_named() -> None:
    assert "Node pools for runs: a100, cpu.\n" in notes("nodePools[0].name=a100", "nodePools[1].name=cpu")


@pytest.mark.parametrize(
    ("option", "warning"),
    [
        ("nodePools=null", "NOTE: there are no node pools"),
        ("images.runner=", "WARNING: images.runner is empty"),
        ("crds.enabled=false", "WARNING: crds.enabled is false"),
        ("rbac.create=false", "WARNING: rbac.create is false"),
        ("replicas=1", "NOTE: there is one operator"),
        ("stopKey.existingSecret=mine", "has the Secret mine with the key `key`."),
        ("defaults.caBundle.configMap=ca", "needs the ConfigMap ca with the key ca.crt."),
        ("defaults.huggingFaceCache.claimName=hub", "needs the claim hub."),
    ],
)
def test_what_these_values_lack_is_said_and_only_then(option: str, warning: str) -> None:
    assert warning in notes(option)
    assert warning not in notes(*ALL_IS_WELL)


def test_a_cluster_without_kuberay_is_told_so() -> None:
    assert "WARNING: this cluster does not serve ray.io/v1." in notes()
