"""result.json: how the run ended, in the runner's own words.

Written once, atomically, by the runner at its end. The sidecar serves it, the driver judges by it: a
complete result whose step equals the target is success, whatever an exit code says.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuning_contract.checks import are_figures, is_count, is_number, is_text

SUCCEEDED = "Succeeded"
FAILED = "Failed"
STOPPED = "Stopped"
"""It was asked to stop, and everything that it had finished is saved: another attempt goes on from there."""


@dataclass(frozen=True)
class EvaluationFigures:
    """One evaluation of one set: what is shown in status and README."""

    dataset: str
    step: int
    mean: float
    episodes: int
    unscored: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means of the metrics that workflow and judge returned."""


@dataclass(frozen=True)
class RunResult:
    """The end of a run."""

    run_uid: str
    run_digest: str
    """Digest of run.json: a result of other settings is not this run's result."""
    attempt: int
    outcome: str
    step: int
    target_steps: int
    finished_at: float
    """Seconds since 1970."""
    cause: str = ""
    message: str = ""
    checkpoint: str = ""
    """Newest complete checkpoint, relative to the volume's root."""
    checkpoint_step: int = 0
    final_model: str = ""
    """Folder of the tuned model, relative to the volume's root."""
    evaluation: tuple[EvaluationFigures, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether this result by itself proves success."""
        return self.outcome == SUCCEEDED and self.step == self.target_steps > 0 and bool(self.final_model)

    @property
    def summary(self) -> str:
        """In words: how far a success came and what it lacks, or why it is none."""
        if not self.complete:
            return self.message or f"{self.step} of {self.target_steps} steps are done"
        done = f"all {self.target_steps} steps are done"
        return f"{done}; {self.message}" if self.message else done

    def to_text(self) -> str:
        """The document, indented for a reader."""
        return json.dumps(_plain(self), indent=2, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "RunResult":
        """Parse; ValueError when it is no result."""
        try:
            document: dict[str, Any] = json.loads(text)
            figures = tuple(EvaluationFigures(**entry) for entry in document.pop("evaluation", []))
            result = cls(**document, evaluation=figures)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a result: {error}") from error
        if not _has_its_types(result):
            raise ValueError("not a result: a field has the wrong type")
        return result


def _has_its_types(result: RunResult) -> bool:
    texts = [result.run_uid, result.run_digest, result.outcome, result.cause, result.message]
    texts += [result.checkpoint, result.final_model, *(entry.dataset for entry in result.evaluation)]
    counts = [result.attempt, result.step, result.target_steps, result.checkpoint_step]
    counts += [count for entry in result.evaluation for count in (entry.step, entry.episodes, entry.unscored)]
    figures = [result.metrics, *(entry.metrics for entry in result.evaluation)]
    numbers = [result.finished_at, *(entry.mean for entry in result.evaluation)]
    return (
        all(map(is_text, texts))
        and all(map(is_count, counts))
        and all(map(is_number, numbers))
        and all(map(are_figures, figures))
    )


def _plain(result: RunResult) -> dict[str, Any]:
    document = {name: getattr(result, name) for name in result.__dataclass_fields__}
    document["metrics"] = dict(result.metrics)
    document["evaluation"] = [
        {name: getattr(entry, name) for name in entry.__dataclass_fields__} | {"metrics": dict(entry.metrics)}
        for entry in result.evaluation
    ]
    return document
