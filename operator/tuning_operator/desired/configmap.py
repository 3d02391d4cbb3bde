"""The ConfigMap with run.json, one for the whole run."""

from tuning_contract.environment import RUN_DOCUMENT_KEY
from tuning_operator.api import meta
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import fragments, names, run_document
from tuning_operator.desired.fragments import Manifest


def build(run: TuningRun) -> Manifest:
    """The ConfigMap. It is immutable: what an attempt reads is what the first one read."""
    document = run_document.build(run)
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
