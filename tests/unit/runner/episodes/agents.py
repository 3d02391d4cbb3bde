"""Workflows and judges as users write them, good and bad. They run in worker processes only."""

import asyncio
import ctypes
import json
import logging
import os
import random
import sys
import time
import urllib.request
from typing import Any

from tuning_runner.episodes import EnvironmentFailure, JudgeOutput, WorkflowOutput

Task = dict[str, Any]


async def answers(task: Task, model: Any) -> WorkflowOutput:
    """One turn: the scripted policy repeats the question."""
    reply = await model([{"role": "user", "content": task["question"]}])
    return WorkflowOutput(response=reply.text, metrics={"asked": 1})


async def exact(task: Task, response: Any) -> JudgeOutput:
    return JudgeOutput(reward=float(response == task["answer"]), metrics={"length": len(str(response))})


async def two_turns(task: Task, model: Any) -> WorkflowOutput:
    messages = [{"role": "user", "content": task["question"]}]
    first = (await model(messages)).text
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "again"}]
    return WorkflowOutput(response=(await model(messages)).text)


async def without_judge(task: Task, model: Any) -> WorkflowOutput:
    await model([{"role": "user", "content": "hello"}])
    return WorkflowOutput(reward=task["reward"])


async def prints(task: Task, model: Any) -> WorkflowOutput:
    print(f"an agent was asked {task['question']}, with no proxy for {os.environ['no_proxy']}", flush=True)
    return await answers(task, model)


async def tells_its_node(task: Task, model: Any) -> WorkflowOutput:
    """The reward is the process that forked this worker: one on each node."""
    await model([{"role": "user", "content": task["question"]}])
    return WorkflowOutput(reward=os.getppid())


async def scripted(task: Task, model: Any, logger: logging.Logger, auxiliary_models: dict[str, Any]) -> WorkflowOutput:
    """Does what the task's `does` says, after one turn."""
    does = task.get("does", "answer")
    logger.debug("doing %s with %s", does, auxiliary_models)
    if does == "sleep first":
        await asyncio.sleep(60)
    if does == "refused request":
        await model([{"role": "user", "content": "hi"}], temperature=0.1)
    reply = (await model([{"role": "user", "content": task["question"]}])).text
    return await _deed(does, task, model, reply)


async def _deed(does: str, task: Task, model: Any, reply: str) -> WorkflowOutput:  # noqa: C901 - a list of deeds
    if does == "raise":
        raise ValueError(f"cannot use {reply}")
    if does == "raise half a letter":
        raise ValueError("cannot use \ud83d")
    if does == "measure half a letter":
        return WorkflowOutput(response="\ud83d", metrics={"\ud83d": 1.0})
    if does == "environment":
        raise EnvironmentFailure("the sandbox is gone")
    if does == "connection":
        await asyncio.open_connection("127.0.0.1", 9)
    if does == "wrapped connection":
        try:
            await asyncio.open_connection("127.0.0.1", 9)
        except OSError as error:
            raise RuntimeError("the search tool is down") from error
    if does == "where":
        return WorkflowOutput(response=reply, metrics={"template": os.getppid()})
    if does == "exit":
        os._exit(3)
    if does == "sys.exit":
        sys.exit(2)
    if does == "segfault":
        ctypes.string_at(0)
    if does == "sleep":
        await asyncio.sleep(60)
    if does == "loop":
        while True:
            pass
    if does == "many turns":
        for number in range(100):
            reply = (await model([{"role": "user", "content": f"turn {number}"}])).text
    if does == "wrong output":
        return reply  # type: ignore[return-value]
    if does == "swallow":
        try:
            await model([{"role": "user", "content": "fails"}])
        except Exception:
            reply = "nothing"
    if does in ("swallow and go on", "ask again"):
        question = {"role": "user", "content": "fails once"}
        try:
            await model([question])
        except Exception:
            again = question if does == "ask again" else {"role": "user", "content": "hi"}
            reply = (await model([again])).text
    return WorkflowOutput(response=reply)


async def blocking(task: Task, model: Any) -> WorkflowOutput:
    """Blocks its event loop with urllib, as much code of users does."""
    body = {"model": model.model_name, "messages": [{"role": "user", "content": task["question"]}]}
    headers = {"Authorization": f"Bearer {model.api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{model.base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        return WorkflowOutput(response=json.load(response)["choices"][0]["message"]["content"])


async def fails_by_schedule(task: Task, model: Any) -> WorkflowOutput:
    """Its environment fails in the episodes that the model's reply names: the policy's script knows the schedule."""
    reply = (await model([{"role": "user", "content": task["question"]}])).text
    if reply == "broken":
        raise EnvironmentFailure("scripted")
    return WorkflowOutput(response=reply)


async def number(task: Task, response: Any) -> JudgeOutput:
    return JudgeOutput(reward=float(response))


async def shows_task(task: Task, model: Any) -> WorkflowOutput:
    await model([{"role": "user", "content": "hello"}])
    return WorkflowOutput(response=sorted(task))


async def compares_tasks(task: Task, response: Any) -> JudgeOutput:
    return JudgeOutput(reward=1.0, metrics={"seen": len(response), "all": len(task)})


async def returns_object(task: Task, model: Any) -> WorkflowOutput:
    """A response that no process boundary lets through."""
    await model([{"role": "user", "content": "hello"}])
    return WorkflowOutput(response=lambda: random.random())


async def returns_steps(task: Task, model: Any) -> WorkflowOutput:
    """A response with parts of its own, as the math agent's."""
    reply = (await model([{"role": "user", "content": task["question"]}])).text
    if task.get("does") == "sleep":
        await asyncio.sleep(60)
    return WorkflowOutput(response={"text": reply, "called": True})


async def reads_steps(task: Task, response: dict[str, Any]) -> JudgeOutput:
    return JudgeOutput(reward=float(response["text"] == task["answer"]))


async def calls_response(task: Task, response: Any) -> JudgeOutput:
    return JudgeOutput(reward=response())


async def scripted_judge(task: Task, response: Any) -> JudgeOutput:  # noqa: C901 - a list of deeds
    """Does what the task's `judge` says."""
    does = task.get("judge", "score")
    if does == "loop":
        while True:
            time.sleep(0)
    if does == "sleep":
        await asyncio.sleep(60)
    if does == "exit":
        os._exit(4)
    if does == "raise":
        raise KeyError("answer_key")
    if does == "nan":
        return JudgeOutput(reward=float("nan"))
    if does == "none":
        return None  # type: ignore[return-value]
    if does == "connection":
        await asyncio.open_connection("127.0.0.1", 9)
    if does == "rate limit":
        raise _status(429)
    if does == "not found":
        raise _status(404)
    return JudgeOutput(reward=1.0)


def _status(status: int) -> Exception:
    error = RuntimeError(f"HTTP {status}")
    error.status_code = status  # type: ignore[attr-defined]
    return error


def not_async(task: Task, model: Any) -> WorkflowOutput:
    return WorkflowOutput()


async def other_names(question: str, llm: Any) -> WorkflowOutput:
    return WorkflowOutput()
