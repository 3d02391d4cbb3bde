"""Which records of metrics.jsonl count, for one reader of the file, over all attempts of a run.

State and remote-writer have one each. A resumed attempt does the steps after its checkpoint again, and a runner on a
node that nobody reaches may write on for a while after its attempt was given up: neither may make a counter go back, or
count what is void.
"""

from dataclasses import replace

from tuning_contract.metrics import TRAINER, TRAINER_METRICS, MetricRecord

_COUNTERS = frozenset(metric.name for metric in TRAINER_METRICS if metric.counter)


class Lineage:
    """Fed with every record in the file's order.

    Args:
        own: number of the attempt that this sidecar belongs to.
    """

    def __init__(self, own: int) -> None:
        self._own = own
        self._newest = 0
        self._highest: dict[str, float] = {}
        self.superseded = False
        """Whether a later attempt writes already: this sidecar is one that should be gone."""

    def admits(self, record: MetricRecord) -> bool:
        """Note a record; False when it is of an attempt that another one had followed, or of one after our own."""
        if record.attempt > self._own:
            self.superseded = True
            return False
        if record.attempt < self._newest:
            return False
        self._newest = record.attempt
        if record.role == TRAINER:
            for name in _COUNTERS & record.values.keys():
                self._highest[name] = max(record.values[name], self._highest.get(name, 0.0))
        return True

    def held(self, record: MetricRecord) -> MetricRecord:
        """The record with each counter at the highest value so far: steps that are done again are not counted again."""
        if record.role != TRAINER:
            return record
        return replace(record, values={name: self._highest.get(name, value) for name, value in record.values.items()})
