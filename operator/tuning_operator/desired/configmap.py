"""The ConfigMap with run.json, one for the whole run."""

from tuning_contract.environment import RUN_DOCUMENT_KEY
from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import fragments, names, run_document
from tuning_operator.desired.fragments import Manifest
from tuning_operator.desired.model_source import ModelSource


def build(run: TuningRun, source: ModelSource | None = None) -> Manifest:
    """The ConfigMap. It is immutable: what an attempt reads is what the first one read.

    Args:
        run: the run.
        source: the finished run that `spec.model.run` names, if it does.
    """
    document = run_document.build(run, source)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.child(run),
            "namespace": run.namespace,
            "labels": fragments.labels(run, meta.COMPONENT_CONFIG),
            "annotations": {meta.RUN_DIGEST_ANNOTATION: document.digest},
            "ownerReferences": [fragments.owner(run)],
        },
        "immutable": True,
        "data": {RUN_DOCUMENT_KEY: document.to_text()},
    }
