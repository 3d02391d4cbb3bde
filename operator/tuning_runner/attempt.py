"""One attempt of a run, from run.json to result.json: the order of everything, and nothing else.

Called by `training`. Fencing and the marker `started` come before any work, so that a replaced head never trains
twice; the base model is judged before step 1 and the last checkpoint after the last step, over the same path. Not
here: how anything is trained or judged (`engine.Engine`).
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuning_contract.causes import Cause
from tuning_contract.checkpoint import complete_checkpoints, write_atomically
from tuning_contract.directory import RunDirectory
from tuning_contract.metrics import TRAINER
from tuning_contract.result import EvaluationFigures
from tuning_contract.run_document import RunDocument
from tuning_contract.termination import EXIT_FAILED, EXIT_STOPPED, EXIT_SUCCEEDED
from tuning_runner.checkpoints import (
    CheckpointStore,
    Fence,
    SupersededError,
    newest_attempt,
    publish_folder,
    remove_leftovers,
)
from tuning_runner.console import say
from tuning_runner.engine import Context, Engine, Held, Inputs, Resume, Trained
from tuning_runner.episodes.errors import RunError
from tuning_runner.evaluation import Evaluation, recorded_evaluations
from tuning_runner.metrics_writer import MetricsWriter, written_records
from tuning_runner.origin import find_origin, require_continuation
from tuning_runner.outcome import Ending, Failure, failure_of, finished_result, write_result, written_result
from tuning_runner.provenance import write_provenance
from tuning_runner.ray_cluster import joined
from tuning_runner.reserve import keep_reserve, release_reserve
from tuning_runner.sources import Sources
from tuning_runner.stopping import Stop, StopError

EngineFactory = Callable[[Inputs], Engine]


@dataclass
class _Progress:
    """What is known so far, for a result that is written on failure."""

    step: int = 0
    target_steps: int = 0
    evaluation: list[EvaluationFigures] = field(default_factory=list)


class Attempt:
    """Runs once.

    Args:
        run: the resolved run.
        number: of the attempt, from 1.
        directory: of the run on the volume.
        make_engine: called after the inputs are loaded, since it may import a training library.
        stop: whether it was asked to stop.
        final_seconds: that the evaluation of the tuned model may take, all sets together; None: no limit.
    """

    def __init__(
        self,
        run: RunDocument,
        number: int,
        directory: RunDirectory,
        make_engine: EngineFactory,
        stop: Stop,
        final_seconds: float | None = None,
    ) -> None:
        self._run = run
        self._number = number
        self._directory = directory
        self._make_engine = make_engine
        self._stop = stop
        self._final_seconds = final_seconds
        self._fence = Fence(directory, number)
        self._progress = _Progress()

    def execute(self) -> int:
        """Everything; returns the exit code. No exception of the run leaves it without a result."""
        if finished_result(self._directory, self._run) is not None:
            say("the run has a complete result already: nothing to do")
            return EXIT_SUCCEEDED
        try:
            if not self._begin():
                return EXIT_FAILED
            with joined(self._run.cluster, say):
                self._work()
        except SupersededError as error:
            say(f"stopped without a result: {error}")
            return EXIT_FAILED
        except StopError:
            self._stop.begin_ending()
            return self._stopped()
        except Exception as error:
            self._stop.begin_ending()
            return self._fail(failure_of(error))
        return EXIT_SUCCEEDED

    def _begin(self) -> bool:
        """Take over the run; False when this attempt has begun before, in a head that is gone."""
        self._fence.raise_if_superseded()
        started = self._directory.started(self._number)
        started.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(started, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            message = f"attempt {self._number} has begun before: its head was replaced, and nothing was trained here"
            earlier = written_result(self._directory)
            if earlier is not None and earlier.attempt == self._number:
                say(f"{message}; the result of that time stays")
            else:
                self._fail(Failure(Cause.HEAD_LOST, message))
            return False
        if newest_attempt(self._directory) < self._number:
            write_atomically(self._directory.current_attempt, f"{self._number}\n")
        # The result of an earlier attempt must not be taken for this one's.
        self._directory.result.unlink(missing_ok=True)
        # Half a model that a killed attempt left is in nobody's count of free space.
        remove_leftovers(self._directory.final)
        keep_reserve(self._directory)
        self._stop.raise_if_requested()
        return True

    def _work(self) -> None:
        origin = self._origin()
        inputs = self._load()
        self._stop.raise_if_requested()
        engine = self._make_engine(inputs)
        try:
            plan = engine.plan(self._run, len(inputs.train.rows))
            self._progress.target_steps = plan.target_steps
            if plan.target_steps < 1:
                rows, batch = len(inputs.train.rows), self._run.algorithm.batch_size
                message = f"{self._run.algorithm.epochs} epochs of {rows} rows are less than one batch of {batch}"
                raise RunError(Cause.CONFIG_INVALID, message)
            engine.check()
            fingerprint = engine.fingerprint()
            store = CheckpointStore(self._fence, self._run.checkpoint.keep_last, say)
            found = store.newest(fingerprint)
            resume = Resume(*found) if found else origin or self._origin()
            if found is None and resume is not None:
                require_continuation(resume, fingerprint, plan.target_steps)
            self._progress.step = resume.step if resume else 0
            with MetricsWriter(self._directory, self._number, plan.target_steps, self._progress.step) as metrics:
                context = Context(inputs, plan.target_steps, fingerprint, self._fence, store, metrics)
                try:
                    self._train(engine, context, resume)
                finally:
                    self._progress.step = max(self._progress.step, metrics.last_step)
        finally:
            engine.close()

    def _origin(self) -> Resume | None:
        """What the run begins with when it has no checkpoint of its own; another run's, if it names one."""
        wanted = self._run.checkpoint.resume_from
        if wanted is None or complete_checkpoints(self._directory.checkpoints):
            return None
        return find_origin(wanted, say)

    def _load(self) -> Inputs:
        sources = Sources(self._run, self._directory, say)
        train = sources.training_tasks()
        held = tuple(Held(entry, sources.evaluation_tasks(entry)) for entry in self._run.dataset.evaluation)
        sizes = "".join(f", {len(entry.dataset.rows)} in {entry.settings.name}" for entry in held)
        say(f"dataset: {len(train.rows)} training tasks{sizes}")
        model = sources.base_model()
        return Inputs(self._run, self._number, self._directory, train, held, model, sources.found, self._stop)

    def _train(self, engine: Engine, context: Context, resume: Resume | None) -> None:
        inputs = context.inputs
        baseline = self._baseline(engine, context)
        self._progress.evaluation += [entry.figures for entry in baseline if entry.figures]
        trained = engine.train(context, resume)
        self._progress.step = trained.step
        final, cut_off = self._judge_tuned(engine, context, trained.checkpoint)
        self._progress.evaluation += [entry.figures for entry in final if entry.figures]
        say(f"writing the tuned model to {self._directory.final}")
        self._fence.raise_if_superseded()
        # One that an earlier attempt left without a result proves nothing, and the volume may have room for one only.
        shutil.rmtree(self._directory.final, ignore_errors=True)
        publish_folder(self._directory.final, self._fence, lambda folder: engine.export(trained.checkpoint, folder))
        write_provenance(inputs, dict(context.fingerprint), self._directory.final)
        if problem := engine.verdict(self._directory).problem:
            raise RunError(Cause.INCOMPLETE_STEPS, problem)
        ending = Ending(
            step=trained.step,
            target_steps=self._progress.target_steps,
            message=_without_figures((*baseline, *final), cut_off),
            evaluation=tuple(self._progress.evaluation),
            metrics=self._values(trained),
        )
        self._stop.raise_if_requested()
        self._stop.begin_ending()  # a result that proves success is not taken back
        self._fence.raise_if_superseded()
        write_result(self._directory, self._run, self._number, ending)
        release_reserve(self._directory)
        say(f"finished: {trained.step} of {self._progress.target_steps} steps")

    def _baseline(self, engine: Engine, context: Context) -> list[Evaluation]:
        """The base model's figures: those that an earlier attempt recorded, or new ones."""
        found = recorded_evaluations(written_records(self._directory), step=0)
        # One that gave no figure, since its services were down, say, is worth another try.
        known = {name: evaluation for name, evaluation in found.items() if evaluation.figures is not None}
        return [
            known.get(held.settings.name) or self._judge(engine, context, None, held) for held in context.inputs.held
        ]

    def _judge_tuned(self, engine: Engine, context: Context, checkpoint: Path) -> tuple[list[Evaluation], str]:
        """The tuned model's figures, and in words that the limit of their time was reached, if it was."""
        limit, sets = self._final_seconds, context.inputs.held
        if limit is None:
            return [self._judge(engine, context, checkpoint, held) for held in sets], ""
        until = time.monotonic() + limit
        found = [self._judge(engine, context, checkpoint, held, max(0.0, until - time.monotonic())) for held in sets]
        if time.monotonic() < until:
            return found, ""
        cut_off = f"the final evaluation was ended after {limit:g} s, by `deadlines.finalEvaluationSeconds`"
        say(f"warning: {cut_off}")
        return found, cut_off

    def _judge(
        self, engine: Engine, context: Context, checkpoint: Path | None, held: Held, seconds: float | None = None
    ) -> Evaluation:
        evaluation = engine.evaluate(checkpoint, held, seconds)
        context.metrics.evaluation(evaluation.dataset, evaluation.step, evaluation.values)
        return evaluation

    def _values(self, trained: Trained) -> Mapping[str, float]:
        """Trainer metrics of the last step, which an earlier attempt may have trained."""
        records = written_records(self._directory)
        written = [record.values for record in records if record.role == TRAINER and record.step == trained.step]
        return trained.values or (written[-1] if written else {})

    def _stopped(self) -> int:
        """The end of an attempt that was asked to stop: a later one goes on from the newest checkpoint."""
        complete = complete_checkpoints(self._directory.checkpoints)
        step = max(self._progress.step, complete[-1][1].step if complete else 0)
        say(f"stopped after step {step}, as it was asked to")
        return self._end(Ending(step, self._progress.target_steps, stopped=True), EXIT_STOPPED)

    def _fail(self, failure: Failure) -> int:
        say(f"failed: {failure.cause.value}: {failure.message}")
        return self._end(Ending(self._progress.step, self._progress.target_steps, failure), EXIT_FAILED)

    def _end(self, ending: Ending, code: int) -> int:
        """Write the result with what was judged so far; the exit code."""
        ending = replace(ending, evaluation=tuple(self._progress.evaluation))
        try:
            self._fence.raise_if_superseded()
            try:
                write_result(self._directory, self._run, self._number, ending)
            except OSError:
                # Most likely the volume is full.
                release_reserve(self._directory)
                write_result(self._directory, self._run, self._number, ending)
        except SupersededError as error:
            say(f"no result is written: {error}")
        except OSError as error:
            say(f"the result cannot be written: {error}")
        return code


def _without_figures(evaluations: Sequence[Evaluation], cut_off: str) -> str:
    """What there is to say of sets without a figure; empty when all have one."""
    missing = dict.fromkeys(entry.dataset for entry in evaluations if entry.figures is None)
    reason = f"; {cut_off}" if cut_off else ""
    return (
        f"no evaluation figure for {', '.join(missing)}: too many episodes without a score{reason}" if missing else ""
    )
