"""`spec` of a TuningRun: what a user writes.

Parsed by `v1alpha1`, rendered into the CRD by `crd`. Its parts are `v1alpha1_training`,
`v1alpha1_execution` and `v1alpha1_cluster`.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field

from tuning_contract.algorithms import ENGINES, Engine
from tuning_operator.api.model import (
    ApiModel,
    LabelKey,
    LabelValue,
    ObjectName,
    Rule,
    immutable,
    list_map,
    rule,
    valid_keys,
)
from tuning_operator.api.v1alpha1_cluster import ClusterSpec
from tuning_operator.api.v1alpha1_execution import CheckpointSpec, MetricsSpec, WorkflowSpec
from tuning_operator.api.v1alpha1_lifecycle import CleanupSpec, DeadlinesSpec, RetrySpec
from tuning_operator.api.v1alpha1_sources import NameReference
from tuning_operator.api.v1alpha1_training import (
    GROUP_METHODS,
    AlgorithmSpec,
    DatasetSpec,
    EngineSpec,
    ModelSpec,
    RolloutSpec,
)

RESERVED_LABELS = ("app.kubernetes.io/created-by", "app.kubernetes.io/managed-by", "app.kubernetes.io/name")
RESERVED_ANNOTATIONS = ("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt")
"""Set on the pods by the operator or by KubeRay."""

HEAD_TRAINERS = [engine.name for engine in ENGINES.values() if not engine.trains_on_workers]
"""Engines that train on the head pod, with one GPU at most."""


def needs_lora(engines: Iterable[Engine]) -> tuple[Rule, ...]:
    """The rule that keeps `algorithm.lora` from engines that cannot train adapters; none where all can."""
    without = [engine.name for engine in engines if not engine.lora]
    if not without:
        return ()
    return (
        rule(
            f"!has(self.algorithm.lora) || !(self.engine.type in {without!r})",
            f"`algorithm.lora` must not be set with engine {' or '.join(without)}, which trains all weights: leave it "
            "out, or choose another engine",
            "algorithm.lora",
        ),
    )


class TuningRunSpec(ApiModel):
    """Desired training. A run is a record: only `suspend`, `deadlines` and `cleanup` can be changed after creation."""

    validations: ClassVar[tuple[Rule, ...]] = (
        rule(
            # A group of one is the other rule's matter where a method needs two.
            "self.rollout.minGroupSize <= self.algorithm.groupSize || "
            f"(self.algorithm.groupSize < 2 && self.algorithm.type in {list(GROUP_METHODS)!r})",
            "`rollout.minGroupSize` must not be more than `algorithm.groupSize`: no group would ever be trained; "
            "lower the one or raise the other",
            "rollout.minGroupSize",
        ),
        rule(
            f"!(self.algorithm.type in {list(GROUP_METHODS)!r}) || self.rollout.minGroupSize >= 2",
            f"`rollout.minGroupSize` must be at least 2 with {', '.join(GROUP_METHODS)}, which compare the episodes "
            "of one task",
            "rollout.minGroupSize",
        ),
        rule(
            f"!(self.engine.type in {HEAD_TRAINERS!r}) || self.cluster.head.gpus <= 1",
            f"`cluster.head.gpus` must be at most 1 with engine {' or '.join(HEAD_TRAINERS)}, which trains on one GPU: "
            "more would lie idle",
            "cluster.head.gpus",
        ),
        rule(
            f"!(self.engine.type in {HEAD_TRAINERS!r}) || !has(self.cluster.workers) || "
            "self.cluster.workers.all(worker, worker.gpus == 0)",
            f"`cluster.workers[].gpus` must be 0 with engine {' or '.join(HEAD_TRAINERS)}, which trains on the head: "
            "ask for the GPU in `cluster.head.gpus`",
            "cluster.workers",
        ),
        *needs_lora(ENGINES.values()),
        rule(
            "!has(self.algorithm.evaluateEverySteps) || "
            "(has(self.dataset.evaluation) && self.dataset.evaluation.size() > 0)",
            "`algorithm.evaluateEverySteps` needs a set in `dataset.evaluation`: name one, or leave it out",
            "algorithm.evaluateEverySteps",
        ),
        rule(
            "!has(self.cluster.workers) || self.cluster.workers.size() == 0 || "
            "!has(self.checkpoint.volume.claimTemplate) || "
            "!('ReadWriteOncePod' in self.checkpoint.volume.claimTemplate.accessModes)",
            "`checkpoint.volume.claimTemplate.accessModes` must not be ReadWriteOncePod with `cluster.workers`, since "
            "head and workers mount it: use ReadWriteMany, or ReadWriteOnce if all pods fit on one node",
            "checkpoint.volume.claimTemplate.accessModes",
        ),
        valid_keys("podLabels"),
        valid_keys("podAnnotations"),
        rule(
            "!has(self.podLabels) || "
            "self.podLabels.all(key, !key.startsWith('agenttuning.io/') && !key.startsWith('ray.io/'))",
            "`podLabels` must not have keys of agenttuning.io/ or ray.io/, which select the run's pods: choose others",
            "podLabels",
        ),
        rule(
            f"!has(self.podLabels) || self.podLabels.all(key, !(key in {list(RESERVED_LABELS)!r}))",
            f"`podLabels` must not have {', '.join(RESERVED_LABELS)}, which the operator or KubeRay sets: choose "
            "others",
            "podLabels",
        ),
        rule(
            "!has(self.podAnnotations) || self.podAnnotations.all(key, !key.startsWith('agenttuning.io/') && "
            f"!key.startsWith('ray.io/') && !(key in {list(RESERVED_ANNOTATIONS)!r}))",
            "`podAnnotations` must not have keys of agenttuning.io/ or ray.io/, nor "
            f"{' or '.join(RESERVED_ANNOTATIONS)}, which the operator sets: choose others",
            "podAnnotations",
        ),
        *immutable(
            (
                "seed",
                "engine",
                "model",
                "dataset",
                "algorithm",
                "rollout",
                "workflow",
                "cluster",
                "checkpoint",
                "metrics",
                "retry",
                "priorityClassName",
                "serviceAccountName",
                "imagePullSecrets",
                "podLabels",
                "podAnnotations",
            ),
            "delete the run, or create another one under a new name",
        ),
    )

    seed: Annotated[int, Field(ge=0, le=2**31 - 1, examples=[42])] = 0
    """One seed for task order, sampling noise and initialisation."""
    engine: EngineSpec = EngineSpec()
    """What trains, and on which Ray."""
    model: ModelSpec
    """The model to tune, and how it is sampled."""
    dataset: DatasetSpec
    """The tasks to train and to evaluate on."""
    algorithm: AlgorithmSpec
    """How the model learns, how long, and from how many episodes."""
    rollout: RolloutSpec = RolloutSpec()
    """How episodes are run, repeated and given up."""
    workflow: WorkflowSpec
    """The agent and its judge, which are Python functions."""
    cluster: ClusterSpec = ClusterSpec()
    """The Ray cluster of each attempt."""
    checkpoint: CheckpointSpec
    """What is kept of the run, and on which claim."""
    metrics: MetricsSpec = MetricsSpec()
    """How figures leave the run, beside the scrape of its pod."""
    suspend: Annotated[bool, Field(examples=[True])] = False
    """Stop the run: it saves a checkpoint and gives its cluster back. Set it to false, and the training goes on from
    there."""
    retry: RetrySpec = RetrySpec()
    """When a failed attempt is followed by another one."""
    deadlines: DeadlinesSpec = DeadlinesSpec()
    """How long the run, and parts of it, may take."""
    cleanup: CleanupSpec = CleanupSpec()
    """What is removed after the run has ended."""
    priority_class_name: Annotated[ObjectName, Field(examples=["research"])] | None = None
    """PriorityClass of all pods of the run that name none of their own."""
    service_account_name: Annotated[ObjectName, Field(examples=["tuning"])] | None = None
    """ServiceAccount of all pods of the run, for access to a cloud's storage, say; its token is not mounted. Without
    it: the namespace's default one."""
    image_pull_secrets: Annotated[
        tuple[NameReference, ...], Field(max_length=8, json_schema_extra=list_map("name"))
    ] = ()
    """Secrets with which the images of all pods of the run are pulled."""
    pod_labels: Annotated[
        dict[LabelKey, LabelValue], Field(default_factory=dict, max_length=16, examples=[{"team": "agents"}])
    ]
    """Labels for all pods of the run, for cost reports or network policies, say."""
    pod_annotations: Annotated[
        dict[LabelKey, Annotated[str, Field(max_length=4096)]],
        Field(default_factory=dict, max_length=16, examples=[{"example.com/owner": "agents"}]),
    ]
    """Annotations for all pods of the run."""
