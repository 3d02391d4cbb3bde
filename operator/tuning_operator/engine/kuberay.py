"""Which fields of a RayCluster the operator needs, and which of them a version of KubeRay lacks.

The API server drops a field that the schema does not have without a word: a cluster without its token would be open to
everybody. `cluster.kuberay` reads the schema, the acceptance check `kuberay` tells. Pure.
"""

from collections.abc import Mapping
from typing import Any

FIELDS = (
    "spec.rayVersion",
    "spec.authOptions.mode",
    "spec.headGroupSpec.rayStartParams",
    "spec.headGroupSpec.template.spec.initContainers[].restartPolicy",
    "spec.workerGroupSpecs[].groupName",
    "spec.workerGroupSpecs[].replicas",
    "spec.workerGroupSpecs[].minReplicas",
    "spec.workerGroupSpecs[].maxReplicas",
    "spec.workerGroupSpecs[].rayStartParams",
    "spec.workerGroupSpecs[].template.spec.containers",
)
"""Of the pods' templates only what came late; a test holds the rest against the manifests that are built."""

OLDEST = "1.5.1"
"""The oldest version of KubeRay that the operator is tested with."""

Schema = Mapping[str, Any]


def lacking(schema: Schema) -> tuple[str, ...]:
    """Fields that the manifests set and an OpenAPI schema of RayCluster does not have; of each the highest only."""
    found = (_first_unknown(schema, path.split(".")) for path in FIELDS)
    return tuple(dict.fromkeys(path for path in found if path))


def _first_unknown(schema: Schema, names: list[str]) -> str:
    """The path down to the first name that is not there; empty when all are."""
    for depth, name in enumerate(names):
        below = (schema.get("properties") or {}).get(name.removesuffix("[]"))
        if below is None:
            # A part without a schema of its own takes anything.
            return "" if schema.get("x-kubernetes-preserve-unknown-fields") else ".".join(names[: depth + 1])
        schema = below.get("items") or {} if name.endswith("[]") else below
    return ""
