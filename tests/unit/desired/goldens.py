"""RayClusters written out whole, of samples and of a run that sets everything: what changes is seen in review.

`python -m tests.unit.desired.goldens` writes the files anew; `test_samples_manifests.py` fails while they differ.
"""

from pathlib import Path
from typing import Any

import yaml

from tests.builders import UID, a_model_source, a_run, some_settings
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import raycluster
from tuning_operator.settings import CaBundle, NodePool, RunDefaults, Settings

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent / "golden"
SAMPLES = ("lora-gpu", "node-pool", "episode-workers")
"""Samples with GPUs or worker pods."""
EVERYTHING = "everything"
NAMES = (*SAMPLES, EVERYTHING)

POOLS = {
    "a100": NodePool(
        "a100",
        node_selector={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
        max_gpus_per_node=8,
    ),
    "a100-slice": NodePool(
        "a100-slice",
        node_selector={"nvidia.com/mig.config": "all-3g.40gb", "zone": "b"},
        tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},),
        resource_name="nvidia.com/mig-3g.40gb",
        max_gpus_per_node=1,
    ),
    "cpu": NodePool("cpu", node_selector={"node.kubernetes.io/instance-type": "c7i.8xlarge"}, max_gpus_per_node=0),
}
"""Like those that docs/how-to/use-node-pools.md offers."""


def the_run(name: str) -> TuningRun:
    """The TuningRun of a sample, as the API server would give it in namespace `ml`."""
    documents = yaml.safe_load_all((ROOT / f"crds/samples/tuningrun.{name}.yaml").read_text())
    (found,) = [document for document in documents if document["kind"] == "TuningRun"]
    return TuningRun.from_object(found | {"metadata": found["metadata"] | {"namespace": "ml", "uid": UID}})


def with_everything() -> TuningRun:
    """A run in which every field that shows in a pod is set."""
    token = {"name": "hub", "key": "token"}
    pod: dict[str, Any] = {
        "cpu": "8",
        "memory": "64Gi",
        "sharedMemory": "8Gi",
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": NODES}},
        "volumes": [
            {"name": "corpus", "mountPath": "/data/corpus", "claimName": "data"},
            {"name": "work", "mountPath": "/data/work", "claimName": "work", "readOnly": False},
            {"name": "settings", "mountPath": "/data/settings", "configMap": {"name": "tool-settings"}},
            {"name": "keys", "mountPath": "/data/keys", "secret": {"secretName": "tool-keys"}},
            {"name": "scratch", "mountPath": "/data/scratch", "emptyDir": {"sizeLimit": "5Gi"}},
        ],
    }
    head = pod | {
        "gpus": 1,
        "nodePool": "a100-slice",
        "podTemplatePatch": {"spec": {"runtimeClassName": "nvidia"}},
    }
    worker = pod | {"name": "agents", "replicas": 3, "nodePool": "cpu", "priorityClassName": "low"}
    return a_run(
        model={
            "image": None,
            "run": {"name": "base"},
            "chatTemplate": {"configMap": {"name": "template"}},
        },
        dataset={
            "train": {"image": None, "huggingFace": {"repo": "a/b", "split": "train", "tokenSecretRef": token}},
            "evaluation": [
                {"name": "hub", "huggingFace": {"repo": "a/b", "split": "test", "tokenSecretRef": token}},
                {"name": "claim", "volume": {"claimName": "data", "path": "test.jsonl"}},
                {"name": "map", "configMap": {"name": "tasks"}},
            ],
        },
        workflow={
            "source": {"configMap": {"name": "code"}},
            "env": [
                {"name": "HTTPS_PROXY", "value": "http://own:3128"},
                {"name": "PRICE", "value": "5$"},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "tool", "key": "key"}}},
                {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "tool", "key": "mode"}}},
            ],
            "envFrom": [{"secretRef": {"name": "more"}}, {"prefix": "M_", "configMapRef": {"name": "more"}}],
        },
        cluster={"head": head, "workers": [worker, {"name": "plain"}]},
        checkpoint={
            "volume": {"claimTemplate": None, "claimName": "results"},
            "resumeFrom": {"claimName": "old", "path": "ml/base-b1946a"},
        },
        deadlines={"stallSeconds": 1800, "stopGraceSeconds": 300, "finalEvaluationSeconds": 3600},
        priorityClassName="research",
        serviceAccountName="tuning",
        imagePullSecrets=[{"name": "registry"}],
        podLabels={"team": "agents", "agenttuning.io/run": "not-this"},
        podAnnotations={"example.com/owner": "agents"},
    )


NODES = {
    "nodeSelectorTerms": [
        {
            "matchExpressions": [{"key": "disk", "operator": "Exists"}],
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}],
        }
    ]
}


def installation() -> Settings:
    """An installation that decides everything."""
    defaults = RunDefaults(
        env={"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".svc"},
        ca_bundle=CaBundle("company-ca", "bundle.pem"),
        hub_cache_claim="hub-cache",
    )
    return some_settings(node_pools=POOLS, defaults=defaults, stop_key="key")


def built(name: str) -> dict[str, Any]:
    """The RayCluster of the first attempt of a sample, or of the run that sets everything."""
    if name == EVERYTHING:
        return raycluster.build(with_everything(), installation(), 1, a_model_source())
    return raycluster.build(the_run(name), some_settings(node_pools=POOLS), 1)


def path(name: str) -> Path:
    """Where a RayCluster is written out."""
    return FOLDER / f"{name}.yaml"


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        path(name).write_text(yaml.safe_dump(built(name), sort_keys=False, width=120))


if __name__ == "__main__":
    main()
