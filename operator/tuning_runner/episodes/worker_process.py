"""The processes in which user code runs: one template that loads it once, and workers forked from that.

Started by `workers.WorkerPool` as `python -m tuning_runner.episodes.worker_process <descriptor>`: a fresh
interpreter without any training library, beside the trainer or on a worker node. The template imports the
user's modules and then only forks, kills and reaps, so loading AgentScope (some 170 MB) is paid once and shared
by all workers. A worker runs one episode at a time and may die in any way. Standard library only, but for
`chat_model`.
"""

import asyncio
import contextlib
import gc
import hashlib
import inspect
import json
import logging
import math
import os
import queue
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuning_runner.episodes import entrypoints
from tuning_runner.episodes.chat_model import ModelAddress, open_model, wants_agentscope, warm_up
from tuning_runner.episodes.exceptions import describe

_CONTROL_BYTES = 65536
_TEXT = 4000
_LOG = logging.getLogger("workflow")


@dataclass(frozen=True)
class UserCode:
    """The loaded functions."""

    workflow: entrypoints.UserFunction
    judge: entrypoints.UserFunction | None
    agentscope: bool


def main() -> None:
    """The template's life: load, then fork, kill and reap on request until the trainer is gone."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "openai", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # A parent that is Ray's blocks SIGINT, which tools of user code, such as notebook kernels, are stopped with.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    settings = json.loads(control.recv(_CONTROL_BYTES))
    try:
        code = _load(settings)
    except entrypoints.EntrypointProblem as problem:
        return _send(control, {"problem": str(problem)})
    except BaseException as error:  # a module may even call sys.exit
        return _send(control, {"raised": describe(error)["text"]})
    _send(control, {"ready": True, "judgeDigest": _digest(code.judge)})
    gc.collect()
    gc.freeze()  # what is loaded stays shared: the collector of a worker must not touch its pages
    sys.exit(_serve_pool(control, code))


def _load(settings: Mapping[str, Any]) -> UserCode:
    workflow = entrypoints.load("workflow.entrypoint", settings["workflow"], entrypoints.WORKFLOW_PARAMETERS)
    judge = None
    if settings.get("judge"):
        judge = entrypoints.load("workflow.judge", settings["judge"], entrypoints.JUDGE_PARAMETERS)
    agentscope = wants_agentscope(workflow)
    asyncio.run(warm_up(agentscope))
    return UserCode(workflow, judge, agentscope)


def _digest(judge: entrypoints.UserFunction | None) -> str:
    """Identity of the judge's code: 16 hex digits of the SHA-256 of its module's source."""
    if judge is None:
        return ""
    module = inspect.getmodule(judge)
    try:
        source = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        source = ""
    return hashlib.sha256(f"{judge.__qualname__}\n{source}".encode()).hexdigest()[:16]


def _serve_pool(control: socket.socket, code: UserCode) -> int:
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _CONTROL_BYTES, 1)
        if not message:
            for child in children:
                _end(child)
            return 0
        order = json.loads(message)
        if order["order"] == "fork":
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                control.close()
                _serve_episodes(socket.socket(fileno=descriptors[0]), code)
            os.close(descriptors[0])
            _own_group(child)
            children.add(child)
            _send(control, {"pid": child})
        else:
            known = order["pid"] in children
            children.discard(order["pid"])
            # A worker of an earlier template is not ours to reap; it ends when its connection closes.
            _send(control, {"status": _end(order["pid"]) if known else int(signal.SIGKILL)})


def _own_group(child: int) -> None:
    # Both sides do it, so that the group exists before either goes on; the later one finds it done.
    with contextlib.suppress(OSError):
        os.setpgid(child, child)


def _end(child: int) -> int:
    """Kill a worker with all that it started, and give its wait status."""
    ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return status if ended else os.waitpid(child, 0)[1]


def _send(target: socket.socket, document: Mapping[str, Any]) -> None:
    target.send(json.dumps(document).encode())


def _serve_episodes(connection: socket.socket, code: UserCode) -> None:
    """The worker's life: one order at a time until the trainer hangs up. Never returns."""
    _own_group(0)
    os.set_inheritable(connection.fileno(), False)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # A thread of its own notices a dead trainer even while user code blocks the main one.
    threading.Thread(target=_read_orders, args=(connection, orders), daemon=True).start()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    worker = _Worker(code)
    while True:
        order = orders.get()
        try:
            reply = loop.run_until_complete(worker.carry_out(order))
        except BaseException as error:  # sys.exit() in user code leaves the loop like this
            reply = {"status": "raised", "error": describe(error)}
        connection.sendall(json.dumps(reply).encode() + b"\n")


def _read_orders(connection: socket.socket, orders: "queue.SimpleQueue[dict[str, Any]]") -> None:
    with connection.makefile("rb") as lines, contextlib.suppress(OSError):
        for line in lines:
            orders.put(json.loads(line))
    os.killpg(0, signal.SIGKILL)


class _Worker:
    """Carries out `workflow` and `judge`, and keeps the response between the two: it need not be serialisable."""

    def __init__(self, code: UserCode) -> None:
        self._code = code
        self._response: Any = None

    async def carry_out(self, order: Mapping[str, Any]) -> dict[str, Any]:
        before = asyncio.all_tasks()
        try:
            if order["order"] == "workflow":
                return await self._workflow(order)
            return await self._judge(order)
        finally:
            await _cancel(asyncio.all_tasks() - before)

    async def _workflow(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self._response = None
        _seed(order["seed"])
        address = ModelAddress(order["baseUrl"], order["key"], order["modelName"])
        model, close = open_model(address, self._code.agentscope)
        try:
            reply, output = await _call(self._code.workflow, order, task=order["task"], model=model)
        finally:
            with contextlib.suppress(Exception):
                await close()
        if output is None:
            return reply
        self._response = getattr(output, "response", None)
        return reply | {"hasResponse": self._response is not None, "response": _printed(self._response)}

    async def _judge(self, order: Mapping[str, Any]) -> dict[str, Any]:
        judge = self._code.judge
        assert judge is not None  # noqa: S101 - tells the type checker
        response = order.get("response", self._response)
        self._response = None
        reply, _ = await _call(judge, order, task=order["task"], response=response)
        return reply


async def _call(function: Callable[..., Any], order: Mapping[str, Any], **arguments: Any) -> tuple[dict[str, Any], Any]:
    """The reply so far, and the output if there is one."""
    extras = {"auxiliary_models": {}, "logger": _LOG}
    arguments |= {name: extras[name] for name in entrypoints.accepted_options(function)}
    try:
        async with asyncio.timeout(order["seconds"]) as limit:
            output = await function(**arguments)
        figures = {"status": "returned"} | _figures(function, output)
    except BaseException as error:
        if limit.expired() and isinstance(error, TimeoutError):
            return {"status": "timeout"}, None
        return {"status": "raised", "error": describe(error)}, None
    return figures | ({"status": "timeout"} if limit.expired() else {}), output


def _figures(function: Callable[..., Any], output: Any) -> dict[str, Any]:
    """Reward and metrics of an output; TypeError says what the function must return instead."""
    name = function.__qualname__
    if not hasattr(output, "reward"):
        kind = type(output).__name__
        raise TypeError(f"{name} must return a WorkflowOutput or JudgeOutput (with `reward`), not {kind}")
    metrics = {}
    for key, value in (getattr(output, "metrics", None) or {}).items():
        number = _number(f"metric {key!r} of {name}", value)
        if math.isfinite(number):
            metrics[str(key)] = number
    reward = None if output.reward is None else _number(f"the reward of {name}", output.reward)
    # JSON has no NaN; the runner refuses what is not finite.
    finite = reward is None or math.isfinite(reward)
    return {"reward": reward if finite else str(reward), "metrics": metrics}


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a number, not {value!r}") from error


def _printed(response: Any) -> str:
    """The response for people; AgentScope's messages print their text."""
    try:
        text = response.get_text_content() if hasattr(response, "get_text_content") else None
        return str(response if text is None else text)[:_TEXT]
    except Exception:
        return f"<{type(response).__name__}>"


def _seed(seed: int) -> None:
    """Make the user's own chance depend on the episode, not on which worker runs it."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """End what user code left running, so that it cannot reach into the next episode."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1.0)


if __name__ == "__main__":
    main()
