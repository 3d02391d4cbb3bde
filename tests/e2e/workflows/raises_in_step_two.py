"""A workflow that works in the preflight and in step 1, and raises from step 2 on.

Whether step 1 is over is read from the metrics of the run, which lie on the mounted volume.
"""

import json
import os
from pathlib import Path

from tiny_agent import judge
from tiny_agent import run as answer

__all__ = ["judge", "run"]


def _first_step_is_over():
    """Whether the runner has recorded a finished training step."""
    document = json.loads(Path(os.environ["TUNING_RUN_DOCUMENT"]).read_text())
    metrics = Path("/mnt/agent-tuning", document["checkpoint"]["directory"], "metrics.jsonl")
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return any(json.loads(line)["role"] == "trainer" for line in lines)


async def run(task, model):
    """Answer in step 1, raise afterwards."""
    if _first_step_is_over():
        raise RuntimeError("the licence of the calculator ran out")
    return await answer(task, model)
