"""The main sample as it stands, in a namespace that enforces the restricted pod security standard."""

import json

import pytest

from tests.e2e.conftest import Installation
from tests.e2e.runs import delete, pods, start, wait_for_step
from tests.harness import build_images, sample

pytestmark = pytest.mark.cluster
NAME = "math-agent"


def test_the_math_agent_trains_in_a_restricted_namespace(installation: Installation) -> None:
    namespace = json.loads(installation.cluster.kubectl("get", "namespace", installation.namespace, "-o", "json"))
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    start(installation, *sample(NAME, build_images(NAME)[NAME]))
    wait_for_step(installation, NAME, 1, 360)
    running = pods(installation, f"agenttuning.io/run={NAME}")
    assert {pod["status"]["phase"] for pod in running} == {"Running"}
    assert len(running) == 2
    delete(installation, NAME)
