"""A namespace in which the test plays everybody but the operator: the user, KubeRay, the Job controller, the kubelet.

Used by `test_operator_*`.
"""

import json
from typing import Any

from tests.builders import a_spec
from tests.cluster.api import Api, ApiError
from tests.integration.operator_process import wait_for
from tuning_contract.termination import EXIT_ATTEMPT_LOST, EXIT_SUCCEEDED, TerminationMessage

RUNS = "/apis/agenttuning.io/v1alpha1/namespaces/{}/tuningruns"
CLUSTERS = "/apis/ray.io/v1/namespaces/{}/rayclusters"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
PODS = "/api/v1/namespaces/{}/pods"
CLAIMS = "/api/v1/namespaces/{}/persistentvolumeclaims"
CONFIG_MAPS = "/api/v1/namespaces/{}/configmaps"
MERGE = "application/merge-patch+json"
COMPONENT_LABEL = "agenttuning.io/component"
SIDECAR_ADDRESS = "127.0.0.1"
ONCE = {"maxAttempts": 1}
"""`spec.retry` of a run that fails with its first attempt."""


class Stage:
    """One namespace with one run in it."""

    def __init__(self, api: Api, namespace: str, name: str = "math-agent") -> None:
        """Make the namespace, with the account that every pod needs."""
        self.api, self.namespace, self.name = api, namespace, name
        api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})

    # The user.

    def apply(self, **spec: Any) -> dict[str, Any]:
        """Make the run."""
        return self.apply_another(self.name, **spec)

    def apply_another(self, name: str, **spec: Any) -> dict[str, Any]:
        """Make a run of another name."""
        manifest = {
            "apiVersion": "agenttuning.io/v1alpha1",
            "kind": "TuningRun",
            "metadata": {"name": name},
            "spec": a_spec(**spec),
        }
        made: dict[str, Any] = self.api.request("POST", RUNS.format(self.namespace), manifest)
        return made

    def set_phase(self, name: str, phase: str) -> None:
        """Let a run be in that phase, as if the operator had said so."""
        path = f"{RUNS.format(self.namespace)}/{name}/status"
        self.api.request("PATCH", path, {"status": {"phase": phase}}, MERGE)

    def make_claim(self, name: str, *modes: str) -> None:
        """Make a claim with these access modes, ReadWriteMany by default."""
        spec = {"accessModes": list(modes or ("ReadWriteMany",)), "resources": {"requests": {"storage": "1Gi"}}}
        self.api.request("POST", CLAIMS.format(self.namespace), {"metadata": {"name": name}, "spec": spec})

    def delete_claim(self, name: str) -> None:
        """Delete a claim, and lift the protection that a controller would lift."""
        path = f"{CLAIMS.format(self.namespace)}/{name}"
        self.api.request("DELETE", path)
        if self.exists(CLAIMS, name):
            self.api.request("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)

    def make_config_map(self, name: str, **data: str) -> None:
        """Make a ConfigMap."""
        self.api.request("POST", CONFIG_MAPS.format(self.namespace), {"metadata": {"name": name}, "data": data})

    def pass_by(self, name: str = "passing-by") -> None:
        """Let the operator look at a second run of the namespace: so it has looked at what came before it."""
        path = RUNS.format(self.namespace)
        self.apply_another(name)
        wait_for(
            "the second run's status",
            lambda: (self.api.get(f"{path}/{name}").get("status") or {}).get("phase") == "Starting",
        )

    def run(self, name: str = "") -> dict[str, Any]:
        """The run, or another one, as it is now."""
        found: dict[str, Any] = self.api.get(f"{RUNS.format(self.namespace)}/{name or self.name}")
        return found

    @property
    def status(self) -> dict[str, Any]:
        """The run's status."""
        found: dict[str, Any] = self.run().get("status") or {}
        return found

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition of the run; empty when it is not there."""
        return next((item for item in self.status.get("conditions", ()) if item["type"] == kind), {})

    def wait_for_phase(self, phase: str, seconds: float = 20.0) -> dict[str, Any]:
        """Wait until the run is in that phase; returns its status."""
        try:
            return wait_for(f"phase {phase}", lambda: self.status.get("phase") == phase and self.status, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; status is {json.dumps(self.status, indent=1)}") from None

    def set_back_the_end(self) -> None:
        """Let the end of the run, and of its attempts, be long ago, as its status has it."""
        long_ago, status = "2026-01-01T00:00:00Z", self.status
        conditions = [item | {"lastTransitionTime": long_ago} for item in status["conditions"]]
        history = [item | {"endTime": long_ago} for item in status["history"]]
        path = f"{RUNS.format(self.namespace)}/{self.name}/status"
        self.api.request("PATCH", path, {"status": {"conditions": conditions, "history": history}}, MERGE)

    def change(self, **spec: Any) -> None:
        """Change the run's spec, as far as the API lets its user."""
        self.api.request("PATCH", f"{RUNS.format(self.namespace)}/{self.name}", {"spec": spec}, MERGE)

    def delete_run(self) -> None:
        """Delete the run; `collect_garbage` does the rest."""
        self.api.request("DELETE", f"{RUNS.format(self.namespace)}/{self.name}")

    def children(self, collection: str) -> list[dict[str, Any]]:
        """All objects of one kind in the namespace."""
        found = self.api.get(collection.format(self.namespace))
        # A list says once for all of its items what they are.
        kind = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [kind | item for item in found["items"]]

    def child(self, collection: str, seconds: float = 20.0) -> dict[str, Any]:
        """The object of one kind, that of the newest attempt, waited for."""
        return wait_for(collection, lambda: max(self.children(collection), key=attempt_of, default=None), seconds)

    # KubeRay and the kubelet of the head.

    def make_head_pod(self, suffix: str = "abcde") -> dict[str, Any]:
        """Make the head pod from the RayCluster's template, pending."""
        cluster = self.child(CLUSTERS)
        template = cluster["spec"]["headGroupSpec"]["template"]
        name = f"{cluster['metadata']['name']}-head-{suffix}"
        metadata = template["metadata"] | {"name": name, "ownerReferences": [_controlled_by(cluster)]}
        made: dict[str, Any] = self.api.request(
            "POST", PODS.format(self.namespace), {"metadata": metadata, "spec": template["spec"]}
        )
        return made

    def make_worker_pod(self, group: str, suffix: str) -> str:
        """Make a pod of a worker group from the RayCluster's template, pending; returns its name."""
        cluster = self.child(CLUSTERS)
        spec = next(item for item in cluster["spec"]["workerGroupSpecs"] if item["groupName"] == group)
        name = f"{cluster['metadata']['name']}-{group}-worker-{suffix}"
        metadata = spec["template"]["metadata"] | {"name": name, "ownerReferences": [_controlled_by(cluster)]}
        metadata["labels"] = metadata["labels"] | {"ray.io/group": group}
        pod = {"metadata": metadata, "spec": spec["template"]["spec"]}
        self.api.request("POST", PODS.format(self.namespace), pod)
        return name

    def run_worker_pod(self, group: str, suffix: str) -> str:
        """Make a pod of a worker group, running and ready; returns its name."""
        name = self.make_worker_pod(group, suffix)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        self.set_pod(
            name,
            phase="Running",
            startTime="2026-01-01T00:00:00Z",
            conditions=[ready],
            containerStatuses=[_container("ray-worker", {"running": {}})],
        )
        return name

    def set_pod(self, name: str, **status: Any) -> None:
        """Patch a pod's status."""
        self.api.request("PATCH", f"{PODS.format(self.namespace)}/{name}/status", {"status": status}, MERGE)

    def run_head_pod(self, suffix: str = "abcde", restarts: int = 0, address: str = SIDECAR_ADDRESS) -> str:
        """Make the head pod, running and ready; returns its name."""
        name: str = self.make_head_pod(suffix)["metadata"]["name"]
        self.set_pod(
            name,
            phase="Running",
            podIP=address,
            podIPs=[{"ip": address}],
            startTime="2026-01-01T00:00:00Z",
            containerStatuses=[_container("ray-head", {"running": {}}, restarts)],
        )
        return name

    def set_cluster_ready(self, ready: bool = True, workers: int = 0) -> None:
        """Let KubeRay say whether the head is ready, and how many workers are."""
        cluster = self.child(CLUSTERS)
        condition = {
            "type": "HeadPodReady",
            "status": "True" if ready else "False",
            "reason": "HeadPodRunningAndReady" if ready else "PodFailed",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        path = f"{CLUSTERS.format(self.namespace)}/{cluster['metadata']['name']}/status"
        wanted = sum(group["replicas"] for group in cluster["spec"].get("workerGroupSpecs", ()))
        status = {"conditions": [condition], "desiredWorkerReplicas": wanted, "readyWorkerReplicas": workers}
        self.api.request("PATCH", path, {"status": status}, MERGE)

    def refuse_head_pod(self) -> str:
        """Let KubeRay fail to make the head pod, and say so in its way; returns the server's words."""
        try:
            self.make_head_pod()
        except ApiError as error:
            words: str = json.loads(str(error).partition(": ")[2])["message"]
        else:
            raise AssertionError("the server took the head pod")
        condition = {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreateHeadPod",
            "message": f"FailedCreateHeadPod\n{words}",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        path = f"{CLUSTERS.format(self.namespace)}/{self.child(CLUSTERS)['metadata']['name']}/status"
        self.api.request("PATCH", path, {"status": {"conditions": [condition]}}, MERGE)
        return words

    def allow_pods(self, count: int) -> None:
        """Set a quota of pods, as the quota's controller would."""
        quotas = f"/api/v1/namespaces/{self.namespace}/resourcequotas"
        hard = {"hard": {"pods": str(count)}}
        self.api.apply(
            f"{quotas}/pods",
            json.dumps({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"}, "spec": hard}),
        )
        self.api.request("PATCH", f"{quotas}/pods/status", {"status": hard | {"used": {"pods": "0"}}}, MERGE)

    def delete(self, collection: str, name: str) -> None:
        """Delete an object at once."""
        self.api.request("DELETE", f"{collection.format(self.namespace)}/{name}", {"gracePeriodSeconds": 0})

    def pods(self, component: str) -> list[dict[str, Any]]:
        """All pods of a component: head, worker or driver."""
        return [pod for pod in self.children(PODS) if pod["metadata"]["labels"][COMPONENT_LABEL] == component]

    def lose_the_head(self, driver: str) -> None:
        """Let the newest head pod vanish, and the driver notice it."""
        self.delete(PODS, max(self.pods("head"), key=attempt_of)["metadata"]["name"])
        self.end_driver(driver, "", EXIT_ATTEMPT_LOST)

    def free(self, attempt: int = 1) -> None:
        """Wait until the operator has deleted the RayCluster of an attempt, and let its pods go."""
        wait_for(f"freed cluster {attempt}", lambda: attempt not in map(attempt_of, self.children(CLUSTERS)))
        self.collect_garbage()

    def take_away(self, name: str) -> None:
        """Delete a pod that runs on a node: it stays, on its way out, until its kubelet says that it is gone."""
        path = f"{PODS.format(self.namespace)}/{name}"
        node = {"kind": "Node", "name": "some-node"}
        self.api.request("POST", f"{path}/binding", {"metadata": {"name": name}, "target": node})
        self.api.request("DELETE", path)

    def collect_garbage(self) -> None:
        """Delete at once the pods whose owner is gone, as garbage collector and kubelets would."""
        owners = {item["metadata"]["uid"] for kind in (CLUSTERS, JOBS) for item in self.children(kind)}
        for pod in self.children(PODS):
            if pod["metadata"]["ownerReferences"][0]["uid"] not in owners:
                self.delete(PODS, pod["metadata"]["name"])

    # The Job controller and the kubelet of the driver.

    def make_driver_pod(self, suffix: str = "zzzzz") -> str:
        """Make the driver's pod from the Job's template, pending; returns its name."""
        job = self.child(JOBS)
        template = job["spec"]["template"]
        name: str = f"{job['metadata']['name']}-{suffix}"
        metadata = template["metadata"] | {"name": name, "ownerReferences": [_controlled_by(job)]}
        self.api.request("POST", PODS.format(self.namespace), {"metadata": metadata, "spec": template["spec"]})
        return name

    def run_driver_pod(self, suffix: str = "zzzzz") -> str:
        """Make the driver's pod, running; returns its name."""
        name = self.make_driver_pod(suffix)
        self.set_pod(name, phase="Running", containerStatuses=[_container("driver", {"running": {}})])
        return name

    def end_driver(self, name: str, message: TerminationMessage | str, code: int = EXIT_SUCCEEDED) -> None:
        """Let the driver end with a termination message."""
        text = message if isinstance(message, str) else message.to_text()
        ended = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": text}}
        phase = "Succeeded" if code == 0 else "Failed"
        self.set_pod(name, phase=phase, containerStatuses=[_container("driver", ended)])

    def fail_job(self, reason: str = "BackoffLimitExceeded") -> None:
        """Let the Job controller give the Job up."""
        name = self.child(JOBS)["metadata"]["name"]
        moment = "2026-01-01T00:00:00Z"
        base = {"status": "True", "reason": reason, "message": "the Job has failed", "lastTransitionTime": moment}
        conditions = [base | {"type": "FailureTarget"}, base | {"type": "Failed"}]
        status = {"conditions": conditions, "startTime": moment, "failed": 1}
        self.api.request("PATCH", f"{JOBS.format(self.namespace)}/{name}/status", {"status": status}, MERGE)

    # All together.

    def walk_to_the_job(self, **spec: Any) -> None:
        """Apply the run and play KubeRay until the Job is made."""
        self.apply(**spec)
        self.wait_for_phase("Starting")
        self.run_head_pod()
        self.set_cluster_ready()
        self.wait_for_phase("Running")

    def walk_to_running(self, **spec: Any) -> str:
        """Apply the run and play KubeRay until the driver runs; returns the driver pod's name."""
        self.walk_to_the_job(**spec)
        return self.run_driver_pod()

    def wait_for_attempt(self, attempt: int) -> None:
        """Wait for the RayCluster of another attempt."""
        wait_for(f"RayCluster {attempt}", lambda: attempt_of(self.child(CLUSTERS)) == attempt)

    def walk_on_to_the_job(self, attempt: int, workers: int = 0) -> None:
        """Wait for another attempt, and play KubeRay until its Job is made; the workers are there already."""
        self.wait_for_attempt(attempt)
        self.run_head_pod()
        self.set_cluster_ready(workers=workers)
        wait_for(f"Job {attempt}", lambda: attempt_of(self.child(JOBS)) == attempt)
        self.wait_for_phase("Running")

    def walk_on_to_running(self, attempt: int, workers: int = 0) -> str:
        """The same, until its driver runs; returns the driver pod's name."""
        self.walk_on_to_the_job(attempt, workers)
        return self.run_driver_pod()

    def exists(self, collection: str, name: str) -> bool:
        """Whether an object of that name is there."""
        try:
            self.api.get(f"{collection.format(self.namespace)}/{name}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True


def attempt_of(child: dict[str, Any]) -> int:
    """The attempt to which an object belongs; 0 for what lasts for the whole run."""
    return int((child["metadata"].get("labels") or {}).get("agenttuning.io/attempt", 0))


def _controlled_by(owner: dict[str, Any]) -> dict[str, Any]:
    found = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: owner["metadata"][key] for key in ("name", "uid")
    }
    return found | {"controller": True, "blockOwnerDeletion": True}


def _container(name: str, state: dict[str, Any], restarts: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "image": "some/image",
        "imageID": "",
        "ready": "running" in state,
        "restartCount": restarts,
        "state": state,
    }


def waiting(name: str, reason: str, message: str = "") -> dict[str, Any]:
    """The status of a container that waits."""
    return _container(name, {"waiting": {"reason": reason, "message": message}})
