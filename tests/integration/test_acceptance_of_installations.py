"""What a run waits for that the installation lacks, on a real API server: settings, KubeRay, its version.

Each operator watches one namespace only, so that it is the only one that looks at the run.
"""

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster import crds
from tests.cluster.control_plane import ControlPlane
from tests.conftest import UseKuberay
from tests.integration.operator_process import OperatorProcess, wait_for
from tests.integration.stage import CLUSTERS, CONFIG_MAPS, JOBS, Stage

pytestmark = pytest.mark.control_plane

MakeOperator = Callable[..., OperatorProcess]
TOLD_SECONDS = 1.0
HEALED_SECONDS = 6.0
RAY_CLUSTERS = f"{crds.COLLECTION}/rayclusters.ray.io"
POOL = {"cluster": {"head": {"nodePool": "cpu"}}}
TASKS = {"dataset": {"train": {"image": None, "configMap": {"name": "tasks"}}}}


def told(stage: Stage, **spec: Any) -> dict[str, Any]:
    """Apply the run; its rejection must come in time."""
    stage.apply(**spec)
    began = time.monotonic()
    status = stage.wait_for_phase("Rejected")
    assert time.monotonic() - began <= TOLD_SECONDS
    return status


def healed(stage: Stage, began: float) -> None:
    """The run must go on in time."""
    stage.wait_for_phase("Starting")
    assert time.monotonic() - began <= HEALED_SECONDS
    assert stage.condition("Accepted")["status"] == "True"


def test_an_image_of_the_installation_heals_when_the_operator_comes_back(
    another_operator: MakeOperator, stage: Stage
) -> None:
    without = another_operator(WATCH_NAMESPACE=stage.namespace, RUNNER_IMAGE="").start()
    assert told(stage, workflow={"image": None})["reason"] == "ImageNotSet"
    without.stop()
    another_operator(WATCH_NAMESPACE=stage.namespace, RUNNER_IMAGE="runner:1").start()
    healed(stage, time.monotonic())


def test_a_run_with_children_never_goes_back_whatever_the_installation_loses(
    another_operator: MakeOperator, stage: Stage
) -> None:
    without = another_operator(WATCH_NAMESPACE=stage.namespace).start()
    status = told(stage, **POOL, **TASKS)
    assert status["reason"] == "NodePoolUnknown"
    assert "the installation has no node pools" in status["message"]
    without.stop()
    stage.make_config_map("tasks", **{"train.jsonl": "{}"})
    pools = json.dumps([{"name": "cpu"}])
    complete = another_operator(WATCH_NAMESPACE=stage.namespace, NODE_POOLS=pools).start()
    healed(stage, time.monotonic())
    complete.stop()
    # Pool, image and ConfigMap go, and the operator forgets all that it had read.
    stage.delete(CONFIG_MAPS, "tasks")
    operator = another_operator(WATCH_NAMESPACE=stage.namespace, RUNNER_IMAGE="").start()
    stage.pass_by()
    stage.run_head_pod()
    stage.set_cluster_ready()
    stage.wait_for_phase("Running")
    assert stage.condition("Accepted")["status"] == "True"
    assert not operator.reads(stage.namespace)["get", "configmaps"]


def test_the_bundle_of_authorities_must_be_in_every_namespace(another_operator: MakeOperator, stage: Stage) -> None:
    defaults = json.dumps({"caBundle": {"configMap": "authorities"}})
    operator = another_operator(WATCH_NAMESPACE=stage.namespace, RUN_DEFAULTS=defaults).start()
    status = told(stage)
    assert status["reason"] == "ReferenceNotFound"
    assert "the installation's `defaults.caBundle` needs ConfigMap authorities" in status["message"]
    stage.make_config_map("authorities", **{"ca.crt": "x"})
    healed(stage, time.monotonic())
    assert operator.reads(stage.namespace)["get", "configmaps"] >= 2


@contextmanager
def kuberay_without(plane: ControlPlane, *path: str) -> Iterator[Callable[[], None]]:
    """Take a field out of the schema of RayCluster, or, without a path, the kind away; yields what puts it back."""
    api = plane.api
    found = api.get(RAY_CLUSTERS)
    whole = {key: found[key] for key in ("apiVersion", "kind", "spec")}
    whole["metadata"] = {"name": found["metadata"]["name"]}
    whole["metadata"]["annotations"] = found["metadata"].get("annotations", {})
    back = []

    def put(document: dict[str, Any]) -> None:
        now = api.get(RAY_CLUSTERS)["metadata"]["resourceVersion"]
        api.request("PUT", RAY_CLUSTERS, document | {"metadata": document["metadata"] | {"resourceVersion": now}})

    def restore() -> None:
        if not back:
            back.append(True)
            if path:
                put(whole)
            else:
                api.request("POST", crds.COLLECTION, whole)

    if path:
        cut = copy.deepcopy(whole)
        version = next(item for item in cut["spec"]["versions"] if item["name"] == "v1")
        schema = version["schema"]["openAPIV3Schema"]
        for name in path[:-1]:
            schema = schema["properties"][name]
        del schema["properties"][path[-1]]
        put(cut)
        wait_for("the cut schema", lambda: crds.are_published(api, ["rayclusters.ray.io"]), 60)
    else:
        api.request("DELETE", RAY_CLUSTERS)
        wait_for("the end of RayClusters", lambda: api.found(RAY_CLUSTERS) is None, 60)
    try:
        yield restore
    finally:
        restore()
        wait_for("RayClusters", lambda: crds.are_served(api, ["rayclusters.ray.io"]), 60)
        wait_for("their schema", lambda: crds.are_published(api, ["rayclusters.ray.io"]), 60)


def test_a_run_waits_for_kuberay(another_operator: MakeOperator, control_plane: ControlPlane, stage: Stage) -> None:
    with kuberay_without(control_plane) as restore:
        another_operator(WATCH_NAMESPACE=stage.namespace).start()
        status = told(stage)
        assert status["reason"] == "KubeRayMissing"
        assert "install KubeRay 1.5.1 or later" in status["message"]
        restore()
        wait_for("RayClusters", lambda: crds.are_served(control_plane.api, ["rayclusters.ray.io"]), 60)
        healed(stage, time.monotonic())


def test_a_run_waits_for_a_kuberay_that_has_all_fields(
    another_operator: MakeOperator, control_plane: ControlPlane, stage: Stage
) -> None:
    with kuberay_without(control_plane, "spec", "authOptions") as restore:
        operator = another_operator(WATCH_NAMESPACE=stage.namespace).start()
        status = told(stage)
        assert status["reason"] == "KubeRayTooOld"
        assert "`spec.authOptions`" in status["message"]
        assert not operator.writes(stage.namespace)["create", "rayclusters"]
        restore()
        healed(stage, time.monotonic())
    assert stage.child(CLUSTERS)["spec"]["authOptions"] == {"mode": "token"}


def test_a_kuberay_that_loses_a_field_later_makes_no_cluster_that_is_open_to_everybody(
    another_operator: MakeOperator, control_plane: ControlPlane, stage: Stage
) -> None:
    another_operator(WATCH_NAMESPACE=stage.namespace).start()
    with kuberay_without(control_plane, "spec", "authOptions"):
        status = told(stage)
        assert status["reason"] == "Invalid"
        assert 'unknown field "spec.authOptions"' in status["message"]
        assert not stage.children(CLUSTERS)


def test_the_other_supported_kuberay_takes_every_field(
    another_operator: MakeOperator, kuberay_crds: UseKuberay, stage: Stage
) -> None:
    with kuberay_crds("1.5.1"):
        operator = another_operator(WATCH_NAMESPACE=stage.namespace).start()
        stage.apply(cluster={"workers": [{"name": "agents", "replicas": 1}]})
        stage.wait_for_phase("Starting")
        stage.run_head_pod()
        stage.run_worker_pod("agents", "aaaaa")
        stage.set_cluster_ready(workers=1)
        stage.wait_for_phase("Running")
        assert stage.children(JOBS)
        assert not operator.refused(stage.namespace)
        # Objects outlive the swap of the schemas.
        stage.delete_run()
        stage.delete(CLUSTERS, stage.child(CLUSTERS)["metadata"]["name"])


def shown(stage: Stage) -> dict[str, Any]:
    """The condition Degraded, once it is True."""
    return wait_for(
        "shown refusal",
        lambda: stage.condition("Degraded").get("status") == "True" and stage.condition("Degraded"),
        30,
    )


def test_a_pod_that_needs_what_is_not_installed_is_told_in_the_servers_words_and_given_up(
    another_operator: MakeOperator, stage: Stage
) -> None:
    another_operator(WATCH_NAMESPACE=stage.namespace, STARTUP_PATIENCE_SECONDS="25").start()
    stage.apply(priorityClassName="nowhere")
    stage.wait_for_phase("Starting")
    words = stage.refuse_head_pod()
    assert "is forbidden: no PriorityClass with name nowhere was found" in words
    assert shown(stage)["reason"] == "ConfigInvalid"
    assert stage.status["message"] == f"the API server refuses a head pod: {words}"
    status = stage.wait_for_phase("Failed", 60)
    assert status["reason"] == "ConfigInvalid"
    assert status["message"].startswith(f"the API server refuses a head pod: {words} (for ")
    wait_for("freed cluster", lambda: not stage.children(CLUSTERS))


def test_a_quota_without_room_is_told_and_waited_for(another_operator: MakeOperator, stage: Stage) -> None:
    another_operator(WATCH_NAMESPACE=stage.namespace, STARTUP_PATIENCE_SECONDS="1").start()
    stage.allow_pods(0)
    stage.apply()
    stage.wait_for_phase("Starting")
    words = stage.refuse_head_pod()
    assert "exceeded quota" in words
    assert shown(stage)["reason"] == "PodNotCreated"
    assert stage.status["phase"] == "Starting"
    assert stage.status["message"] == f"the API server refuses a head pod: {words}"
    stage.allow_pods(2)
    stage.run_head_pod()
    stage.set_cluster_ready()
    stage.wait_for_phase("Running")
