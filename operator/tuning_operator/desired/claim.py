"""The claim for checkpoints, logs and the final model, if the run asks for one of its own."""

from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.api.v1alpha1_execution import DeletionPolicy
from tuning_operator.desired import fragments, names
from tuning_operator.desired.fragments import Manifest
from tuning_operator.settings import Settings


def build(run: TuningRun, settings: Settings) -> Manifest | None:
    """The claim, or None when the run uses an existing one.

    Class and fate are the installation's where the run says nothing. Only with deletionPolicy Delete does the run own
    it: a claim without an owner outlives the run.
    """
    template = run.spec.checkpoint.volume.claim_template
    if template is None:
        return None
    metadata: Manifest = {
        "name": names.claim(run),
        "namespace": run.namespace,
        "labels": fragments.labels(run, meta.COMPONENT_CHECKPOINT),
    }
    if (run.spec.checkpoint.deletion_policy or settings.defaults.deletion_policy) is DeletionPolicy.DELETE:
        metadata["ownerReferences"] = [fragments.owner(run)]
    spec: Manifest = {
        "accessModes": [mode.value for mode in template.access_modes],
        "resources": {"requests": {"storage": template.size}},
    }
    if storage_class := template.storage_class_name or settings.defaults.storage_class_name:
        spec["storageClassName"] = storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
