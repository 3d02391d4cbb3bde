"""The TRL engine: implements `tuning_runner.engine.Engine` for one process on the CPU or on one GPU.

`training` makes it, `attempt` drives it. A step is: its tasks from the schedule, their episodes through the gateway
with the weights of the step before, masks and advantages from `groups`, one optimizer update on all rows, one metric
record.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tuning_contract.algorithms import ALGORITHMS
from tuning_contract.causes import Cause
from tuning_contract.checkpoint import FORMAT_TRL, Manifest, complete_checkpoints
from tuning_contract.directory import RunDirectory
from tuning_contract.fingerprint import fingerprint
from tuning_contract.run_document import RunDocument
from tuning_contract.schedule import Order, schedule, target_steps
from tuning_runner.console import say
from tuning_runner.engine import Context, Held, Inputs, Plan, Resume, Trained, Verdict
from tuning_runner.engines.trl.batches import TrainingRow
from tuning_runner.engines.trl.learner import Learner, Update
from tuning_runner.engines.trl.model import (
    LoadedModel,
    checkpoint_bytes,
    load_model,
    load_tokenizer,
    model_problem,
    precision,
)
from tuning_runner.engines.trl.policy import BatchedPolicy, BatchLimits, Usage
from tuning_runner.engines.trl.renderer import TokenizerRenderer
from tuning_runner.engines.trl.sampling import Sampler
from tuning_runner.engines.trl.settings import overrides, require_fit
from tuning_runner.episode_host import EpisodeHost
from tuning_runner.episodes import journal
from tuning_runner.episodes.batch import EpisodeBatch, EpisodeResult
from tuning_runner.episodes.errors import RunError
from tuning_runner.episodes.record import EVALUATION_PREFIX
from tuning_runner.evaluation import Evaluation, evaluate_records, recorded_evaluations
from tuning_runner.groups import assign, is_scored, step_failure
from tuning_runner.metrics_writer import written_records
from tuning_runner.outcome import is_lack_of_memory
from tuning_runner.preflight import check_dry_episodes, dry_batch, require_free_space
from tuning_runner.step_metrics import episode_values
from tuning_runner.stopping import StopError
from tuning_runner.transcripts import transcripts

_TRANSCRIPTS_EVERY = 3
_DIGESTED_PARAMETERS = 200_000_000
"""With more of them, the digest in a step's line would cost seconds."""
_COUNTERS = "counters.json"


@dataclass(frozen=True)
class _Counters:
    """What only grows over the run; kept with each checkpoint."""

    optimizer_steps: int = 0
    tokens: int = 0
    episodes: int = 0


@dataclass(frozen=True)
class _Served:
    """The base model behind the gateway."""

    loaded: LoadedModel
    policy: BatchedPolicy
    renderer: TokenizerRenderer


class TRLEngine:
    """One engine for one attempt.

    Args:
        inputs: the run with its tasks.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._run = inputs.run
        self._host = EpisodeHost(inputs.run, inputs.attempt)
        self._scratch = contextlib.ExitStack()
        self._target_steps = 0
        self._served: _Served | None = None
        self._made: Learner | None = None
        self._counters = _Counters()
        self._step = 0
        """Finished steps that the weights in memory have seen."""

    def plan(self, run: RunDocument, rows: int) -> Plan:
        """Steps of the run."""
        algorithm = run.algorithm
        self._target_steps = target_steps(rows, algorithm.batch_size, algorithm.epochs, algorithm.steps)
        return Plan(self._target_steps)

    def check(self) -> None:
        """The preflight; user code and model are loaded side by side."""
        overrides(self._run)  # a wrong key is told before anything is loaded
        started = time.monotonic()
        user_code = self._host.load_user_code()
        tokenizer = load_tokenizer(self._inputs.model.settings)
        loaded = load_model(self._inputs.model.settings, tokenizer)
        require_fit(self._run, loaded.model)
        needed = checkpoint_bytes(loaded, self._run.algorithm.lora, self._run.checkpoint.keep_last)
        require_free_space(self._inputs.directory, needed)
        renderer = TokenizerRenderer(tokenizer, loaded.end_tokens)
        if not renderer.is_prefix_preserving:
            say("warning: the chat template is not prefix-preserving: turns of one conversation may not be joined")
        policy = BatchedPolicy(
            Sampler(loaded.model, loaded.end_tokens | {renderer.end_of_turn[0]}),
            BatchLimits(),
            lambda: self._host.open_sessions,
            precision,
        )
        self._served = _Served(loaded, policy, renderer)
        user_code.result()
        self._host.serve(policy, renderer)
        seconds = time.monotonic() - started
        say(f"model: {loaded.parameters:,} parameters, loaded with the user's code in {seconds:.1f} s")
        rows = self._tasks(step=1)
        check_dry_episodes(self._episodes(dry_batch(self._run, rows)), self._run, say)

    def fingerprint(self) -> Mapping[str, object]:
        """What a checkpoint must agree on."""
        template = self._serving.renderer.template_digest
        return fingerprint(self._run, self._inputs.model.identity, self._inputs.train.digest, template)

    def evaluate(self, checkpoint: Path | None, held: Held, seconds: float | None = None) -> Evaluation:
        """Judge the base model or the weights of a checkpoint on one set."""
        step = 0 if checkpoint is None else _step_of(checkpoint)
        if step != self._step and checkpoint is not None:
            self._load(checkpoint, step)
        if step != self._step:
            raise RuntimeError("the base model can only be judged before training")
        return self._evaluate(held, seconds)

    def train(self, context: Context, resume: Resume | None) -> Trained:
        """All steps that are left."""
        if resume is not None and resume.weights_only:
            self._learner.load_weights(resume.folder)
            say(f"beginning with the weights of {resume.folder}")
        elif resume is not None:
            self._load(resume.folder, resume.step)
            say(f"resuming after step {resume.step} from {resume.folder}")
            recorded = recorded_evaluations(written_records(self._inputs.directory), self._step)
            # One that gave no figure, since its services were down, say, is worth another try.
            known = [name for name, evaluation in recorded.items() if evaluation.figures is not None]
            self._judge_at_interval(context, known)
        algorithm = self._run.algorithm
        say(f"training: {self._learner.trainable_parameters:,} of {self._serving.loaded.parameters:,} parameters")
        values: Mapping[str, float] = {}
        checkpoint = resume.folder if resume is not None else Path()
        stop = self._inputs.stop
        try:
            for step in range(self._step + 1, self._target_steps + 1):
                values = self._train_step(context, step)
                last = step == self._target_steps
                if last or step % algorithm.save_every_steps == 0:
                    checkpoint = self._save(context)
                self._judge_at_interval(context)
        except StopError:
            stop.begin_ending()
            if stop.unsaved:
                self._save(context)
            raise
        return Trained(self._step, checkpoint, values)

    def _judge_at_interval(self, context: Context, known: Collection[str] = ()) -> None:
        """Judge the weights after a step on the interval; the last step's are judged by the attempt.

        Args:
            context: gets the records.
            known: sets on which an earlier attempt judged these weights: it may have ended between checkpoint and
                evaluation.
        """
        interval = self._run.algorithm.evaluate_every_steps
        if not interval or self._step % interval or self._step == self._target_steps:
            return
        for held in self._inputs.held:
            if held.settings.name not in known:
                evaluation = self._evaluate(held)
                context.metrics.evaluation(evaluation.dataset, evaluation.step, evaluation.values)

    def export(self, checkpoint: Path, final: Path) -> None:
        """Write the tuned model; nothing can be trained or judged afterwards."""
        if (step := _step_of(checkpoint)) != self._step:
            self._load(checkpoint, step)
        self._learner.export(final)

    def verdict(self, directory: RunDirectory) -> Verdict:
        """Whether last checkpoint and final model are whole."""
        complete = complete_checkpoints(directory.checkpoints)
        step = complete[-1][1].step if complete else 0
        if step != self._target_steps:
            return Verdict(f"the last checkpoint is of step {step}, not {self._target_steps}")
        return Verdict(model_problem(directory.final))

    def close(self) -> None:
        """End workers, gateway and threads."""
        self._host.close()
        if self._served is not None:
            self._served.policy.close()
        self._scratch.close()

    @property
    def _serving(self) -> _Served:
        if self._served is None:
            raise RuntimeError("`check` comes first")
        return self._served

    @property
    def _learner(self) -> Learner:
        """Made when training begins: the base model is judged without adapters in its way."""
        if self._made is None:
            scratch = self._scratch.enter_context(tempfile.TemporaryDirectory(prefix="trl-"))
            self._made = Learner(self._serving.loaded, self._run, self._target_steps, Path(scratch))
        return self._made

    def _load(self, checkpoint: Path, step: int) -> None:
        self._learner.load(checkpoint)
        self._counters = _Counters(**json.loads((checkpoint / _COUNTERS).read_text(encoding="utf-8")))
        self._step = step

    def _save(self, context: Context) -> Path:
        started = time.monotonic()
        manifest = Manifest(
            format=FORMAT_TRL,
            step=self._step,
            policy_version=self._step,
            saved_at=time.time(),
            fingerprint=context.fingerprint,
            dataset_digest=self._inputs.train.digest,
            position=self._step * self._run.algorithm.batch_size,
        )
        with self._inputs.stop.deferred():
            checkpoint = context.checkpoints.save(manifest, self._write_checkpoint)
            self._inputs.stop.unsaved = False
        say(f"checkpoint {checkpoint.name} saved in {time.monotonic() - started:.1f} s")
        return checkpoint

    def _write_checkpoint(self, folder: Path) -> None:
        self._learner.save(folder)
        (folder / _COUNTERS).write_text(json.dumps(asdict(self._counters)), encoding="utf-8")

    def _tasks(self, step: int) -> list[dict[str, object]]:
        train, settings = self._inputs.train, self._run.dataset
        order: Order = "Sequential" if settings.order == "Sequential" else "Shuffle"
        size = self._run.algorithm.batch_size
        numbers = schedule(train.digest, self._run.seed, order, len(train.rows), size, step)
        return [train.rows[number] for number in numbers]

    def _episodes(self, batch: EpisodeBatch) -> list[EpisodeResult]:
        """Run a batch; a failure of the model itself is this engine's, not the episodes'."""
        policy = self._serving.policy
        policy.take_usage()
        policy.failure = None
        self._inputs.stop.raise_if_requested()
        try:
            results = self._host.run(batch)
        except (RunError, StopError) as error:
            journal.append(self._inputs.directory.episodes(batch.step), error.records)
            raise
        # The last episodes may have been cut off in the middle of a batch, and the weights are about to change.
        policy.wait_until_idle()
        records = [result.record for result in results]
        if policy.failure is not None and not any(map(is_scored, records)):
            # The episodes only saw a failed model: the cause is here. A failure that later tries got over is none.
            journal.append(self._inputs.directory.episodes(batch.step), records)
            raise policy.failure
        return results

    def _evaluate(self, held: Held, limit: float | None = None) -> Evaluation:
        started = time.monotonic()
        settings = held.settings
        tasks = held.dataset.rows[: settings.max_tasks]
        mode = f"{EVALUATION_PREFIX}{settings.name}"
        batch = EpisodeBatch(self._step, tasks, settings.samples_per_task, self._step, settings.sampling, mode, limit)
        records = [result.record for result in self._episodes(batch)]
        journal.append(self._inputs.directory.episodes(self._step), records)
        seconds = round(time.monotonic() - started, 3)
        evaluation = evaluate_records(records, settings.name, self._step, seconds)
        mean = evaluation.values.get("mean")
        shown = "no figure, too many episodes without a score" if mean is None else f"mean {mean:.3f}"
        unscored = evaluation.values["unscored_ratio"]
        say(
            f"evaluation of {settings.name} after step {self._step}: {shown}, {len(records)} episodes, "
            f"{unscored:.1%} without a score, {seconds:.1f} s"
        )
        if unscored and (failure := self._serving.policy.failure):
            say(f"warning: the model failed in it: {type(failure).__name__}: {failure}")
        return evaluation

    def _train_step(self, context: Context, step: int) -> Mapping[str, float]:
        started = time.monotonic()
        algorithm = self._run.algorithm
        batch = EpisodeBatch(step, self._tasks(step), algorithm.group_size, step - 1, self._run.model.sampling)
        results = self._with_advantages(self._episodes(batch))
        usage = self._serving.policy.take_usage()
        # What is asked for meanwhile comes when the step is whole: trained, counted and told.
        with self._inputs.stop.deferred():
            return self._learn(context, step, started, results, usage)

    def _learn(
        self, context: Context, step: int, started: float, results: Sequence[EpisodeResult], usage: Usage
    ) -> Mapping[str, float]:
        """The update from the episodes of a step, and all records of it."""
        records = [result.record for result in results]
        context.fence.raise_if_superseded()
        journal.append(self._inputs.directory.episodes(step), records)
        if failure := step_failure(records, self._run.rollout.max_failed_ratio):
            lack = self._serving.policy.failure
            if lack is not None and failure.cause is Cause.EPISODE_FAILURES and is_lack_of_memory(lack):
                raise lack  # the episodes only saw a failed model: the cause is here, and so is what to change
            raise RunError(failure.cause, failure.message)
        rolled = time.monotonic()
        update = self._learner.update(_training_rows(results))
        finished = time.monotonic()
        context.fence.raise_if_superseded()
        self._step = step
        self._inputs.stop.unsaved = True
        self._counters = _Counters(
            optimizer_steps=self._counters.optimizer_steps + 1,
            tokens=self._counters.tokens + update.trained_tokens,
            episodes=self._counters.episodes + len(records),
        )
        values = episode_values(records) | _update_values(update)
        values |= {name: float(value) for name, value in asdict(self._counters).items()}
        values |= {
            "entropy": usage.entropy / max(usage.tokens, 1),
            "step_seconds": finished - started,
            "rollout_seconds": rolled - started,
            "update_seconds": finished - rolled,
        }
        context.metrics.step(step, values)
        self._report(step, values, results)
        return values

    def _with_advantages(self, results: Sequence[EpisodeResult]) -> list[EpisodeResult]:
        advantage = ALGORITHMS[self._run.algorithm.type].advantage
        assigned = assign([result.record for result in results], advantage, self._run.rollout.min_group_size)
        return [
            replace(result, record=result.record.assigned(given.advantage, given.masked))
            for result, given in zip(results, assigned, strict=True)
        ]

    def _report(self, step: int, values: Mapping[str, float], results: Sequence[EpisodeResult]) -> None:
        kl = f", kl {values['kl']:.4f}" if "kl" in values else ""
        digest = ""
        if self._learner.trainable_parameters <= _DIGESTED_PARAMETERS:
            digest = f", weights sha256 {self._learner.weights_digest()[:16]}"
        say(
            f"step {step}/{self._target_steps}: reward {values['reward_mean']:.3f}, "
            f"loss {values['policy_loss']:+.4f}{kl}, {values['step_seconds']:.1f} s "
            f"(rollout {values['rollout_seconds']:.1f}, update {values['update_seconds']:.1f}){digest}"
        )
        if step % _TRANSCRIPTS_EVERY == 1 or step == self._target_steps:
            for line in transcripts(results):
                say(line)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _training_rows(results: Sequence[EpisodeResult]) -> list[TrainingRow]:
    """All rows of the episodes that train, each with its episode's advantage."""
    return [
        TrainingRow(row.prompt_ids, row.completion_ids, row.mask, row.logprobs, result.record.advantage)
        for result in results
        if result.record.advantage is not None
        for row in result.rows
    ]


def _update_values(update: Update) -> dict[str, float]:
    values = {
        "policy_loss": update.policy_loss,
        "gradient_norm": update.gradient_norm,
        "learning_rate": update.learning_rate,
        "clip_ratio": update.clip_ratio,
    }
    return values if update.kl is None else values | {"kl": update.kl}
