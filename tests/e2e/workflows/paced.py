"""A workflow that takes its time and leaves the name of its pod in the folder of the run.

How many seconds an episode takes stands in PACE_SECONDS: a test needs steps of a known length, which cost no time of a
processor that others need.
"""

import asyncio
import json
import os
import socket
from pathlib import Path

from tiny_agent import judge
from tiny_agent import run as answer

__all__ = ["judge", "run"]


async def run(task, model):
    """Answer, slowly."""
    document = json.loads(Path(os.environ["TUNING_RUN_DOCUMENT"]).read_text())
    marks = Path("/mnt/agent-tuning", document["checkpoint"]["directory"], "marks")
    marks.mkdir(exist_ok=True)
    (marks / socket.gethostname()).touch()
    await asyncio.sleep(float(os.environ["PACE_SECONDS"]))
    return await answer(task, model)
