"""From metric records to Prometheus series: names, labels, values.

`/metrics` and remote-write both get their series here, so that a step has the same names and labels either
way. Labels are `namespace` and `run`; the attempt is only in tuningrun_info, since a series must go on when a
run is retried. With remote-write configured `/metrics` still serves everything: scrape it for debugging only,
or one run has two sets of series (the receiver's and the scrape's with `instance` and `job`).
"""

import math
from dataclasses import dataclass

from tuning_contract.metrics import (
    EVALUATION,
    EVALUATION_METRICS,
    JUDGE_PREFIX,
    TRAINER,
    TRAINER_METRICS,
    MetricRecord,
)
from tuning_contract.run_document import RunDocument

JUDGE_NAMES = 20
"""Distinct metrics of workflow and judge that become series; a fuse against names that hold data."""

STEP = ("tuningrun_step", "Finished task batches; the rollouts of step n used the policy of step n-1")
TARGET_STEPS = ("tuningrun_target_steps", "Planned task batches of the whole run")
LAST_STEP = ("tuningrun_last_step_timestamp_seconds", "When the last step ended")
INFO = ("tuningrun_info", "Identity of a run; join with * on (namespace, run) group_left (model)")
EVAL_STEP = ("tuningrun_eval_step", "Finished task batches at the last evaluation")
JUDGE = ("tuningrun_judge_metric_mean", "Mean of a metric that workflow or judge returned in training")
EVAL_JUDGE = ("tuningrun_eval_judge_metric_mean", "Mean of a metric that workflow or judge returned in an evaluation")


@dataclass(frozen=True)
class Sample:
    """One value of one series, without its time."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    help: str
    counter: bool = False


class SeriesMapper:
    """Maps the records of one run; one for each reader, since it remembers the names it let through."""

    def __init__(self, run: RunDocument, attempt: int) -> None:
        self.attempt = attempt
        self._common = (("namespace", run.run.namespace), ("run", run.run.name))
        self._identity = (
            ("uid", run.run.uid),
            ("model", run.model.hub.repo if run.model.hub else run.model.path),
            ("algorithm", run.algorithm.type),
            ("engine", run.engine.type),
            ("ray_version", run.engine.ray_version),
            ("attempt", str(attempt)),
        )
        self._judge_names: set[str] = set()
        self._refused_names: set[str] = set()

    @property
    def refused_names(self) -> int:
        """Distinct metrics of workflow or judge beyond JUDGE_NAMES; counted up to a thousand."""
        return len(self._refused_names)

    def own(self, name: str, text: str, value: float, counter: bool = False) -> Sample:
        """A series of the run that no record carries."""
        return Sample(name, self._common, value, text, counter)

    def info(self) -> Sample:
        """The identity of the run, always 1."""
        return Sample(INFO[0], self._common + self._identity, 1.0, INFO[1])

    def samples(self, record: MetricRecord) -> tuple[Sample, ...]:
        """All series of one record; none for a role that this version does not know."""
        labels: tuple[tuple[str, str], ...] = self._common
        if record.role == TRAINER:
            known = {metric.name: metric for metric in TRAINER_METRICS}
            judge = JUDGE
            found = [
                self.info(),
                self.own(*STEP, value=record.step),
                self.own(*TARGET_STEPS, value=record.target_steps),
                self.own(*LAST_STEP, value=record.ts),
            ]
        elif record.role == EVALUATION:
            known = {metric.name: metric for metric in EVALUATION_METRICS}
            labels, judge = (*labels, ("dataset", record.dataset)), EVAL_JUDGE
            found = [Sample(EVAL_STEP[0], labels, record.step, EVAL_STEP[1])]
        else:
            return ()
        for name, value in record.values.items():
            if not math.isfinite(value):
                continue
            if name in known:
                metric = known[name]
                found.append(Sample(metric.series, labels, value, metric.help, metric.counter))
            elif name.startswith(JUDGE_PREFIX) and self._admit(name):
                label = ("metric", name.removeprefix(JUDGE_PREFIX))
                found.append(Sample(judge[0], (*labels, label), value, judge[1]))
        return tuple(found)

    def _admit(self, name: str) -> bool:
        if name in self._judge_names:
            return True
        if len(self._judge_names) < JUDGE_NAMES:
            self._judge_names.add(name)
            return True
        if len(self._refused_names) < 1000:
            self._refused_names.add(name)
        return False
