"""Local copies that a test fills by hand, with the projections and keys of the real ones."""

from typing import Any

from tests.builders import some_settings
from tests.unit.cluster.server import Counted
from tuning_operator.cluster import projections
from tuning_operator.cluster.client import ApiClient, Selection
from tuning_operator.cluster.informer import Informer, Subject
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.observe import Caches, Observer
from tuning_operator.cluster.resources import CLAIMS, JOBS, PODS, RAY_CLUSTERS, TUNING_RUNS, Resource


class SomeKubeRay:
    """A KubeRay that was looked at and has all fields."""

    served = True
    lacks: tuple[str, ...] = ()


class NoCredentials:
    """Nothing is asked of a server here."""

    server, tls = "http://nowhere", None


def an_observer(caches: Caches, memory: Memory | None = None, **settings: Any) -> Observer:
    """An observer before an installation with these settings."""
    return Observer(caches, memory or Memory(), SomeKubeRay(), some_settings(**settings))  # type: ignore[arg-type]


def some_caches(of: ApiClient | None = None) -> Caches:
    """Empty copies; what is looked up goes to this client."""
    client = of or ApiClient(NoCredentials(), Counted())  # type: ignore[arg-type]

    def informer(resource: Resource, project: Any, key: Any = projections.label_of_run) -> Informer[Any]:
        return Informer(client, Subject(Selection(resource), project, key, lambda key: None))

    return Caches(
        runs=informer(TUNING_RUNS, projections.run, lambda raw: str(raw["metadata"]["uid"])),
        clusters=informer(RAY_CLUSTERS, projections.cluster),
        jobs=informer(JOBS, projections.job),
        pods=informer(PODS, projections.pod),
        claims=informer(CLAIMS, projections.claim),
    )
