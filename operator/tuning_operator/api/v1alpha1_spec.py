"""`spec` of a TuningRun: what a user writes.

Parsed by `v1alpha1`, rendered into the CRD by `crd`. Its halves are `v1alpha1_training` and `v1alpha1_execution`.
"""

from typing import Annotated, ClassVar

from pydantic import Field

from tuning_operator.api.model import ApiModel, Rule, immutable, rule
from tuning_operator.api.v1alpha1_execution import CheckpointSpec, ClusterSpec, MetricsSpec, WorkflowSpec
from tuning_operator.api.v1alpha1_training import AlgorithmSpec, DatasetSpec, EngineSpec, ModelSpec, RolloutSpec


class TuningRunSpec(ApiModel):
    """Desired training. A run is a record: nothing in it can be changed after creation."""

    rules: ClassVar[tuple[Rule, ...]] = (
        rule(
            "self.rollout.minGroupSize <= self.algorithm.groupSize",
            "rollout.minGroupSize must not be more than algorithm.groupSize: no group would ever be trained",
            "rollout",
        ),
        rule(
            "self.engine.type != 'TRL' || self.cluster.head.gpus <= 1",
            "cluster.head.gpus must be at most 1 with engine TRL, which trains on one GPU: more would lie idle",
            "cluster",
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
            ),
            "delete the run, or create another one under a new name",
        ),
    )

    seed: Annotated[int, Field(ge=0, le=2**31 - 1, examples=[42])] = 0
    """One seed for task order, sampling noise and initialisation."""
    engine: EngineSpec = EngineSpec()
    """What trains, and on which Ray."""
    model: ModelSpec
    """The model to tune."""
    dataset: DatasetSpec
    """The tasks to train and to evaluate on."""
    algorithm: AlgorithmSpec
    """How the model learns."""
    rollout: RolloutSpec = RolloutSpec()
    """How episodes are run, repeated and given up."""
    workflow: WorkflowSpec
    """The agent and its judge."""
    cluster: ClusterSpec = ClusterSpec()
    """The Ray cluster of each attempt."""
    checkpoint: CheckpointSpec
    """What is kept, and where."""
    metrics: MetricsSpec = MetricsSpec()
    """How figures leave the run, beside the scrape of its pod."""
