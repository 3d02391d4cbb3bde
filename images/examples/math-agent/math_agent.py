"""An agent that adds two numbers with a calculator: the workflow and the judge of the sample `math-agent`.

Called by the runner, in an episode worker, as `math_agent:run` and `math_agent:judge`. The model is reached only
through the AgentScope chat model that is passed in.

The model alone cannot add two-digit numbers; it has to learn to ask for the calculator, exactly, and to stop:

    34 + 25 =               the worked example, part of every prompt
    calc(34 + 25)
    result 59 answer
    59
    47 + 38 =               the question
    calc(47 + 38)           first turn of the model: calls the tool
    result 85 answer        what the tool says
    85                      second turn of the model: the answer

`MATH_AGENT_CALCULATOR=off` in the environment is the control: the tool says "result unknown answer", so an agent whose
gain comes from the tool falls back to what it can add alone.
"""

from __future__ import annotations

import os
import re
from typing import Any

from agentscope.tuner import JudgeOutput, WorkflowOutput

EXAMPLE = (
    {"role": "user", "content": "34 + 25 ="},
    {"role": "assistant", "content": "calc(34 + 25)"},
    {"role": "user", "content": "result 59 answer"},
    {"role": "assistant", "content": "59"},
)
# Tokens: a call takes about 11 and an answer about 4 (digits are single tokens), the end of the message included.
CALL_TOKENS = 12
ANSWER_TOKENS = 6
# A call at the start of the reply; whatever the model writes after it is ignored.
_CALL = re.compile(r"calc\((\d{1,9}) \+ (\d{1,9})\)")


async def run(task: dict[str, Any], model: Any) -> WorkflowOutput:
    """Ask the question of `task` ("47 + 38"), run the calculator if the model calls it, and return the final reply.

    The response is `{"answer": text, "call": text or None}`. Metrics: `tool_called` (0 or 1), and `stopped_in_time`
    (1 when the final reply ended before its token limit; absent when the endpoint reports no usage).
    """
    messages = [*EXAMPLE, {"role": "user", "content": f"{task['question']} ="}]
    reply = await model(messages, max_tokens=CALL_TOKENS)
    limit = CALL_TOKENS
    call = _CALL.match(text_of(reply).strip())
    if call is not None:
        messages += [
            {"role": "assistant", "content": text_of(reply)},
            {"role": "user", "content": f"result {calculate(call)} answer"},
        ]
        reply = await model(messages, max_tokens=ANSWER_TOKENS)
        limit = ANSWER_TOKENS
    metrics = {"tool_called": float(call is not None)}
    if getattr(reply, "usage", None) is not None:
        metrics["stopped_in_time"] = float(reply.usage.output_tokens < limit)
    return WorkflowOutput(
        response={"answer": text_of(reply), "call": call.group() if call is not None else None},
        metrics=metrics,
    )


async def judge(task: dict[str, Any], response: dict[str, Any]) -> JudgeOutput:
    """1 when the answer is the right number and nothing but the number, else 0.

    `task["answer"]` is a hidden field: only the judge is given it. Metric: `right_when_called`, for episodes that
    called the tool.
    """
    reward = float(response["answer"].strip() == task["answer"])
    return JudgeOutput(reward=reward, metrics={"right_when_called": reward} if response["call"] else {})


def calculate(call: re.Match[str]) -> str:
    """The sum of the two integers of a call, or "unknown" with the calculator off; text is never evaluated."""
    if os.environ.get("MATH_AGENT_CALCULATOR", "on") == "off":
        return "unknown"
    return str(int(call[1]) + int(call[2]))


def text_of(reply: Any) -> str:
    """The text of a chat model's reply; an empty reply has no text block."""
    return "".join(block["text"] for block in reply.content if block["type"] == "text")
