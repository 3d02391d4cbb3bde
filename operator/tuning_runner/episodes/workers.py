"""The pool of worker processes in which user code runs, on the machine of whoever holds the pool.

That is the trainer, or `node.EpisodeNode` on a worker node. `EpisodeRunner` leases a worker for each try; a worker that
dies or outlives its deadline is killed with all that it started, and replaced. Nothing that user code does blocks the
event loop here. What runs inside the processes is `worker_process`.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuning_contract.run_document import WorkflowSettings
from tuning_runner.episodes.errors import EntrypointError, UserCodeError
from tuning_runner.episodes.pool import WorkerDied, WorkerStuck
from tuning_runner.episodes.text import writable_document

_CONTROL_BYTES = 65536
_LINE_LIMIT = 64 << 20


@dataclass(frozen=True)
class WorkerSettings:
    """What the workers run."""

    workflow: WorkflowSettings
    size: int
    """Workers at a time, one episode each; made as they are needed. The template's memory is shared, so one more
    worker costs 7 MB, or 23 MB with AgentScope (measured), until user code allocates. The pool bounds the policy's
    batch: give it the rollout's concurrency."""
    grace_seconds: float = 5.0
    """Between an episode's deadline, which asynchronous code notices itself, and the kill."""
    start_seconds: float = 300.0
    """For importing the user's modules."""
    gateway_host: str = "127.0.0.1"
    """Address of the gateway, which no client of user code may look for behind a proxy."""
    search_path: tuple[str, ...] | None = None
    """Where modules are looked for; None: where this process looks."""


def _environment(gateway_host: str, paths: Sequence[str]) -> dict[str, str]:
    """The variables of user code: those of this process, with our modules and a direct way to the gateway."""
    found = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    # A client reads one of the two only: what one of them says must not get lost by setting the other.
    given = found.get("no_proxy") or found.get("NO_PROXY") or ""
    for name in ("no_proxy", "NO_PROXY"):
        hosts = found.get(name) or given
        # A star means all hosts, and clients understand it when it stands alone.
        found[name] = hosts if hosts.strip() == "*" else ",".join(filter(None, [hosts, gateway_host]))
    return found


class _Template:
    """The process that loaded the user's code; it forks workers and reaps them."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._lock = asyncio.Lock()
        self._loaded = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        paths = sys.path if settings.search_path is None else settings.search_path
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "tuning_runner.episodes.worker_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=_environment(settings.gateway_host, [path or os.getcwd() for path in paths]),
                stdin=subprocess.DEVNULL,
            )

    async def load(self) -> str:
        """Load the user's code and give the judge's digest."""
        workflow = self._settings.workflow
        self._control.settimeout(self._settings.start_seconds)
        try:
            reply = await self._ask({"workflow": workflow.entrypoint, "judge": workflow.judge})
        except TimeoutError:
            text = f"importing {workflow.entrypoint} took longer than {self._settings.start_seconds:g} seconds"
            raise UserCodeError(text) from None
        except OSError:
            code = await asyncio.to_thread(self._process.wait)
            raise UserCodeError(f"importing {workflow.entrypoint} ended the process ({_ending(code)})") from None
        if "problem" in reply:
            raise EntrypointError(reply["problem"])
        if "raised" in reply:
            raise UserCodeError(f"importing {workflow.entrypoint} failed:\n{reply['raised']}")
        self._control.settimeout(60.0)
        self._loaded = True
        return str(reply["judgeDigest"])

    async def fork(self) -> tuple[int, socket.socket]:
        """A new worker: its process id and our end of its connection."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                reply = await self._ask({"order": "fork"}, theirs)
        except BaseException:
            ours.close()
            raise
        return int(reply["pid"]), ours

    async def end(self, pid: int) -> int:
        """Kill a worker if it lives, reap it, and give its exit code as subprocess has it."""
        return os.waitstatus_to_exitcode(int((await self._ask({"order": "end", "pid": pid}))["status"]))

    async def _ask(self, order: Mapping[str, Any], sent: socket.socket | None = None) -> dict[str, Any]:
        async with self._lock:
            # Shielded, so that a cancelled caller does not leave an answer to the next one.
            work = asyncio.ensure_future(asyncio.to_thread(self._exchange, json.dumps(order).encode(), sent))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                raise

    def _exchange(self, message: bytes, sent: socket.socket | None) -> dict[str, Any]:
        try:
            if sent is None:
                self._control.send(message)
            else:
                socket.send_fds(self._control, [message], [sent.fileno()])
            answer = self._control.recv(_CONTROL_BYTES)
        except TimeoutError:
            # Its late answer would be taken for that to the next order.
            self._process.kill()
            raise
        if not answer:
            raise ConnectionResetError("the worker template has ended")
        return dict(writable_document(json.loads(answer)))

    async def stop(self) -> None:
        """Close the connection: the template ends its workers and itself."""
        if not self._loaded:
            self._process.kill()  # it may hang in the user's module
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # ends an exchange that waits in another thread
        async with self._lock:
            self._control.close()
        try:
            await asyncio.to_thread(self._process.wait, 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)


class _Worker:
    """One forked process."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, pid: int, connection: socket.socket) -> "_Worker":
        reader, writer = await asyncio.open_connection(sock=connection, limit=_LINE_LIMIT)
        return cls(pid, reader, writer)

    async def ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """TimeoutError after `seconds`, EOFError when the process is gone."""
        async with asyncio.timeout(seconds):
            try:
                self._writer.write(json.dumps(order, default=str).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
            except ConnectionError as error:
                raise EOFError from error
        if not line.endswith(b"\n"):
            raise EOFError
        return dict(writable_document(json.loads(line)))

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class WorkerLease:
    """A `pool.Lease` on a worker of this machine."""

    def __init__(self, pool: "WorkerPool") -> None:
        self._pool = pool
        self.worker: _Worker | None = None

    async def workflow(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Run the workflow."""
        return await self._ask({**order, "order": "workflow", "seconds": seconds}, seconds)

    async def judge(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Run the judge on `order.response`, or on what this worker's workflow returned."""
        return await self._ask({**order, "order": "judge", "seconds": seconds}, seconds)

    async def _ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        if self.worker is None:
            self.worker = await self._pool.take()
        try:
            return await self.worker.ask(order, seconds + self._pool.grace_seconds)
        except TimeoutError:
            await self.discard()
            raise WorkerStuck(f"no answer {seconds + self._pool.grace_seconds:g} seconds after the start") from None
        except EOFError:
            raise WorkerDied(f"the worker process ended ({_ending(await self.discard())})") from None

    async def discard(self) -> int:
        """Kill and reap the worker; its exit code."""
        worker, self.worker = self.worker, None
        return 0 if worker is None else await self._pool.end(worker)


class WorkerPool:
    """A `pool.Pool` of processes on this machine."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._free = asyncio.Semaphore(settings.size)
        self._idle: list[_Worker] = []
        self._template: _Template | None = None
        self._restart = asyncio.Lock()
        self.judge_digest = ""
        """Identity of the judge's code, once started; empty without a judge."""

    @property
    def has_judge(self) -> bool:
        """Whether the run has a judge."""
        return self._settings.workflow.judge is not None

    @property
    def grace_seconds(self) -> float:
        """Between an episode's deadline and the kill."""
        return self._settings.grace_seconds

    async def start(self) -> None:
        """Load the user's code in a fresh process.

        Raises:
            EntrypointError: a function is not there or has the wrong form.
            UserCodeError: a module raises, hangs or ends the process when it is imported.
        """
        template = self._template = _Template(self._settings)
        try:
            self.judge_digest = await template.load()
        except BaseException:
            self._template = None
            await template.stop()
            raise

    async def stop(self) -> None:
        """Kill all workers and the template."""
        idle, self._idle = self._idle, []
        for worker in idle:
            await worker.close()
        template, self._template = self._template, None
        if template is not None:
            await template.stop()

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[WorkerLease]:
        """Wait for a free place. A lease that is left by an exception, cancellation included, kills its worker."""
        async with self._free:
            lease = WorkerLease(self)
            try:
                yield lease
            except BaseException:
                await lease.discard()
                raise
            if lease.worker is not None:
                self._idle.append(lease.worker)

    async def take(self) -> _Worker:
        """An idle worker, or a new one."""
        if self._idle:
            return self._idle.pop()
        making = asyncio.ensure_future(self._made())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # It will be there in a moment, and nobody else knows of it.
            await asyncio.wait([making])
            if making.exception() is None:
                await self.end(making.result())
            raise

    async def _made(self) -> _Worker:
        template = self._running()
        try:
            return await _Worker.connect(*await template.fork())
        except (OSError, KeyError):
            # The template is gone, by the kernel's memory killer, say: its workers live on, a new one makes more.
            return await _Worker.connect(*await (await self._replacement(template)).fork())

    async def end(self, worker: _Worker) -> int:
        """Kill and reap a worker; its exit code. A cancelled caller does not stop it."""
        return await asyncio.shield(asyncio.ensure_future(self._end(worker)))

    async def _end(self, worker: _Worker) -> int:
        await worker.close()
        if self._template is None:
            return -signal.SIGKILL
        try:
            return await self._template.end(worker.pid)
        except (OSError, KeyError):
            return -signal.SIGKILL

    def _running(self) -> _Template:
        if self._template is None:
            raise RuntimeError("the worker pool is not started")
        return self._template

    async def _replacement(self, gone: _Template) -> _Template:
        async with self._restart:
            if self._template is gone:
                await gone.stop()
                await self.start()
            return self._running()


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
