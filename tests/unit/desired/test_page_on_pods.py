"""The page on changing pods: its example does what it says, and the fields that it names exist."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.builders import a_run, some_settings
from tests.unit.api.test_crd import SPEC
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import pod_template, raycluster

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "change-the-pods.md").read_text()


def the_example() -> TuningRun:
    """A run with the page's cluster."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return a_run(**yaml.safe_load(text))


def test_the_example_is_allowed_and_changes_head_and_workers() -> None:
    run = the_example()
    assert pod_template.problems(run, some_settings()) == ()
    built: Any = raycluster.build(run, some_settings(), 1)["spec"]
    head, worker = built["headGroupSpec"]["template"], built["workerGroupSpecs"][0]["template"]
    assert head["spec"]["schedulerName"] == "bin-packing"
    assert head["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert worker["metadata"]["annotations"]["example.com/profile"] == "tools"
    assert [container["name"] for container in worker["spec"]["containers"]] == ["ray-worker", "tool-server"]
    assert {"name": "socket", "mountPath": "/run/tools"} in worker["spec"]["containers"][0]["volumeMounts"]


def test_the_fields_of_the_page_exist() -> None:
    named = re.findall(r"`((?:workflow|cluster\.head)\.[a-zA-Z]+|podLabels|podAnnotations|serviceAccountName)`", PAGE)
    assert len(named) >= 5
    assert [field for field in named if f"spec.{field}" not in SPEC] == []
