"""kopf as the chassis: start, credentials, signals, stop. It watches nothing and handles no object.

`__main__` registers these. The core is one task that is started here with the credentials that kopf's login finds;
`uninstall` logs in the same way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from tuning_operator.cluster.credentials import SERVICE_ACCOUNT_TOKEN, Credentials

Core = Callable[[Credentials], Awaitable[None]]

log = logging.getLogger(__name__)


class Chassis:
    """kopf's registry and settings, and the task of the core."""

    def __init__(self, core: Core) -> None:
        """Register the handlers.

        Args:
            core: Runs until it is cancelled; its end is the end of the process.
        """
        self.registry = kopf.OperatorRegistry()
        self.settings = kopf.OperatorSettings()
        self.stop = asyncio.Event()
        self.failure: BaseException | None = None
        self._core = core
        self._task: asyncio.Task[None] | None = None
        # kopf shall neither look for resources, nor ask its peers, nor write Events.
        self.settings.scanning.disabled = True
        self.settings.peering.standalone = True
        self.settings.posting.enabled = False
        kopf.on.startup(registry=self.registry)(self._start)
        kopf.on.login(registry=self.registry)(self._login)
        kopf.on.cleanup(registry=self.registry)(self._clean_up)

    async def run(self, namespace: str) -> None:
        """Run until a signal or the end of the core."""
        await kopf.operator(
            registry=self.registry,
            settings=self.settings,
            clusterwide=not namespace,
            namespaces=[namespace] if namespace else [],
            standalone=True,
            # kopf would ask the system for its user's name, and the user of a pod has none.
            identity="agent-tuning-operator",
            stop_flag=self.stop,
        )
        if self.failure is not None:
            raise self.failure

    async def _start(self, **_: Any) -> None:
        self._task = asyncio.create_task(self._run_core())
        self._task.add_done_callback(self._ended)

    async def _run_core(self) -> None:
        await self._core(Credentials(*connection(self.settings)))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failure = task.exception() or RuntimeError("the core has ended by itself")
            log.error("the operator's core has ended", exc_info=self.failure)
        self.stop.set()

    async def _login(self, **_: Any) -> kopf.ConnectionInfo:
        return connection(self.settings)[0]

    async def _clean_up(self, **_: Any) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def connection(settings: kopf.OperatorSettings) -> tuple[Any, Any]:
    """The connection and, of a pod's own account, the file in which its token is renewed."""
    found = kopf.login_with_service_account(settings=settings, logger=log)
    if found is not None:
        return found, SERVICE_ACCOUNT_TOKEN
    found = kopf.login_with_kubeconfig(settings=settings, logger=log)
    if found is None:
        raise kopf.LoginError("neither in a cluster nor a kubeconfig: set KUBECONFIG")
    return found, None
