"""What `EpisodeRunner` needs of the workers, wherever they run: a pool that leases them, and a lease.

`workers.WorkerPool` implements it with processes beside the trainer, `tuning_runner.ray_workers` with such processes on
the worker nodes of a Ray cluster.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class WorkerDied(Exception):  # noqa: N818 - an event, told by the operating system or by Ray
    """The process, or the node that it ran on, ended by itself; the text says how."""


class WorkerStuck(Exception):  # noqa: N818 - an event, told by the clock
    """The process did not answer until deadline and grace had passed, and was killed."""


class Lease(Protocol):
    """One episode's hold on a worker; a killed worker is replaced at the next order."""

    async def workflow(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Run the workflow: `{status: returned | raised | timeout, ...}` (see `worker_process`).

        Raises:
            WorkerDied, WorkerStuck: there is no answer.
            RunError: the run cannot go on, whatever is tried again.
        """
        ...

    async def judge(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Run the judge on `order.response` if it is there, else on what this lease's workflow returned.

        Raises as `workflow`.
        """
        ...


class Pool(Protocol):
    """Start it (which checks the user's entry points), lease workers, stop it; all in one event loop."""

    @property
    def has_judge(self) -> bool:
        """Whether the run has a judge."""
        ...

    @property
    def judge_digest(self) -> str:
        """Identity of the judge's code, once started; empty without a judge."""
        ...

    async def start(self) -> None:
        """Load the user's code.

        Raises:
            EntrypointError: a function is not there or has the wrong form.
            UserCodeError: a module raises, hangs or ends the process when it is imported.
        """
        ...

    async def stop(self) -> None:
        """Kill all workers; it also ends a `start` that is under way."""
        ...

    def lease(self) -> AbstractAsyncContextManager[Lease]:
        """Wait for a free place. A lease that is left by an exception, cancellation included, kills its worker.

        RunError when there will be no worker.
        """
        ...
