"""How the tests of the API ask a real kube-apiserver, and what it says against a run.

Used by the modules test_api_* and test_property_*. Nothing here decides what is right.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.builders import a_run_object
from tests.cluster import binaries
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane

RUNS = "/apis/agenttuning.io/v1alpha1/namespaces/default/tuningruns"
STRICT = "fieldValidation=Strict"
DRY = f"dryRun=All&{STRICT}"
MERGE_PATCH = "application/merge-patch+json"

Spec = dict[str, Any]
_VALUE = re.compile(r'^Invalid value: ("(?:[^"\\]|\\.)*": |-?[0-9.e+]+: )?')


@dataclass(frozen=True)
class RuleCase:
    """One rule, and how it is met from both sides."""

    field: str
    """Path that the error names, such as `spec.cluster.head.gpus`."""
    message: str
    """The rule's message, whole."""
    broken: Spec
    """Changes of the smallest spec that break it."""
    kept: Spec
    """Changes that keep it by a hair."""

    def __str__(self) -> str:
        """What pytest calls the case."""
        return f"{self.field} {self.message[:40]}"


def as_written(name: str = "run", **spec: Any) -> dict[str, Any]:
    """A run as a user writes it."""
    return a_run_object(name, **spec) | {"metadata": {"name": name, "namespace": "default"}}


def dry_run(plane: ControlPlane, **spec: Any) -> dict[str, Any]:
    """Let the server judge a run without keeping it; returns what it would have stored."""
    stored: dict[str, Any] = plane.api.request("POST", f"{RUNS}?{DRY}", as_written(**spec))
    return stored


def refusal(plane: ControlPlane, document: Mapping[str, Any]) -> str:
    """What the server says against a run, as text."""
    with pytest.raises(ApiError) as caught:
        plane.api.request("POST", f"{RUNS}?{DRY}", document)
    return str(caught.value)


def complaints(error: ApiError) -> list[tuple[str, str]]:
    """Field and message of each complaint in the server's answer, without the value that was wrong."""
    body = json.loads(str(error).partition(": ")[2])
    return [(cause["field"], _VALUE.sub("", cause["message"])) for cause in body["details"]["causes"]]


def judge(plane: ControlPlane, case: RuleCase) -> None:
    """Refused with exactly this message at exactly this field, and accepted on the other side of the line."""
    with pytest.raises(ApiError) as caught:
        dry_run(plane, **case.broken)
    assert complaints(caught.value) == [(case.field, case.message)]
    dry_run(plane, **case.kept)


def kubectl(plane: ControlPlane, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run kubectl as the administrator."""
    command = [str(binaries.clients() / "kubectl"), f"--kubeconfig={plane.kubeconfig}", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
