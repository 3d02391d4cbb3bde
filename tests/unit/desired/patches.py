"""Runs with a `podTemplatePatch`, for the tests of this folder."""

from typing import Any

from tests.builders import a_run_object
from tuning_operator.api.v1alpha1 import TuningRun


def with_patch(patch: Any, head: Any = None, **spec: Any) -> TuningRun:
    """A run whose head has this patch, in which null stays null."""
    document = a_run_object(cluster={"head": head or {}}, **spec)
    document["spec"]["cluster"]["head"]["podTemplatePatch"] = patch
    return TuningRun.from_object(document)
