"""What counts as evidence for a run: labels are claims, owners and namespace are proof."""

from typing import Any

import pytest

from tests.builders import UID, a_run_object, some_settings
from tests.unit.cluster.caches import an_observer, some_caches
from tests.unit.engine.worlds import CLUSTER_UID, JOB_UID, NAME, NOW, RUNNING
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.cluster import projections
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.observe import Caches
from tuning_operator.desired import pod_template
from tuning_operator.engine.plan import plan
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings

LABELS = {"agenttuning.io/run-uid": UID, "agenttuning.io/attempt": "1"}


def an_object(name: str, uid: str, *owners: str, component: str = "", **metadata: Any) -> dict[str, Any]:
    """An object with the run's labels; the first owner controls it."""
    return {
        "metadata": {
            "namespace": "ml",
            "name": name,
            "uid": uid,
            "resourceVersion": "5",
            "labels": LABELS | {"agenttuning.io/component": component},
            "ownerReferences": [{"uid": owner, "controller": place == 0} for place, owner in enumerate(owners)],
        }
        | metadata
    }


def a_pod(name: str, owner: str, component: str, **metadata: Any) -> dict[str, Any]:
    return an_object(name, f"uid-{name}", owner, component=component, **metadata) | {"status": {"podIP": "10.0.0.7"}}


def observed(*pods: dict[str, Any], cluster: Any = None, job: Any = None, status: Any = RUNNING) -> World:
    caches = some_filled_caches(*pods, cluster=cluster, job=job, status=status)
    return an_observer(caches).observe(projections.run(a_run_object(status=status)), NOW)


def some_filled_caches(*pods: dict[str, Any], cluster: Any = None, job: Any = None, status: Any = RUNNING) -> Caches:
    caches = some_caches()
    caches.runs.put(a_run_object(status=status))
    caches.clusters.put(cluster or an_object(NAME, CLUSTER_UID, UID))
    caches.jobs.put(job or an_object(NAME, JOB_UID, CLUSTER_UID, UID))
    for pod in pods:
        caches.pods.put(pod)
    return caches


def test_what_the_run_and_its_children_own_is_evidence() -> None:
    world = observed(
        a_pod("head", CLUSTER_UID, "head"), a_pod("worker", CLUSTER_UID, "worker"), a_pod("driver", JOB_UID, "driver")
    )
    assert world.cluster is not None
    assert world.job is not None
    assert [pod.name for pod in world.pods] == ["driver", "head", "worker"]


@pytest.mark.parametrize("status", [RUNNING, None], ids=["recorded", "not recorded yet"])
@pytest.mark.parametrize(
    "forged",
    [
        a_pod("driver", JOB_UID, "driver", namespace="elsewhere"),
        a_pod("driver", "another", "driver"),
        a_pod("driver", CLUSTER_UID, "driver"),
        a_pod("head", CLUSTER_UID, "head", namespace="elsewhere"),
        a_pod("head", JOB_UID, "head"),
        a_pod("head", UID, "head"),
        a_pod("head", CLUSTER_UID, "head", ownerReferences=[{"uid": CLUSTER_UID}]),
        a_pod("head", CLUSTER_UID, "head", ownerReferences=None),
    ],
)
def test_a_pod_that_only_has_the_runs_labels_is_no_evidence(forged: dict[str, Any], status: Any) -> None:
    assert observed(forged, status=status).pods == ()


@pytest.mark.parametrize("namespace", ["elsewhere", "ml"])
def test_a_cluster_or_job_that_only_has_the_runs_labels_is_none(namespace: str) -> None:
    cluster = an_object(NAME, "x", UID if namespace == "elsewhere" else "another", namespace=namespace)
    job = an_object(NAME, "y", UID if namespace == "elsewhere" else "another", namespace=namespace)
    world = observed(cluster=cluster, job=job)
    assert (world.cluster, world.job) == (None, None)


def test_the_job_counts_when_only_the_run_owns_it_any_more() -> None:
    job = an_object(NAME, JOB_UID, ownerReferences=[{"uid": UID, "controller": False}])
    assert observed(job=job).job is not None


def test_the_pods_of_a_job_that_was_lost_still_speak() -> None:
    world = observed(a_pod("driver", JOB_UID, "driver"), job=an_object(NAME, "the second", CLUSTER_UID, UID))
    assert [pod.name for pod in world.pods] == ["driver"]


def test_the_last_view_of_a_strangers_pod_is_no_evidence() -> None:
    caches, memory = some_filled_caches(), Memory()
    memory.of(UID, NOW).begin(1)
    for pod in (a_pod("driver", "another", "driver"), a_pod("head", CLUSTER_UID, "head")):
        memory.of(UID, NOW).note_departure(projections.pod(pod))
    world = an_observer(caches, memory).observe(projections.run(a_run_object(status=RUNNING)), NOW)
    assert [pod.name for pod in world.notes.departed] == ["head"]


def test_pods_that_come_and_go_push_out_no_other_components_last_view() -> None:
    memory = Memory().of(UID, NOW)
    memory.begin(1)
    memory.note_departure(projections.pod(a_pod("driver", JOB_UID, "driver")))
    for number in range(6):
        memory.note_departure(projections.pod(a_pod(f"head-{number}", CLUSTER_UID, "head")))
    memory.note_departure(projections.pod(a_pod("driver-2", JOB_UID, "driver")))
    names = [pod.name for pod in memory.notes().departed]
    assert names == ["driver", "head-2", "head-3", "head-4", "head-5", "driver-2"]


@pytest.mark.parametrize(
    ("pod", "ours"),
    [
        (a_pod("head", CLUSTER_UID, "head"), True),
        (a_pod("driver", JOB_UID, "driver"), True),
        (a_pod("driver", "the second", "driver"), True),
        (a_pod("head", "another", "head"), False),
        (a_pod("head", "", "head"), False),
        (a_pod("head", CLUSTER_UID, "head", namespace="elsewhere"), False),
    ],
)
def test_only_pods_that_the_runs_own_children_control_are_worth_a_note(pod: dict[str, Any], ours: bool) -> None:
    caches = some_filled_caches(job=an_object(NAME, "the second", CLUSTER_UID, UID))
    assert caches.controls(UID, projections.pod(pod)) is ours
    # A RayCluster that went before its pods is known by the status.
    caches.clusters.drop("ml", NAME, CLUSTER_UID)
    assert caches.controls(UID, projections.pod(pod)) is ours
    assert not caches.controls("another run", projections.pod(pod))


def test_only_the_clusters_own_head_is_asked_for_progress() -> None:
    view = projections.run(a_run_object(status=RUNNING))
    strangers = [a_pod("a", CLUSTER_UID, "head", namespace="elsewhere"), a_pod("b", "another", "head")]
    assert some_filled_caches(*strangers).head_address(view) == ""
    assert some_filled_caches(*strangers, a_pod("c", CLUSTER_UID, "head")).head_address(view) == "10.0.0.7"


def a_source(phase: str = "Succeeded", **changes: Any) -> dict[str, Any]:
    """The run whose model another one takes."""
    status = {"phase": phase} if phase else None
    return a_run_object("first", uid="11111111-first", status=status, **changes)


def chained(*others: dict[str, Any], claims: tuple[str, ...] = (), status: Any = None) -> World:
    """A run that takes the model of `first`, among other runs and claims."""
    caches = some_caches()
    run = a_run_object(status=status, model={"image": None, "run": {"name": "first"}})
    for other in others:
        caches.runs.put(other)
    for name in claims:
        caches.claims.put(an_object(name, f"uid-{name}") | {"spec": {"accessModes": ["ReadWriteMany"]}})
    return an_observer(caches).observe(projections.run(run), NOW)


def test_the_run_whose_model_is_taken_is_found_by_its_name_in_the_same_namespace() -> None:
    assert chained().source_run is None
    assert chained(a_source(namespace="elsewhere")).source_run is None
    source = chained(a_source("Running")).source_run
    assert source is not None
    assert (source.uid, source.phase, source.claim_name) == ("11111111-first", "Running", "first-111111")
    assert chained(a_source("Running")).model_source is None


def test_the_claim_of_the_run_whose_model_is_taken_is_looked_up_with_the_others() -> None:
    world = chained(a_source(), claims=("first-111111", "somebody-elses"))
    assert world.model_source is not None
    assert world.model_source.claim_name == "first-111111"
    assert set(world.claims) == {"first-111111"}
    assert world.claims["first-111111"].access_modes == {"ReadWriteMany"}
    named = a_source(checkpoint={"volume": {"claimTemplate": None, "claimName": "shared"}})
    assert set(chained(named, claims=("first-111111", "shared")).claims) == {"shared"}


def test_a_model_that_is_recorded_is_not_looked_for_again() -> None:
    recorded = {"modelSource": {"runUID": "an-older-first", "claimName": "older"}}
    world = chained(a_source("Running"), claims=("older",), status=recorded)
    assert world.source_run is None
    assert world.model_source is not None
    assert (world.model_source.run_uid, world.model_source.claim_name) == ("an-older-first", "older")
    assert set(world.claims) == {"older"}


def test_a_run_that_cannot_be_read_has_no_model_to_take() -> None:
    broken = a_source()
    del broken["spec"]["algorithm"]
    source = chained(broken).source_run
    assert source is not None
    assert source.phase == "Rejected"


def test_the_patches_of_a_run_that_waits_are_looked_at_once_for_each_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int | None] = []
    problems = pod_template.problems

    def counted(run: TuningRun, settings: Settings) -> tuple[str, ...]:
        looks.append(run.metadata.generation)
        return problems(run, settings)

    monkeypatch.setattr(pod_template, "problems", counted)
    patched = {"cluster": {"head": {"podTemplatePatch": {"spec": {"hostNetwork": True}}}}}
    observer = an_observer(some_caches())
    for generation in (1, 1, 2, 2):
        world = observer.observe(projections.run(a_run_object(metadata={"generation": generation}, **patched)), NOW)
        write = plan(world, some_settings()).status
        assert write is not None
        assert write.patch["message"].startswith("`spec.cluster.head.podTemplatePatch.spec.hostNetwork`")
    assert looks == [1, 2]
    assert observed().notes.patch_problems is None
