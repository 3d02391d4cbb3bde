"""Names of the API: group, version, kinds, labels, annotations.

Imported by whoever builds, selects or reads an object. No behaviour is here.
"""

GROUP = "agenttuning.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TuningRun"
PLURAL = "tuningruns"
SINGULAR = "tuningrun"
SHORT_NAMES = ("trun",)
CATEGORIES = ("all", "tuning")

RAY_API_VERSION = "ray.io/v1"
"""Group and version of the RayCluster that is built (KubeRay 1.6)."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "agent-tuning-operator"

RUN_LABEL = f"{GROUP}/run"
"""Name of the run: for people who select."""
RUN_UID_LABEL = f"{GROUP}/run-uid"
"""UID of the run: what the operator recognises its children by."""
ATTEMPT_LABEL = f"{GROUP}/attempt"
"""Number of the attempt, on children that belong to one."""
COMPONENT_LABEL = f"{GROUP}/component"
"""What a child or pod is: one of the COMPONENT_ values."""

COMPONENT_CONFIG = "config"
COMPONENT_CHECKPOINT = "checkpoint"
COMPONENT_CLUSTER = "cluster"
COMPONENT_HEAD = "head"
COMPONENT_WORKER = "worker"
COMPONENT_DRIVER = "driver"

RUN_DIGEST_ANNOTATION = f"{GROUP}/run-digest"
"""SHA-256 of run.json, on the ConfigMap that carries it."""
