"""What the TRL engine does around its model: evaluations at their intervals, failures of the model itself."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.unit.runner.documents import a_run_document, an_algorithm  # noqa: E402
from tuning_contract.algorithms import ALGORITHMS  # noqa: E402
from tuning_contract.causes import Cause  # noqa: E402
from tuning_contract.checkpoint import Manifest  # noqa: E402
from tuning_contract.directory import RunDirectory  # noqa: E402
from tuning_contract.outcomes import Outcome  # noqa: E402
from tuning_contract.run_document import EngineSettings, Sampling  # noqa: E402
from tuning_runner.checkpoints import CheckpointStore, Fence  # noqa: E402
from tuning_runner.dataset import Dataset  # noqa: E402
from tuning_runner.engine import Context, Held, Inputs, Resume  # noqa: E402
from tuning_runner.engines.trl.engine import TRLEngine, _Served  # noqa: E402
from tuning_runner.episodes.batch import EpisodeBatch, EpisodeResult  # noqa: E402
from tuning_runner.episodes.errors import RunError  # noqa: E402
from tuning_runner.episodes.record import EpisodeRecord  # noqa: E402
from tuning_runner.evaluation import Evaluation  # noqa: E402
from tuning_runner.groups import assign  # noqa: E402
from tuning_runner.metrics_writer import MetricsWriter  # noqa: E402
from tuning_runner.sources import BaseModel  # noqa: E402

pytestmark = pytest.mark.model
TARGET, EVERY = 6, 2


class Bench:
    """A TRL engine whose model, episodes and updates are scripted."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = a_run_document(algorithm=an_algorithm(steps=TARGET, save_every_steps=1, evaluate_every_steps=EVERY))
        self.directory = RunDirectory(root)
        held = Held(run.dataset.evaluation[0], Dataset("", ({},), ""))
        model = BaseModel(run.model, run.model.path)
        self.inputs = Inputs(run, 2, self.directory, Dataset("", ({},) * 20, ""), (held,), model)
        self.engine = TRLEngine(self.inputs)
        self.engine.plan(run, 20)
        self.policy = SimpleNamespace(failure=None, take_usage=lambda: None, close=lambda: None)
        self.policy.wait_until_idle = lambda: self.did.append("idle")
        served: Any = SimpleNamespace(parameters=1)
        self.engine._served = _Served(served, self.policy, served)
        self.engine._made = SimpleNamespace(trainable_parameters=1)
        self.did: list[str] = []
        for name in ("_load", "_evaluate", "_train_step", "_save"):
            monkeypatch.setattr(self.engine, name, getattr(self, name))

    def _load(self, checkpoint: Path, step: int) -> None:
        self.engine._step = step

    def _evaluate(self, held: Held) -> Evaluation:
        self.did.append(f"judge {self.engine._step}")
        return Evaluation(held.settings.name, self.engine._step, {"mean": 0.5})

    def _train_step(self, context: Context, step: int) -> dict[str, float]:
        self.did.append(f"step {step}")
        self.engine._step = step
        return {}

    def _save(self, context: Context) -> Path:
        return self.directory.checkpoint(self.engine._step)

    def train(self, resume_after: int | None = None) -> None:
        """All steps, from the beginning or from a checkpoint."""
        fence = Fence(self.directory, 2)
        resume = None
        if resume_after is not None:
            manifest = Manifest("trl", resume_after, resume_after, 0.0)
            resume = Resume(self.directory.checkpoint(resume_after), manifest)
        with MetricsWriter(self.directory, 2, TARGET) as metrics:
            store = CheckpointStore(fence, 2, self.did.append)
            self.engine.train(Context(self.inputs, TARGET, {}, fence, store, metrics), resume)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(tmp_path, monkeypatch)
    yield bench
    bench.engine.close()


def test_the_weights_are_judged_at_intervals_and_the_last_ones_by_the_attempt(bench: Bench) -> None:
    bench.train()
    assert bench.did == ["step 1", "step 2", "judge 2", "step 3", "step 4", "judge 4", "step 5", "step 6"]


def test_an_attempt_that_ended_between_checkpoint_and_evaluation_is_made_up_for(bench: Bench) -> None:
    bench.train(resume_after=4)
    assert bench.did == ["judge 4", "step 5", "step 6"]


def test_an_evaluation_that_is_recorded_is_not_made_again_by_a_resumed_attempt(bench: Bench) -> None:
    with MetricsWriter(bench.directory, 1, TARGET) as metrics:
        metrics.evaluation("heldout", 4, {"mean": 0.25, "episodes": 20.0, "unscored_ratio": 0.0})
    bench.train(resume_after=4)
    assert bench.did == ["step 5", "step 6"]


def test_an_evaluation_that_gave_no_figure_is_made_again_by_a_resumed_attempt(bench: Bench) -> None:
    with MetricsWriter(bench.directory, 1, TARGET) as metrics:
        metrics.evaluation("heldout", 4, {"episodes": 20.0, "unscored_ratio": 0.5})
    bench.train(resume_after=4)
    assert bench.did == ["judge 4", "step 5", "step 6"]


def test_a_resume_off_the_interval_or_after_the_last_step_judges_nothing_first(bench: Bench) -> None:
    bench.train(resume_after=5)
    assert bench.did == ["step 6"]
    bench.train(resume_after=TARGET)
    assert bench.did == ["step 6"]


def test_a_wrong_override_is_told_before_anything_is_loaded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings("TRL", "2.60.0", '{"adam_beta_1": 0.8}')
    engine = TRLEngine(replace(bench.inputs, run=replace(bench.inputs.run, engine=settings)))
    monkeypatch.setattr(engine._host, "load_user_code", lambda: bench.did.append("user code"))
    with pytest.raises(RunError, match=r"`engine\.config\.adam_beta_1` is not known to engine TRL") as caught:
        engine.check()
    assert caught.value.cause is Cause.CONFIG_INVALID
    assert bench.did == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_episodes_of_a_step_get_the_advantages_of_the_runs_algorithm(bench: Bench, name: str) -> None:
    run = bench.inputs.run
    engine = TRLEngine(replace(bench.inputs, run=replace(run, algorithm=replace(run.algorithm, type=name))))
    results = [an_episode(member, reward) for member, reward in enumerate([1.0, 0.0, 0.5, None])]
    results += [an_episode(member, reward, group="1.1") for member, reward in enumerate([2.0, 1.0])]
    expected = assign([result.record for result in results], ALGORITHMS[name].advantage, 2)
    found = [result.record for result in engine._with_advantages(results)]
    assert [(record.advantage, record.masked) for record in found] == [(a.advantage, a.masked) for a in expected]
    assert len({record.advantage for record in found}) > 2


def an_episode(
    member: int, reward: float | None, failed: Outcome = Outcome.MODEL_ERROR, group: str = "1.0"
) -> EpisodeResult:
    outcome = failed if reward is None else Outcome.COMPLETED
    record = EpisodeRecord("train", f"{group}.{member}", group, "", 2, 2, 0, 0, outcome, reward=reward)
    return EpisodeResult(record, {})


def script_episodes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, results: list[EpisodeResult], failure: Exception
) -> None:
    """The next episodes, during which the model fails once."""

    def run(batch: EpisodeBatch) -> list[EpisodeResult]:
        bench.did.append("episodes")
        bench.policy.failure = failure
        return results

    monkeypatch.setattr(bench.engine._host, "run", run)


def run_episodes(bench: Bench, monkeypatch: pytest.MonkeyPatch, *rewards: float | None) -> list[EpisodeResult]:
    """Episodes during which the model ran out of memory once."""
    results = [an_episode(member, reward) for member, reward in enumerate(rewards)]
    script_episodes(bench, monkeypatch, results, torch.OutOfMemoryError("no memory"))
    return bench.engine._episodes(EpisodeBatch(1, [{}], 2, 0, Sampling()))


def test_a_lack_of_memory_that_the_next_try_got_over_stops_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [result.record.reward for result in run_episodes(bench, monkeypatch, 1.0, None)] == [1.0, None]
    assert bench.did == ["episodes", "idle"]  # nothing is sampled any more when the weights change


def test_a_lack_of_memory_in_a_step_without_a_score_is_raised_with_the_episodes_in_the_journal(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        run_episodes(bench, monkeypatch, None, None)
    lines = bench.directory.episodes(1).read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["ModelError"] * 2


@pytest.mark.parametrize(
    "lack",
    [
        torch.OutOfMemoryError("no memory"),
        MemoryError("no memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: no memory"),
    ],
)
def test_a_step_that_fails_for_lack_of_memory_ends_with_that_cause_and_not_its_episodes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lack: Exception
) -> None:
    results = [an_episode(member, reward) for member, reward in enumerate([1.0, None, None, None])]
    script_episodes(bench, monkeypatch, results, lack)
    context: Any = SimpleNamespace(fence=Fence(bench.directory, 2))  # nothing else is written of a step that fails
    with pytest.raises(type(lack), match="no memory"):
        TRLEngine._train_step(bench.engine, context, 1)
    outcomes = [json.loads(line)["outcome"] for line in bench.directory.episodes(1).read_text().splitlines()]
    assert outcomes == ["Completed", "ModelError", "ModelError", "ModelError"]


@pytest.mark.parametrize(
    ("outcome", "failure", "cause"),
    [
        (Outcome.JUDGE_ERROR, MemoryError("no memory"), Cause.JUDGE_UNAVAILABLE),
        (Outcome.MODEL_ERROR, RuntimeError("another failure"), Cause.EPISODE_FAILURES),
    ],
)
def test_a_step_that_fails_for_another_reason_keeps_that_cause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, failure: Exception, cause: Cause
) -> None:
    results = [an_episode(member, reward, outcome) for member, reward in enumerate([1.0, None, None, None])]
    script_episodes(bench, monkeypatch, results, failure)
    context: Any = SimpleNamespace(fence=Fence(bench.directory, 2))
    with pytest.raises(RunError) as caught:
        TRLEngine._train_step(bench.engine, context, 1)
    assert caught.value.cause is cause


def test_an_evaluation_with_failed_episodes_says_how_the_model_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (held,) = bench.inputs.held
    script_episodes(bench, monkeypatch, [an_episode(0, 1.0), an_episode(1, None)], MemoryError("no memory"))
    TRLEngine._evaluate(bench.engine, held)
    assert "warning: the model failed in it: MemoryError: no memory" in capsys.readouterr().out
    script_episodes(bench, monkeypatch, [an_episode(0, 1.0)], MemoryError("no memory"))
    TRLEngine._evaluate(bench.engine, held)
    assert "the model failed" not in capsys.readouterr().out
