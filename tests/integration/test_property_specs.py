"""Random specs: what is valid becomes objects that a real API server takes, what is broken is refused in words.

Seeds are fixed, and every failure names its seed: `random_spec(seed)` makes the spec again.
"""

import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from tests.broken_specs import REFUSED, REJECTED
from tests.builders import UID, a_model_source, everything_made_for, some_settings
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.conftest import UseKuberay
from tests.integration.api_requests import DRY, RUNS
from tests.specs import POOLS, Spec, random_spec
from tests.unit.engine.worlds import NOW, a_new_world
from tuning_operator.api.conditions import Phase
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.engine import references
from tuning_operator.engine.plan import plan
from tuning_operator.engine.world import ClaimView, Reference, SourceRun, World
from tuning_operator.settings import NodePool

pytestmark = pytest.mark.control_plane

SEEDS = [f"spec-{number}" for number in range(300)]
BROKEN_EACH = 4
"""Specs that are broken in each way."""
OBJECTS_OF_OTHERS = ("priorityClassName", "runtimeClassName", "serviceAccountName")
"""Parts of a pod that name objects which must exist."""
PODS_OF = 100
"""Runs whose pods are made, too: each has several, and what is in them is the same as in the RayClusters."""
AT_ONCE = 4
"""Requests at the same time; more only queue in the server."""
PLACES = {
    "RayCluster": "/apis/ray.io/v1/namespaces/default/rayclusters",
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
}
SETTINGS = some_settings(
    node_pools={
        "cpu": NodePool("cpu", {"pool": "cpu"}),
        "a100": NodePool("a100", {"pool": "a100"}, ({"key": "gpu", "operator": "Exists"},), max_gpus_per_node=8),
    }
)


@dataclass(frozen=True)
class Answer:
    """What the server said to one object."""

    seed: str
    stored: dict[str, Any] | None
    error: str = ""


def post(plane: ControlPlane, path: str, item: tuple[str, dict[str, Any]]) -> Answer:
    seed, document = item
    try:
        return Answer(seed, plane.api.request("POST", f"{path}?{DRY}", document))
    except ApiError as error:
        return Answer(seed, None, str(error))


def post_all(plane: ControlPlane, path: str, items: Iterable[tuple[str, dict[str, Any]]]) -> list[Answer]:
    """Dry runs of many objects, several at the same time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(partial(post, plane, path), items))


def refusals(answers: Iterable[Answer]) -> list[tuple[str, str]]:
    """Seed and words of those that were refused."""
    return [(answer.seed, answer.error) for answer in answers if answer.stored is None]


def a_document(spec: Spec) -> dict[str, Any]:
    metadata = {"name": "a" * 39, "namespace": "default"}
    return {"apiVersion": "agenttuning.io/v1alpha1", "kind": "TuningRun", "metadata": metadata, "spec": spec}


def parsed(document: dict[str, Any]) -> TuningRun:
    """The run as the operator reads it."""
    return TuningRun.from_object(document | {"metadata": document["metadata"] | {"uid": UID}})


def where_all_is_there(run: TuningRun) -> World:
    """A world in which everything that the run refers to exists and fits."""
    source = a_model_source(run.spec.model.run.name) if run.spec.model.run else None
    claims = {
        use.name: ClaimView(access_modes=frozenset({"ReadWriteMany"}))
        for use in references.claims(run, SETTINGS, source)
    }
    uses = references.config_maps(run, SETTINGS)
    read = [
        Reference(name, frozenset(use.key for use in uses if use.name == name), NOW)
        for name in {use.name for use in uses}
    ]
    world = a_new_world(run, claims=claims)
    seen = SourceRun(source.run_name, source.run_uid, Phase.SUCCEEDED, source.claim_name) if source else None
    return replace(world, notes=replace(world.notes, references=tuple(read), looked_at=NOW), source_run=seen)


def accepted_reason(world: World) -> str:
    """Reason of Accepted=False that a plan would write; empty when it makes children, or rests as the run wishes."""
    decided = plan(world, SETTINGS)
    if decided.create:
        return ""
    assert decided.status is not None, decided
    (condition,) = [entry for entry in decided.status.patch["conditions"] if entry["type"] == "Accepted"]
    if world.run.spec.suspend and condition["status"] == "True":
        assert decided.status.patch["phase"] == Phase.SUSPENDED
        return ""
    assert condition["status"] == "False"
    assert condition["message"], condition
    return str(condition["reason"])


@pytest.fixture(scope="module")
def runs(control_plane: ControlPlane) -> dict[str, TuningRun]:
    """The valid runs by their seeds, with the defaults that the server filled in."""
    answers = post_all(control_plane, RUNS, [(seed, a_document(random_spec(seed))) for seed in SEEDS])
    assert refusals(answers) == []
    return {answer.seed: parsed(answer.stored) for answer in answers if answer.stored is not None}


@pytest.fixture(scope="module")
def manifests(runs: dict[str, TuningRun]) -> list[tuple[str, dict[str, Any]]]:
    """Everything that is made for the valid runs, with the seed of each."""
    return [(seed, made) for seed, run in runs.items() for made in everything_made_for(run, SETTINGS)]


def test_a_seed_makes_the_same_spec_again() -> None:
    assert random_spec("spec-0") == random_spec("spec-0")
    assert random_spec("spec-0") != random_spec("spec-1")
    assert set(POOLS) == set(SETTINGS.node_pools)


def test_valid_specs_are_accepted_and_read_as_the_server_completes_them(runs: dict[str, TuningRun]) -> None:
    """The operator fills in the same defaults from its models as the server from the schema."""
    assert len(runs) == len(SEEDS)
    differing = [seed for seed, run in runs.items() if parsed(a_document(random_spec(seed))).spec != run.spec]
    assert differing == []


def test_valid_runs_are_accepted_by_the_operator_where_all_is_there(runs: dict[str, TuningRun]) -> None:
    reasons = {seed: accepted_reason(where_all_is_there(run)) for seed, run in runs.items()}
    assert {seed: reason for seed, reason in reasons.items() if reason} == {}


@pytest.mark.parametrize("kind", ["Job", "ConfigMap", "PersistentVolumeClaim"])
def test_what_is_made_for_valid_runs_is_taken_by_the_server(
    control_plane: ControlPlane, manifests: list[tuple[str, dict[str, Any]]], kind: str
) -> None:
    made = [(seed, manifest) for seed, manifest in manifests if manifest["kind"] == kind]
    assert made
    assert refusals(post_all(control_plane, PLACES[kind], made)) == []


@pytest.mark.parametrize("version", ["1.6.2", "1.5.1"])
def test_the_ray_clusters_of_valid_runs_are_taken_by_both_kuberays(
    control_plane: ControlPlane, kuberay_crds: UseKuberay, manifests: list[tuple[str, dict[str, Any]]], version: str
) -> None:
    made = [(seed, manifest) for seed, manifest in manifests if manifest["kind"] == "RayCluster"]
    with kuberay_crds(version):
        assert refusals(post_all(control_plane, PLACES["RayCluster"], made)) == []


def test_the_pods_of_valid_runs_are_allowed_in_a_restricted_namespace(
    control_plane: ControlPlane, manifests: list[tuple[str, dict[str, Any]]]
) -> None:
    api, name = control_plane.api, "restricted-specs"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.apply(
        f"/api/v1/namespaces/{name}",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
    )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    api.apply(f"/api/v1/namespaces/{name}/serviceaccounts/default", account)
    first = set(SEEDS[:PODS_OF])
    pods = [(seed, pod) for seed, manifest in manifests if seed in first for pod in pods_of(manifest)]
    answers = post_all(control_plane, f"/api/v1/namespaces/{name}/pods", pods)
    api.request("DELETE", f"/api/v1/namespaces/{name}")
    assert refusals(answers) == []


def pods_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of a RayCluster as KubeRay would make them, but for what other objects must be there for."""
    if manifest["kind"] != "RayCluster":
        return []
    groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"].get("workerGroupSpecs", [])]
    found = []
    for group in groups:
        template = group["template"]
        spec = {k: v for k, v in template["spec"].items() if k not in OBJECTS_OF_OTHERS}
        metadata = template["metadata"] | {"name": "pod"}
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return found


def broken(breaker: Callable[[random.Random, Spec], Spec | None], what: str) -> list[tuple[str, Spec]]:
    """The first valid specs that can be broken in this way, broken."""
    found: list[tuple[str, Spec]] = []
    for seed in SEEDS:
        spec = breaker(random.Random(f"{what} {seed}"), random_spec(seed))
        if spec is not None:
            found.append((f"{what}: {seed}", spec))
        if len(found) == BROKEN_EACH:
            break
    return found


def test_what_is_broken_in_one_place_is_refused_by_the_server_in_words_that_name_a_field(
    control_plane: ControlPlane,
) -> None:
    cases = [(seed, a_document(spec)) for what, breaker in REFUSED.items() for seed, spec in broken(breaker, what)]
    assert len(cases) == BROKEN_EACH * len(REFUSED)
    answers = post_all(control_plane, RUNS, cases)
    assert [answer.seed for answer in answers if answer.stored is not None] == []
    wordless = [(answer.seed, answer.error) for answer in answers if "spec" not in answer.error]
    assert wordless == []
    assert [answer.error for answer in answers if answer.error[:3] not in ("400", "422")] == []


@pytest.mark.parametrize("what", REJECTED)
def test_what_only_a_look_up_shows_is_rejected_by_the_operator_and_never_a_traceback(
    control_plane: ControlPlane, what: str
) -> None:
    reason, breaker = REJECTED[what]
    for seed, spec in broken(breaker, what):
        stored = post(control_plane, RUNS, (seed, a_document(spec))).stored
        assert stored is not None, seed
        assert accepted_reason(where_all_is_there(parsed(stored))) == reason, seed


def without_a_claim(world: World) -> World | None:
    return replace(world, claims=dict(list(world.claims.items())[1:])) if world.claims else None


def without_a_config_map(world: World) -> World | None:
    first, *others = world.notes.references or (None,)
    if first is None:
        return None
    return replace(world, notes=replace(world.notes, references=(replace(first, keys=None), *others)))


def with_a_failed_source(world: World) -> World | None:
    return replace(world, source_run=replace(world.source_run, phase=Phase.FAILED)) if world.source_run else None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_a_claim, "ReferenceNotFound"),
        (without_a_config_map, "ReferenceNotFound"),
        (with_a_failed_source, "RunNotFinished"),
        (lambda world: replace(world, kuberay_served=False), "KubeRayMissing"),
    ],
)
def test_a_world_that_lacks_one_thing_rejects_a_valid_run(
    runs: dict[str, TuningRun], change: Callable[[World], World | None], reason: str
) -> None:
    worlds = {seed: change(where_all_is_there(run)) for seed, run in runs.items()}
    lacking = {seed: world for seed, world in worlds.items() if world is not None}
    assert len(lacking) >= 20
    assert {seed: found for seed, world in lacking.items() if (found := accepted_reason(world)) != reason} == {}
