"""A workflow whose judge never comes back, like one that waits for a service that is gone."""

import asyncio

from tiny_agent import run

__all__ = ["judge", "run"]


async def judge(task, response):
    """Wait for ever."""
    await asyncio.Event().wait()
