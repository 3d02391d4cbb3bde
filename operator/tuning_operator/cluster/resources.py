"""The kinds of objects that the operator talks about, and where the API server serves them.

Read by `client`, `informer` and the wiring. `RIGHTS` and `OWN_RIGHTS` are the exact lists of rights that the code
uses; the chart's roles are tested against them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind under one version."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def qualified(self) -> str:
        """The plural with its group, as in `kubectl auth can-i`: `jobs.batch`, `pods`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of one object, or of all objects in one or in every namespace."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return root + scope + "/".join(["", self.plural, *filter(None, (name, subresource))])


TUNING_RUNS = Resource("agenttuning.io", "v1alpha1", "tuningruns", "TuningRun")
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
JOBS = Resource("batch", "v1", "jobs", "Job")
PODS = Resource("", "v1", "pods", "Pod")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")

BY_KIND = {item.kind: item for item in (TUNING_RUNS, RAY_CLUSTERS, JOBS, PODS, CLAIMS, CONFIG_MAPS, EVENTS)}

RIGHTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("agenttuning.io", "tuningruns", ("delete", "list", "watch")),
    ("agenttuning.io", "tuningruns/status", ("patch",)),
    ("ray.io", "rayclusters", ("create", "delete", "list", "watch")),
    ("batch", "jobs", ("create", "delete", "list", "patch", "watch")),
    ("", "pods", ("list", "watch")),
    ("", "persistentvolumeclaims", ("create", "list", "watch")),
    ("", "configmaps", ("create", "get")),
    ("events.k8s.io", "events", ("create",)),
)
"""(API group, resource, verbs): all rights that the code uses where runs are, nothing more."""

OWN_RIGHTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("coordination.k8s.io", "leases", ("create", "get", "patch")),
)
"""The same for the operator's own namespace."""
