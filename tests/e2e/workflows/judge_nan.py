"""A workflow whose judge returns no number."""

from types import SimpleNamespace

from tiny_agent import run

__all__ = ["judge", "run"]


async def judge(task, response):
    """Judge without a number."""
    return SimpleNamespace(reward=float("nan"), response=None, metrics={})
