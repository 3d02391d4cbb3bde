"""What an attempt needs, in the order of creation. Called by `engine.plan`."""

from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import claim, configmap, job, raycluster
from tuning_operator.desired.fragments import Manifest
from tuning_operator.settings import Settings


def for_attempt(run: TuningRun, settings: Settings, attempt: int) -> tuple[Manifest, ...]:
    """Everything but the Job, first to be created first.

    A RayCluster takes longest to become pods, so it goes first and its pods wait for the claim, which comes last. With
    a claim of the user's own nothing would hold the pods back, so the ConfigMap that they mount goes first.
    """
    cluster = raycluster.build(run, settings, attempt)
    volume = claim.build(run)
    if volume is None:
        return configmap.build(run), cluster
    return cluster, configmap.build(run), volume


def job_of_attempt(run: TuningRun, settings: Settings, attempt: int, ray_cluster_uid: str) -> Manifest:
    """The Job, to be created when the RayCluster is ready."""
    return job.build(run, settings, attempt, ray_cluster_uid)
