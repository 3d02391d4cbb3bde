"""The `Engine` protocol: what an attempt needs of the thing that trains, and the values that go between them.

`attempt` drives an engine; `engines/*` implement it. The engine owns the model and its endpoint; the order of the
steps, the files of the run and the meaning of a result are not its business.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tuning_contract.checkpoint import Manifest
from tuning_contract.directory import RunDirectory
from tuning_contract.run_document import EvaluationSet, RunDocument
from tuning_runner.checkpoints import CheckpointStore, Fence
from tuning_runner.dataset import Dataset
from tuning_runner.evaluation import Evaluation
from tuning_runner.metrics_writer import MetricsWriter
from tuning_runner.sources import BaseModel
from tuning_runner.stopping import Stop


@dataclass(frozen=True)
class Held:
    """One held-out set with its rows."""

    settings: EvaluationSet
    dataset: Dataset


@dataclass(frozen=True)
class Inputs:
    """What the run works on, loaded and checked."""

    run: RunDocument
    attempt: int
    directory: RunDirectory
    train: Dataset
    held: tuple[Held, ...]
    model: BaseModel
    hub: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Repository, revision and commit of each source on the hub: `model`, `train`, `evaluation/<name>`."""
    stop: Stop = field(default_factory=Stop)
    """Whether the attempt was asked to stop."""


@dataclass(frozen=True)
class Context:
    """What training writes to."""

    inputs: Inputs
    target_steps: int
    fingerprint: Mapping[str, object]
    fence: Fence
    checkpoints: CheckpointStore
    metrics: MetricsWriter


@dataclass(frozen=True)
class Resume:
    """Where training goes on: a whole checkpoint with the run's fingerprint, this run's or another's."""

    folder: Path
    manifest: Manifest
    weights_only: bool = False
    """Only its weights are taken, of whatever run: the training begins with step 1 and a fresh optimizer."""

    @property
    def step(self) -> int:
        """Finished steps with which the training begins."""
        return 0 if self.weights_only else self.manifest.step


@dataclass(frozen=True)
class Plan:
    """What the run amounts to."""

    target_steps: int


@dataclass(frozen=True)
class Trained:
    """The end of training."""

    step: int
    checkpoint: Path
    values: Mapping[str, float] = field(default_factory=dict)
    """Trainer metrics of the last step."""


@dataclass(frozen=True)
class Verdict:
    """Whether the run's folder holds what a finished run must hold; `problem` is empty when it does."""

    problem: str = ""


class Engine(Protocol):
    """Trains one run in one attempt. They are called in the order below.

    All methods raise RunError with the cause, and StopError soon after `Inputs.stop` was requested.
    """

    def plan(self, run: RunDocument, rows: int) -> Plan:
        """Steps of the run; pure arithmetic, nothing is loaded."""
        ...

    def check(self) -> None:
        """Load model, tokenizer and template, run dry episodes; fail in seconds with the user's own text."""
        ...

    def fingerprint(self) -> Mapping[str, object]:
        """The resume fingerprint, with the digest of the template that `check` loaded."""
        ...

    def evaluate(self, checkpoint: Path | None, held: Held, seconds: float | None = None) -> Evaluation:
        """Judge the weights of `checkpoint` (None: the base model) on one set.

        The step of the evaluation is the checkpoint's, 0 for the base model. After `seconds` the episodes that still
        run are given up and have no score.
        """
        ...

    def train(self, context: Context, resume: Resume | None) -> Trained:
        """All steps that are left, with the evaluations and checkpoints that fall between them.

        Raises:
            StopError: the attempt was asked to stop; every finished step is in a checkpoint.
        """
        ...

    def export(self, checkpoint: Path, final: Path) -> None:
        """Write the tuned model of `checkpoint` into the folder `final`, loadable by plain transformers.

        The weights are those that were judged, not rounded to another type.
        """
        ...

    def verdict(self, directory: RunDirectory) -> Verdict:
        """Whether the finished run is whole: last checkpoint at the target, final model complete and loadable."""
        ...

    def close(self) -> None:
        """End worker processes and servers; never raises."""
        ...
