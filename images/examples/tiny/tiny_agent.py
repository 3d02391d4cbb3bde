"""One question, one answer: the workflow and the judge of the sample `tiny`, which the tests use.

Called by the runner, in an episode worker, as `tiny_agent:run` and `tiny_agent:judge`. It imports nothing, AgentScope
neither: the runner asks an output only for its attributes, and a worker starts in a fraction of a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ANSWER_TOKENS = 4


@dataclass(frozen=True)
class Output:
    """What AgentScope's WorkflowOutput and JudgeOutput hold."""

    reward: float | None = None
    response: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)


async def run(task: dict[str, Any], model: Any) -> Output:
    """Ask the question of `task` ("What is 1 + 2?") and return the reply's text."""
    reply = await model([{"role": "user", "content": task["question"]}], max_tokens=ANSWER_TOKENS)
    text = "".join(block["text"] for block in reply.content if block["type"] == "text")
    return Output(response=text)


async def judge(task: dict[str, Any], response: str) -> Output:
    """1 when the reply is the number and nothing else, else 0. `task["answer"]` is a hidden field."""
    return Output(reward=float(response.strip() == task["answer"]))
