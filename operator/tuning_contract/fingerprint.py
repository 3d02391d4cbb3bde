"""The resume fingerprint: what must be equal for a checkpoint to be continued.

Steps, intervals, deadlines and the cluster are not in it: they may change between attempts.
"""

import json
from collections.abc import Mapping
from typing import Any

from tuning_contract.run_document import RunDocument


def fingerprint(run: RunDocument, model: str, dataset_digest: str, template_digest: str) -> dict[str, Any]:
    """Everything that decides what the next step trains.

    Args:
        run: the resolved run.
        model: what names the base model for good: its folder, or repository and commit; never a place in a cache.
        dataset_digest: of the training rows.
        template_digest: of the chat template.
    """
    return {
        "engine": run.engine.type,
        "model": model,
        "chatTemplate": template_digest,
        "dataset": dataset_digest,
        "order": run.dataset.order,
        "seed": run.seed,
        "batchSize": run.algorithm.batch_size,
        "groupSize": run.algorithm.group_size,
        "algorithm": run.algorithm.type,
        "loraRank": run.algorithm.lora.rank if run.algorithm.lora else None,
        "loraAlpha": run.algorithm.lora.alpha if run.algorithm.lora else None,
        # None when there are none, as in checkpoints of runners that knew none.
        "engineConfig": json.loads(run.engine.config) or None,
    }


def differing_fields(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields that differ, sorted: what a ConfigInvalid message lists."""
    return tuple(sorted(name for name in set(mine) | set(theirs) if mine.get(name) != theirs.get(name)))
