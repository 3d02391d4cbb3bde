"""The text of `/metrics`: the newest step, and the sidecar's own figures.

The server calls `render`. A custom collector builds all families anew for each scrape, so that a series ends
when the runner stops writing its value.
"""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from tuning_sidecar.remote_write import Statistics
from tuning_sidecar.series import Sample, SeriesMapper
from tuning_sidecar.state import RunState
from tuning_sidecar.watcher import Watcher

CONTENT_TYPE = CONTENT_TYPE_LATEST


class RunCollector(Collector):
    """Families of one run. `statistics` is None when nothing is pushed."""

    def __init__(
        self, state: RunState, watcher: Watcher, mapper: SeriesMapper, statistics: Statistics | None = None
    ) -> None:
        self._state, self._watcher, self._mapper, self._statistics = state, watcher, mapper, statistics

    def collect(self) -> Iterable[Metric]:
        """Called by the registry once a scrape."""
        families: dict[str, Metric] = {}
        for sample in (*self._run(), *self._own()):
            names = [name for name, _ in sample.labels]
            if sample.name not in families:
                kind = CounterMetricFamily if sample.counter else GaugeMetricFamily
                families[sample.name] = kind(sample.name, sample.help, labels=names)
            families[sample.name].add_sample(sample.name, dict(sample.labels), sample.value)
        return families.values()

    def _run(self) -> Iterable[Sample]:
        snapshot = self._state.snapshot()
        if snapshot.trainer is None:
            yield self._mapper.info()
        for record in (*((snapshot.trainer,) if snapshot.trainer else ()), *snapshot.evaluations):
            yield from self._mapper.samples(record)
        if saved := snapshot.checkpoint:
            yield self._mapper.own(
                "tuningrun_last_checkpoint_step", "Step of the newest complete checkpoint", saved.step
            )
            yield self._mapper.own(
                "tuningrun_last_checkpoint_timestamp_seconds",
                "When the newest complete checkpoint was saved",
                saved.saved_at,
            )

    def _own(self) -> Iterable[Sample]:
        own = self._mapper.own
        newest = self._state.progress().updated_at
        if newest:
            yield own("tuningrun_sidecar_lag_seconds", "Age of the newest record", max(0.0, time.time() - newest))
        yield own(
            "tuningrun_sidecar_read_errors_total",
            "Failures to read the volume, and lines that are no records",
            self._watcher.errors,
            counter=True,
        )
        yield own(
            "tuningrun_sidecar_refused_metric_names",
            "Distinct metrics of workflow or judge that are no series, since there are too many",
            self._mapper.refused_names,
        )
        if self._statistics is None:
            return
        name = "tuningrun_sidecar_remote_write_samples_total"
        text = "Samples by outcome: ok, rejected by the receiver, dropped after all tries"
        for outcome, count in self._statistics.samples.items():
            base = own(name, text, count, counter=True)
            yield Sample(name, (*base.labels, ("outcome", outcome)), count, text, counter=True)
        yield own(
            "tuningrun_sidecar_remote_write_last_success_timestamp_seconds",
            "When the receiver last accepted samples; 0 before the first time",
            self._statistics.last_success,
        )


def render(collector: RunCollector) -> bytes:
    """The exposition in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
