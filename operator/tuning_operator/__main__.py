"""The operator's process: `python -m tuning_operator`. The only place where things are put together."""

import asyncio
import functools
import gc
import logging
import os
import platform
import sys
import uuid
from datetime import UTC, datetime

import uvloop

from tuning_operator.api import meta
from tuning_operator.api.conditions import Phase
from tuning_operator.cluster import lease, projections
from tuning_operator.cluster.announcer import Announcer
from tuning_operator.cluster.client import ApiClient, Selection
from tuning_operator.cluster.credentials import Credentials
from tuning_operator.cluster.execute import Executor, Hands
from tuning_operator.cluster.informer import Informer, Subject
from tuning_operator.cluster.kuberay import KubeRay
from tuning_operator.cluster.lease import Election
from tuning_operator.cluster.memory import Memory
from tuning_operator.cluster.observe import Caches, Observer
from tuning_operator.cluster.progress import ProgressPoller
from tuning_operator.cluster.queue import WorkQueue
from tuning_operator.cluster.resources import CLAIMS, JOBS, PODS, RAY_CLUSTERS, TUNING_RUNS
from tuning_operator.cluster.sidecar import SidecarClient
from tuning_operator.engine.world import Child, PodView
from tuning_operator.errors import SettingsError
from tuning_operator.handlers import Chassis
from tuning_operator.reconcile import Reconciler
from tuning_operator.settings import Settings
from tuning_operator.telemetry import Telemetry, configure_logging

WORKERS = 24
"""Runs that are worked on at a time: below the client's connections, of which the watches take five."""

log = logging.getLogger("tuning_operator")


def main() -> int:
    """Run until a signal; returns the exit code."""
    try:
        settings = Settings.from_mapping(os.environ)
    except SettingsError as error:
        print(f"tuning_operator: {error}", file=sys.stderr)
        return 2
    configure_logging(settings.log_level, settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings))
    return 0


async def _run(settings: Settings) -> None:
    telemetry = Telemetry()
    await Chassis(functools.partial(_core, settings, telemetry)).run(settings.watch_namespace)


async def _core(settings: Settings, telemetry: Telemetry, credentials: Credentials) -> None:
    """Put the core together and run it until it is cancelled."""
    async with ApiClient(credentials, telemetry, lease.REQUEST_SECONDS) as signs, SidecarClient() as sidecars:
        identity = f"{_instance()}_{uuid.uuid4()}"
        # Its end comes after that of all that writes.
        async with (
            Election(signs, settings.lease_namespace, settings.lease_name, identity) as election,
            ApiClient(credentials, telemetry, may_write=election.confirm) as client,
        ):
            await _operate(settings, telemetry, client, sidecars, election)


async def _operate(
    settings: Settings, telemetry: Telemetry, client: ApiClient, sidecars: SidecarClient, election: Election
) -> None:
    """Keep the copies, and act on them while this process leads."""
    queue, memory = WorkQueue(), Memory()
    caches = _caches(client, queue, memory, settings.watch_namespace)
    telemetry.show(caches, queue, lambda: election.leads)
    announcer = Announcer(client, _instance())
    executor = Executor(Hands(client, caches, memory, sidecars, announcer, _now), settings)
    kuberay = KubeRay(client, caches.clusters, functools.partial(_try_rejected_again, caches, queue, memory))
    observer = Observer(caches, memory, kuberay, settings)
    reconciler = Reconciler(queue, observer, executor, memory, telemetry, settings, _now)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(telemetry.serve(settings.http_port))
        await _lead(caches, kuberay, queue, election, tasks)
        tasks.create_task(announcer.run())
        tasks.create_task(ProgressPoller(caches, memory, queue, sidecars, _now).run())
        for _ in range(WORKERS):
            tasks.create_task(reconciler.work())


async def _lead(
    caches: Caches, kuberay: KubeRay, queue: WorkQueue, election: Election, tasks: asyncio.TaskGroup
) -> None:
    """Start the watches, and wait until this process leads and its copies are younger than that."""
    leads = await election.attempt()
    if leads:
        tasks.create_task(election.keep())
    watches = await _synced(caches, kuberay, tasks)
    if leads:
        return
    standing_by = tasks.create_task(_let_pass(queue))
    await election.win()
    tasks.create_task(election.keep())
    # A watch may be late, and a RayCluster whose making was not heard of yet would count as lost.
    for watch in watches:
        watch.cancel()
    await asyncio.wait(watches)
    for informer in caches.all():
        informer.start_over()
        tasks.create_task(informer.run())
    for informer in caches.all():
        await informer.synced.wait()
    standing_by.cancel()
    for view in caches.runs.views():
        queue.add(view.uid)


async def _let_pass(queue: WorkQueue) -> None:
    """Do nothing about what changes, for ever: another process does."""
    while True:
        key, _ = await queue.get()
        queue.forget(key)
        queue.done(key)


async def _synced(caches: Caches, kuberay: KubeRay, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
    """Start the watches and wait until every copy is complete: nothing is decided on half a world."""
    gc.disable()
    watches = [tasks.create_task(informer.run()) for informer in caches.all()]
    for informer in caches.all():
        await informer.synced.wait()
    tasks.create_task(kuberay.run())
    await kuberay.looked.wait()
    gc.enable()
    # What was read at the start lives long: it need not be looked through again and again.
    gc.collect()
    gc.freeze()
    log.info("ready: %s", ", ".join(f"{len(informer)} {informer.kind}" for informer in caches.all()))
    return watches


def _caches(client: ApiClient, queue: WorkQueue, memory: Memory, namespace: str) -> Caches:
    def departed(uid: str, pod: PodView) -> None:
        known = memory.peek(uid)
        # Few are kept, so a stranger's pods must not push out those that count.
        if known is not None and informers.controls(uid, pod):
            known.note_departure(pod)

    ours = functools.partial(Selection, namespace=namespace, labels=meta.RUN_UID_LABEL)
    label, wake = projections.label_of_run, queue.add
    runs = Subject(Selection(TUNING_RUNS, namespace), projections.run, _uid, wake)
    claims = Subject(Selection(CLAIMS, namespace), projections.claim, label, wake)
    informers = Caches(
        runs=Informer(client, runs),
        clusters=Informer(client, Subject(ours(RAY_CLUSTERS), projections.cluster, label, wake)),
        jobs=Informer(client, Subject(ours(JOBS), projections.job, label, wake)),
        pods=Informer(client, Subject(ours(PODS), projections.pod, label, wake, departed)),
        claims=Informer(client, claims),
    )
    return informers


def _try_rejected_again(caches: Caches, queue: WorkQueue, memory: Memory) -> None:
    """Let every run that waits be looked at again: another KubeRay may take the RayCluster that this one refused."""
    for view in caches.runs.views():
        if view.phase == Phase.REJECTED:
            known = memory.peek(view.uid)
            if known is not None:
                known.refusals.pop(Child.CLUSTER, None)
            queue.add(view.uid)


def _uid(raw: projections.Raw) -> str:
    uid: str = raw["metadata"]["uid"]
    return uid


def _instance() -> str:
    return platform.node() or "operator"


def _now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    sys.exit(main())
