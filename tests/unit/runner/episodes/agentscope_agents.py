"""A workflow of AgentScope's: its chat model, its ReAct agent with a tool, its output classes."""

from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.tool import Toolkit, ToolResponse
from agentscope.tuner import JudgeOutput, WorkflowOutput


async def chats(task: dict[str, Any], model: Any) -> WorkflowOutput:
    """Two turns of one growing conversation over AgentScope's chat model."""
    messages = [{"role": "user", "content": task["question"]}]
    first = "".join(block["text"] for block in (await model(messages)).content)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "again"}]
    response = await model(messages)
    return WorkflowOutput(response="".join(block["text"] for block in response.content))


async def adds(task: dict[str, Any], model: Any) -> WorkflowOutput:
    """A ReAct agent that calls a tool."""

    async def add(a: int, b: int) -> ToolResponse:
        """Add two numbers.

        Args:
            a (int): the first
            b (int): the second
        """
        return ToolResponse(content=[TextBlock(type="text", text=str(a + b))])

    toolkit = Toolkit()
    toolkit.register_tool_function(add)
    agent = ReActAgent("adder", "You add.", model, OpenAIChatFormatter(), toolkit, InMemoryMemory(), max_iters=3)
    agent.set_console_output_enabled(False)
    return WorkflowOutput(response=await agent.reply(Msg("user", task["question"], "user")))


async def exact(task: dict[str, Any], response: Any) -> JudgeOutput:
    text = response.get_text_content() if isinstance(response, Msg) else response
    return JudgeOutput(reward=float(text == task["answer"]), metrics={"length": len(text)})
