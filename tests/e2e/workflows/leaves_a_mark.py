"""A workflow that leaves the name of its pod in the folder of the run, and takes its time."""

import asyncio
import json
import os
import socket
from pathlib import Path

from tiny_agent import judge
from tiny_agent import run as answer

__all__ = ["judge", "run"]


async def run(task, model):
    """Answer."""
    document = json.loads(Path(os.environ["TUNING_RUN_DOCUMENT"]).read_text())
    marks = Path("/mnt/agent-tuning", document["checkpoint"]["directory"], "marks")
    marks.mkdir(exist_ok=True)
    (marks / socket.gethostname()).touch()
    await asyncio.sleep(0.05)
    return await answer(task, model)
