"""What the chart runs before helm removes the operator, with the operator's rights, on a real API server."""

import os
import subprocess
import sys

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.paths import CHECKOUT
from tests.integration.operator_process import grant
from tests.integration.stage import CLUSTERS, Stage
from tuning_operator.api.meta import RUN_UID_LABEL

pytestmark = pytest.mark.control_plane

USER = "uninstaller"


def asked(plane: ControlPlane, namespace: str, user: str = USER) -> tuple[int, str]:
    """Exit code and words of the guard."""
    done = subprocess.run(
        [sys.executable, "-m", "tuning_operator.uninstall"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CHECKOUT / "operator"),
            "KUBECONFIG": str(plane.client_for(user)),
            "WATCH_NAMESPACE": namespace,
        },
        cwd=plane.state,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def a_cluster(stage: Stage, name: str, **labels: str) -> None:
    """A RayCluster with these labels."""
    template = {"spec": {"containers": [{"name": "ray-head", "image": "x"}]}}
    stage.api.request(
        "POST",
        CLUSTERS.format(stage.namespace),
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": name, "labels": labels},
            "spec": {"headGroupSpec": {"rayStartParams": {}, "template": template}},
        },
    )


def test_it_names_what_nobody_would_free_and_no_cluster_of_others(control_plane: ControlPlane, stage: Stage) -> None:
    grant(control_plane.api, USER)
    a_cluster(stage, "of-somebody-else")
    assert asked(control_plane, stage.namespace) == (0, "")
    a_cluster(stage, "math-agent-123456-1", **{RUN_UID_LABEL: "123456"})
    code, words = asked(control_plane, stage.namespace)
    assert code == 1
    assert f"RayClusters that nobody would free: {stage.namespace}/math-agent-123456-1\n" in words
    assert "helm uninstall --no-hooks" in words
    # In all namespaces there may be clusters of other tests, and only a few are named.
    code, words = asked(control_plane, "")
    assert code == 1
    assert "RayClusters that nobody would free: " in words
    assert "of-somebody-else" not in words
    stage.delete(CLUSTERS, "math-agent-123456-1")
    assert asked(control_plane, stage.namespace) == (0, "")


def test_who_may_not_look_is_not_told_that_there_is_nothing(control_plane: ControlPlane, stage: Stage) -> None:
    code, words = asked(control_plane, stage.namespace, "nobody-in-particular")
    assert code == 1
    assert "cannot see whether RayClusters of runs exist" in words
