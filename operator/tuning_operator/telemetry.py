"""The operator's own log, metrics and health.

`__main__` makes one `Telemetry`, which counts for client and reconciler and serves /metrics and /healthz. Figures of
runs are read from the local copies when they are asked for, so a run's series end with its object.
"""

import asyncio
import logging
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tuning_operator.api.conditions import Phase
from tuning_operator.cluster.observe import Caches
from tuning_operator.cluster.queue import WorkQueue
from tuning_operator.engine.times import from_text

STALE_SECONDS = 180.0
"""A watch that heard nothing for longer, bookmarks included, has lost the server."""
LAG_SECONDS = 5.0
_TICK = 0.5
_LABELS = ("namespace", "run")
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Telemetry:
    """Counters of this process, and the little server that shows them."""

    def __init__(self) -> None:
        """Count from zero."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = CounterMetric(
            "tuning_operator_api_requests",
            "Requests to the API server; code 0 when there was no answer",
            ("verb", "resource", "code"),
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "tuning_operator_api_request_duration_seconds",
            "Time until the answer of the API server was read; of a watch, until it was open",
            ("verb",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._passes = CounterMetric(
            "tuning_operator_reconciles", "Looks at a run, by outcome", ("outcome",), registry=self.registry
        )
        self._pass_seconds = Histogram(
            "tuning_operator_reconcile_duration_seconds",
            "Time of one look at a run, requests included",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._lags: deque[float] = deque(maxlen=60)
        self._caches: Caches | None = None

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Count one request to the API server."""
        self._requests.labels(verb, resource, str(code)).inc()
        self._request_seconds.labels(verb).observe(seconds)

    def passed(self, outcome: str, seconds: float) -> None:
        """Count one pass of the reconciler."""
        self._passes.labels(outcome).inc()
        self._pass_seconds.observe(seconds)

    def show(self, caches: Caches, queue: WorkQueue, leads: Callable[[], bool]) -> None:
        """Show figures of these, too.

        Args:
            caches: The local copies.
            queue: What waits.
            leads: Whether this process acts now. Only then it tells of runs: of two processes, each run has one series.
        """
        self._caches = caches
        self.registry.register(_Figures(self, caches, queue, leads))

    @property
    def lag(self) -> float:
        """Longest time in the last half minute for which the event loop was late, in seconds."""
        return max(self._lags, default=0.0)

    def complaint(self) -> str:
        """What is wrong with this process; empty when it is well."""
        if self._caches is None:
            return "not connected yet"
        if self.lag > LAG_SECONDS:
            return f"the event loop is {self.lag:.1f} s late"
        for informer in self._caches.all():
            if not informer.synced.is_set():
                return f"{informer.kind} is not read yet"
            if informer.silence > STALE_SECONDS:
                return f"nothing was heard of {informer.kind} for {informer.silence:.0f} s"
        return ""

    async def serve(self, port: int) -> None:
        """Serve /metrics and /healthz for ever."""
        application = web.Application()
        application.add_routes([web.get("/metrics", self._metrics), web.get("/healthz", self._health)])
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=port).start()
            logging.getLogger(__name__).info("serving /metrics and /healthz on port %d", runner.addresses[0][1])
            await self._measure_lag()
        finally:
            await runner.cleanup()

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            planned = loop.time() + _TICK
            await asyncio.sleep(_TICK)
            self._lags.append(loop.time() - planned)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, request: web.Request) -> web.Response:
        complaint = self.complaint()
        return web.Response(text=complaint or "ok", status=503 if complaint else 200)


class _Figures(Collector):
    """Series that are read when they are asked for."""

    def __init__(self, telemetry: Telemetry, caches: Caches, queue: WorkQueue, leads: Callable[[], bool]) -> None:
        self._telemetry = telemetry
        self._caches = caches
        self._queue = queue
        self._leads = leads

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All series of now."""
        leads = self._leads()
        yield _gauge("tuning_operator_leader", "1 while this process acts, 0 while it stands by", float(leads))
        yield _gauge("tuning_operator_queue_depth", "Runs that wait for a look", len(self._queue))
        yield _gauge("tuning_operator_deadlines", "Runs that will be looked at at a set time", self._queue.deadlines)
        yield _gauge("tuning_operator_loop_lag_seconds", "Longest delay of the event loop of late", self._telemetry.lag)
        objects = GaugeMetricFamily("tuning_operator_objects", "Objects in the local copy", labels=("kind",))
        silence = GaugeMetricFamily(
            "tuning_operator_watch_silence_seconds", "Time since the server was last heard", labels=("kind",)
        )
        for informer in self._caches.all():
            objects.add_metric((informer.kind,), len(informer))
            silence.add_metric((informer.kind,), informer.silence)
        yield from (objects, silence, *(_runs(self._caches) if leads else ()))


def _runs(caches: Caches) -> tuple[Metric, ...]:
    phases = GaugeMetricFamily(
        "tuningrun_status_phase", "1 for the phase in which the run is", labels=(*_LABELS, "phase")
    )
    numbers = {
        "attempt": _family("tuningrun_status_attempt", "Number of the present attempt"),
        "countedFailures": _family(
            "tuningrun_status_counted_failures", "Failures since the last new checkpoint that count for maxAttempts"
        ),
        "step": _family("tuningrun_status_step", "Finished steps, as the status says"),
        "targetSteps": _family("tuningrun_status_target_steps", "Steps of the whole run; absent while unknown"),
        "reward": _family("tuningrun_status_reward_mean", "Mean reward of the last step, as the status says"),
        "gpuSeconds": _family("tuningrun_status_gpu_seconds", "Seconds times GPUs of the run's pods"),
        "podSeconds": _family("tuningrun_status_pod_seconds", "Seconds of the run's pods"),
        "activeSeconds": _family("tuningrun_status_active_seconds", "Seconds in which ended attempts were running"),
        "startTime": _family("tuningrun_status_start_timestamp_seconds", "When the present attempt began"),
    }
    ended = GaugeMetricFamily(
        "tuningrun_status_ended_attempts",
        "Attempts that ended before the present one, of the last ten, by how and why",
        labels=(*_LABELS, "outcome", "cause"),
    )
    totals = dict.fromkeys(Phase, 0)
    for view in caches.runs.views():
        place = (view.namespace, view.name)
        # A run without a phase has just come.
        totals[Phase(view.phase or Phase.PENDING)] += 1
        for phase in Phase:
            phases.add_metric((*place, phase), 1.0 if view.phase == phase else 0.0)
        status = view.parsed()["status"]
        for name, value in _numbers(status):
            numbers[name].add_metric(place, value)
        kinds = Counter((item["outcome"], item.get("cause") or "") for item in status.get("history") or ())
        for kind, count in kinds.items():
            ended.add_metric((*place, *kind), count)
    sums = GaugeMetricFamily("tuning_operator_runs", "Runs by phase", labels=("phase",))
    for phase, count in totals.items():
        sums.add_metric((phase,), count)
    return (sums, phases, ended, *numbers.values())


def _numbers(status: dict[str, Any]) -> Iterator[tuple[str, float]]:
    attempt, progress, usage = (status.get(part) or {} for part in ("attempt", "progress", "usage"))
    found = {"attempt": attempt.get("number"), "step": progress.get("step"), "targetSteps": progress.get("targetSteps")}
    found |= {name: usage.get(name) for name in ("gpuSeconds", "podSeconds", "activeSeconds")}
    found |= {"countedFailures": attempt.get("countedFailures")}
    yield from ((name, float(value)) for name, value in found.items() if value is not None)
    started = from_text(attempt.get("startTime"))
    if started is not None:
        yield "startTime", started.timestamp()
    try:
        yield "reward", float(progress.get("reward", ""))
    except ValueError:
        return


def _family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_LABELS)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Render time, level, logger, message and, if any, the trace."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(line).decode()


def configure_logging(level: str, style: str) -> None:
    """Log to standard error, plain or as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if style == "json" else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # kopf tells every step of its own start.
    logging.getLogger("kopf").setLevel(max(root.level, logging.WARNING))
