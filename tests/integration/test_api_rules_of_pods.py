"""The rules over workflow, pods, claims and metrics, each from both sides, on a real kube-apiserver."""

from typing import Any

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.integration.api_requests import RuleCase, Spec, judge

pytestmark = pytest.mark.control_plane

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERM = f"spec.cluster.head.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]"
KEYS = (
    "must have keys such as team or example.com/team: at most 63 letters, digits, hyphens, underscores and dots, with "
    "or without a domain and a slash before them"
)
OURS = (
    "`name` must not be a variable that the operator or KubeRay sets, which are TUNING_* and FQ_RAY_IP, HF_HOME, "
    "PYTHONPATH, RAY_ADDRESS, RAY_AUTH_MODE, RAY_AUTH_TOKEN, RAY_CLUSTER_NAME, RAY_PORT, RAY_REDIS_ADDRESS, "
    "RAY_USAGE_STATS_ENABLED, RAY_enable_autoscaler_v2, REDIS_USERNAME: choose another"
)
MOUNT = (
    "`mountPath` must not be, be in or hold a folder of the operator's, which are /dev/shm, /etc/agent-tuning, "
    "/mnt/agent-tuning, /mnt/claims, /mnt/huggingface, /opt/agent-tuning: mount it elsewhere, such as below /data"
)
SET_VALUES = "`values` must be set with `operator` In or NotIn: list the values to compare with"
NO_VALUES = "`values` must not be set with `operator` Exists or DoesNotExist, which do not look at them: leave them out"
SELECTING = "`podLabels` must not have keys of agenttuning.io/ or ray.io/, which select the run's pods: choose others"
ANNOTATIONS = (
    "`podAnnotations` must not have keys of agenttuning.io/ or ray.io/, nor "
    "cluster-autoscaler.kubernetes.io/safe-to-evict or karpenter.sh/do-not-disrupt, which the operator sets: choose "
    "others"
)
WORKERS = {"workers": [{"name": "agents"}]}


def env(**entry: Any) -> Spec:
    return {"workflow": {"env": [{"name": "A"} | entry]}}


def head(**pod: Any) -> Spec:
    return {"cluster": {"head": pod}}


def volumes(*entries: Spec) -> Spec:
    return head(volumes=[{"name": f"v{place}", "mountPath": "/data"} | entry for place, entry in enumerate(entries)])


def tolerates(**toleration: Any) -> Spec:
    return head(tolerations=[toleration])


def node_term(**term: Any) -> Spec:
    return head(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}})


def node(**requirement: Any) -> Spec:
    return node_term(matchExpressions=[{"key": "zone"} | requirement])


def neighbours(**selector: Any) -> Spec:
    return head(affinity={"podAffinity": {REQUIRED: [{"topologyKey": "zone", "labelSelector": selector}]}})


def claim(**template: Any) -> Spec:
    return {"checkpoint": {"volume": {"claimTemplate": template}}}


WORKFLOW = [
    RuleCase(
        "spec.workflow.entrypoint",
        "set `entrypoint`: the agent as module:function",
        {"workflow": {"entrypoint": None}},
        {},
    ),
    RuleCase("spec.workflow.env[0]", "set exactly one of `value`, `valueFrom`", env(), env(value="")),
    RuleCase("spec.workflow.env[0].name", OURS, env(name="TUNING_X", value="1"), env(name="TUNINGS", value="1")),
    RuleCase("spec.workflow.env[0].name", OURS, env(name="RAY_ADDRESS", value="1"), env(name="RAY_X", value="1")),
    RuleCase(
        "spec.workflow.env[0].valueFrom",
        "set exactly one of `secretKeyRef`, `configMapKeyRef`",
        env(valueFrom={}),
        env(valueFrom={"secretKeyRef": {"name": "s", "key": "k"}}),
    ),
    RuleCase(
        "spec.workflow.envFrom[0]",
        "set exactly one of `secretRef`, `configMapRef`",
        {"workflow": {"envFrom": [{"secretRef": {"name": "s"}, "configMapRef": {"name": "c"}}]}},
        {"workflow": {"envFrom": [{"secretRef": {"name": "s"}, "prefix": "TOOL_"}]}},
    ),
    *(
        RuleCase(
            "spec.workflow.envFrom[0].prefix",
            "`prefix` must not begin with TUNING_ or RAY_, as the variables of the operator and of Ray do: choose "
            "another, such as TOOL_",
            {"workflow": {"envFrom": [{"secretRef": {"name": "s"}, "prefix": f"{prefix}_TOKEN_"}]}},
            {"workflow": {"envFrom": [{"secretRef": {"name": "s"}, "prefix": f"MY_{prefix}_"}]}},
        )
        for prefix in ("TUNING", "RAY")
    ),
]
RESOURCES = [
    RuleCase("spec.cluster.head.cpu", "`cpu` must be more than 0", head(cpu=0), head(cpu="1m")),
    RuleCase(
        "spec.cluster.head.memory",
        "`memory` must be at least 512Mi: Ray alone needs that",
        head(memory="511Mi", sharedMemory=1),
        head(memory="512Mi", sharedMemory="64Mi"),
    ),
    RuleCase(
        "spec.cluster.head.sharedMemory",
        "`sharedMemory` must be more than 0",
        head(sharedMemory=0),
        head(sharedMemory=1),
    ),
    RuleCase(
        "spec.cluster.head.sharedMemory",
        "`sharedMemory` must be less than `memory`: it is part of it",
        head(memory="2Gi", sharedMemory=2147483648),
        head(memory="2Gi", sharedMemory="2147483647"),
    ),
    RuleCase(
        "spec.cluster.head.gpus",
        "`cluster.head.gpus` must be at most 1 with engine TRL, which trains on one GPU: more would lie idle",
        head(gpus=2),
        head(gpus=2) | {"engine": {"type": "Trinity"}},
    ),
    RuleCase(
        "spec.cluster.workers",
        "`cluster.workers[].gpus` must be 0 with engine TRL, which trains on the head: ask for the GPU in "
        "`cluster.head.gpus`",
        {"cluster": {"workers": [{"name": "agents", "gpus": 1}]}},
        {"cluster": {"workers": [{"name": "agents", "gpus": 1}]}, "engine": {"type": "Trinity"}},
    ),
    RuleCase(
        "spec.cluster.workers",
        "`workers[].replicas` must be at most 1000 in sum: use fewer, larger pods",
        {"cluster": {"workers": [{"name": "a", "replicas": 1000}, {"name": "b"}]}},
        {"cluster": {"workers": [{"name": "a", "replicas": 999}, {"name": "b"}]}},
    ),
    *(
        RuleCase(
            "spec.cluster.workers[0].name",
            "`name` must not be head or headgroup: KubeRay and Kueue call the head so; choose another",
            {"cluster": {"workers": [{"name": name}]}},
            {"cluster": {"workers": [{"name": "heads"}]}},
        )
        for name in ("head", "headgroup")
    ),
]
VOLUMES = [
    RuleCase(
        "spec.cluster.head.volumes[0]",
        "set exactly one of `claimName`, `configMap`, `secret`, `emptyDir`",
        volumes({}),
        volumes({"claimName": "corpus"}),
    ),
    *(
        RuleCase(
            "spec.cluster.head.volumes[0].mountPath",
            MOUNT,
            volumes({"claimName": "corpus", "mountPath": path}),
            volumes({"claimName": "corpus", "mountPath": "/mnt/claims2"}),
        )
        for path in ("/mnt/claims", "/mnt/claims/data", "/mnt", "/dev/shm")
    ),
    RuleCase(
        "spec.cluster.head.volumes",
        "`volumes[].mountPath` must differ from each other: a path shows one volume only",
        volumes({"claimName": "a"}, {"claimName": "b"}),
        volumes({"claimName": "a"}, {"claimName": "b", "mountPath": "/data/b"}),
    ),
    RuleCase(
        "spec.cluster.head.volumes[0].readOnly",
        "`readOnly` must not be true with `emptyDir`, which would stay empty: leave it out",
        volumes({"emptyDir": {}, "readOnly": True}),
        volumes({"emptyDir": {}}),
    ),
    RuleCase(
        "spec.cluster.head.volumes[0].readOnly",
        "`readOnly` must not be false with `configMap` or `secret`, which a pod cannot write: leave it out",
        volumes({"secret": {"secretName": "s"}, "readOnly": False}),
        volumes({"claimName": "s", "readOnly": False}),
    ),
    RuleCase(
        "spec.cluster.head.volumes[0].emptyDir.sizeLimit",
        "`sizeLimit` must be more than 0",
        volumes({"emptyDir": {"sizeLimit": 0}}),
        volumes({"emptyDir": {"sizeLimit": "1Ki"}}),
    ),
]
NODES = [
    RuleCase(
        "spec.cluster.head.nodeSelector",
        f"`nodeSelector` {KEYS}",
        head(nodeSelector={"a b": "c"}),
        head(nodeSelector={"example.com/a_b.c": "c"}),
    ),
    RuleCase(
        "spec.cluster.head.tolerations[0].key",
        "`key` must be set with `operator` Equal: name the taint, or use Exists to tolerate every taint",
        tolerates(value="a"),
        tolerates(operator="Exists"),
    ),
    RuleCase(
        "spec.cluster.head.tolerations[0].value",
        "`value` must not be set with `operator` Exists, which does not look at it: leave it out, or use Equal",
        tolerates(key="a", operator="Exists", value="b"),
        tolerates(key="a", value="b"),
    ),
    RuleCase(
        "spec.cluster.head.tolerations[0].tolerationSeconds",
        "`tolerationSeconds` needs `effect` NoExecute, the only one that ends running pods: set it, or leave the "
        "seconds out",
        tolerates(key="a", effect="NoSchedule", tolerationSeconds=1),
        tolerates(key="a", effect="NoExecute", tolerationSeconds=1),
    ),
    RuleCase(
        TERM,
        "set `matchExpressions`, `matchFields` or both: without a condition no node matches",
        node_term(),
        node_term(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["a"]}]),
    ),
    RuleCase(
        f"{TERM}.matchFields",
        "`matchFields` must have `key` metadata.name, `operator` In or NotIn, and one of `values`: Kubernetes knows no "
        "more; use `matchExpressions` for labels",
        node_term(matchFields=[{"key": "metadata.uid", "operator": "In", "values": ["a"]}]),
        node_term(matchFields=[{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]),
    ),
    RuleCase(f"{TERM}.matchExpressions[0].values", SET_VALUES, node(operator="In"), node(operator="In", values=[""])),
    RuleCase(
        f"{TERM}.matchExpressions[0].values", NO_VALUES, node(operator="Exists", values=["a"]), node(operator="Exists")
    ),
    RuleCase(
        f"{TERM}.matchExpressions[0].values",
        "`values` must be one whole number with `operator` Gt or Lt: write it in quotes",
        node(operator="Gt", values=["a"]),
        node(operator="Gt", values=["8"]),
    ),
    RuleCase(
        f"spec.cluster.head.affinity.podAffinity.{REQUIRED}[0].labelSelector.matchLabels",
        f"`matchLabels` {KEYS}",
        neighbours(matchLabels={"a/b/c": "d"}),
        neighbours(matchLabels={"a/b": "d"}),
    ),
    RuleCase(
        f"spec.cluster.head.affinity.podAffinity.{REQUIRED}[0].labelSelector.matchExpressions[0].values",
        SET_VALUES,
        neighbours(matchExpressions=[{"key": "app", "operator": "NotIn", "values": []}]),
        neighbours(matchExpressions=[{"key": "app", "operator": "DoesNotExist"}]),
    ),
    RuleCase(
        f"spec.cluster.head.affinity.podAffinity.{REQUIRED}[0].labelSelector.matchExpressions[0].values",
        NO_VALUES,
        neighbours(matchExpressions=[{"key": "app", "operator": "Exists", "values": ["a"]}]),
        neighbours(matchExpressions=[{"key": "app", "operator": "In", "values": ["a"]}]),
    ),
]
METADATA = [
    *(
        RuleCase(f"spec.{field}", f"`{field}` {KEYS}", {field: {"-a": "b"}}, {field: {"example.com/a": "b"}})
        for field in ("podLabels", "podAnnotations")
    ),
    *(
        RuleCase("spec.podLabels", SELECTING, {"podLabels": {key: "x"}}, {"podLabels": {"xray.io/a": "x"}})
        for key in ("agenttuning.io/run", "ray.io/cluster")
    ),
    RuleCase(
        "spec.podLabels",
        "`podLabels` must not have app.kubernetes.io/created-by, app.kubernetes.io/managed-by, app.kubernetes.io/name, "
        "which the operator or KubeRay sets: choose others",
        {"podLabels": {"app.kubernetes.io/managed-by": "x"}},
        {"podLabels": {"app.kubernetes.io/part-of": "x"}},
    ),
    *(
        RuleCase("spec.podAnnotations", ANNOTATIONS, {"podAnnotations": {key: "x"}}, {"podAnnotations": {"a": "x"}})
        for key in ("agenttuning.io/run-digest", "ray.io/ft-enabled", "karpenter.sh/do-not-disrupt")
    ),
]
CLAIMS = [
    RuleCase(
        "spec.checkpoint.volume",
        "set exactly one of `claimTemplate`, `claimName`",
        {"checkpoint": {"volume": {"claimName": "results"}}},
        {"checkpoint": {"volume": {"claimName": "results", "claimTemplate": None}}},
    ),
    RuleCase(
        "spec.checkpoint.deletionPolicy",
        "`deletionPolicy` Delete needs a claim that is made for the run: use `volume.claimTemplate`, or leave "
        "`deletionPolicy` out and delete the run's folder on the claim yourself",
        {"checkpoint": {"deletionPolicy": "Delete", "volume": {"claimName": "results", "claimTemplate": None}}},
        {"checkpoint": {"deletionPolicy": "Delete"}},
    ),
    RuleCase(
        "spec.checkpoint.volume.claimTemplate.size",
        "`size` must be at least 1Mi: it holds the checkpoints and the final model",
        claim(size="1023Ki"),
        claim(size="1Mi"),
    ),
    RuleCase(
        "spec.checkpoint.volume.claimTemplate.accessModes",
        "`accessModes` must not have others beside ReadWriteOncePod: choose one",
        claim(accessModes=["ReadWriteOncePod", "ReadWriteOnce"]),
        claim(accessModes=["ReadWriteOncePod"]),
    ),
    RuleCase(
        "spec.checkpoint.volume.claimTemplate.accessModes",
        "`checkpoint.volume.claimTemplate.accessModes` must not be ReadWriteOncePod with `cluster.workers`, since head "
        "and workers mount it: use ReadWriteMany, or ReadWriteOnce if all pods fit on one node",
        claim(accessModes=["ReadWriteOncePod"]) | {"cluster": WORKERS},
        claim(accessModes=["ReadWriteOnce"]) | {"cluster": WORKERS},
    ),
    RuleCase(
        "spec.metrics.remoteWrite.url",
        "`url` must not hold a user or a password, which everyone who reads the run would see: use a receiver that "
        "needs none, or a proxy in the cluster that adds them",
        {"metrics": {"remoteWrite": {"url": "https://user:secret@prometheus/api/v1/write"}}},
        {"metrics": {"remoteWrite": {"url": "https://prometheus/api/v1/write?owner=a@b"}}},
    ),
]
OF_PODS = ("cpu", "memory", "sharedMemory", "nodeSelector", "volumes")
"""Fields with a rule that head and workers have in common."""
WORKERS_TOO = [
    RuleCase(
        case.field.replace("spec.cluster.head", "spec.cluster.workers[0]"),
        case.message,
        *(
            {"cluster": {"workers": [{"name": "agents"} | spec["cluster"]["head"]]}}
            for spec in (case.broken, case.kept)
        ),
    )
    for case in (*RESOURCES, *VOLUMES, *NODES)
    if case.field in {f"spec.cluster.head.{name}" for name in OF_PODS}
]
RULES = [*WORKFLOW, *RESOURCES, *VOLUMES, *NODES, *WORKERS_TOO, *METADATA, *CLAIMS]


@pytest.mark.parametrize("case", RULES, ids=str)
def test_a_rule_refuses_what_breaks_it_and_accepts_what_keeps_it(control_plane: ControlPlane, case: RuleCase) -> None:
    judge(control_plane, case)
