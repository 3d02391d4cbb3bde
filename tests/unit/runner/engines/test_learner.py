"""One optimizer update: the loss of the algorithm table, whatever the micro-batches; checkpoints lose nothing."""

import math
import random
import resource
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors import SafetensorError  # noqa: E402

from tests.unit.runner.documents import a_run_document, an_algorithm  # noqa: E402
from tuning_contract.algorithms import ALGORITHMS  # noqa: E402
from tuning_contract.causes import Cause  # noqa: E402
from tuning_contract.outcomes import Outcome  # noqa: E402
from tuning_contract.run_document import EngineSettings, LoraSettings  # noqa: E402
from tuning_runner.engines.trl import learner as learner_module  # noqa: E402
from tuning_runner.engines.trl.batches import TrainingRow, pack  # noqa: E402
from tuning_runner.engines.trl.learner import Learner  # noqa: E402
from tuning_runner.engines.trl.model import load_model, load_tokenizer, model_problem  # noqa: E402
from tuning_runner.episodes.errors import RunError  # noqa: E402
from tuning_runner.groups import assign  # noqa: E402
from tuning_runner.outcome import failure_of  # noqa: E402

pytestmark = pytest.mark.model


def a_learner(tiny_model: Path, tmp_path: Path, config: str = "{}", **algorithm) -> Learner:
    engine = EngineSettings("TRL", "2.60.0", config)
    run = a_run_document(tiny_model, engine=engine, algorithm=an_algorithm(**algorithm))
    return Learner(load_model(run.model, load_tokenizer(run.model)), run, 10, tmp_path)


def some_rows(learner: Learner, groups: int = 3, members: int = 4) -> list[TrainingRow]:
    """Groups with one prompt each, completions of one or two turns, exact log-probabilities of the policy."""
    rng = random.Random(0)
    rows = []
    for group in range(groups):
        prompt = tuple(rng.randrange(3, 250) for _ in range(6 + group))
        for member in range(members):
            first, environment, second = rng.randrange(1, 5), rng.randrange(0, 4), rng.randrange(1, 4)
            completion = tuple(rng.randrange(3, 250) for _ in range(first + environment + second))
            mask = (1,) * first + (0,) * environment + (1,) * second
            advantage = 0.0 if group == 1 else (-1.0) ** member * (1 + member / 4)
            rows.append(TrainingRow(prompt, completion, mask, (0.0,) * len(mask), advantage))
    found = learner._logprobs(learner.model, rows)
    return [replace(row, logprobs=tuple(found[id(row)].tolist())) for row in rows]


def gradients(learner: Learner, rows: list[TrainingRow], monkeypatch) -> dict[str, "torch.Tensor"]:
    """The gradients of one update, before clipping."""
    seen: dict[str, torch.Tensor] = {}
    step = learner._step

    def look(loss: float) -> tuple[float, float]:
        seen.update(
            {n: p.grad.clone() for n, p in learner.model.named_parameters() if p.requires_grad and p.grad is not None}
        )
        return step(loss)

    monkeypatch.setattr(learner, "_step", look)
    learner.update(rows)
    return seen


def close(first: dict, second: dict) -> bool:
    return set(first) == set(second) and all(torch.allclose(first[n], second[n], atol=2e-6, rtol=1e-3) for n in first)


def test_log_probabilities_equal_those_of_a_plain_forward_pass(tiny_model, tmp_path):
    learner = a_learner(tiny_model, tmp_path)
    for row in some_rows(learner):
        ids = torch.tensor([row.prompt_ids + row.completion_ids])
        with torch.no_grad():
            logits = learner.model(input_ids=ids).logits[0].log_softmax(-1)
        for place, (token, sampled, value) in enumerate(zip(row.completion_ids, row.mask, row.logprobs, strict=True)):
            expected = float(logits[len(row.prompt_ids) + place - 1, token]) if sampled else 0.0
            assert value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("clip", [0.2, 0.6])
def test_the_gradient_is_that_of_the_algorithm_table(tiny_model, tmp_path, monkeypatch, kl, clip):
    learner = a_learner(tiny_model, tmp_path, kl_coefficient=kl, clip_range=clip, learning_rate=1e-4)
    rows = sampled_by_another(some_rows(learner))
    learner.update(rows)  # away from the reference
    settings = a_run_document(tiny_model).model
    policy, base = (load_model(settings, load_tokenizer(settings)).model for _ in range(2))
    policy.load_state_dict(learner.model.state_dict())
    found = gradients(learner, rows, monkeypatch)
    assert close(found, by_the_table(policy, base, rows, kl, clip))
    # Neither term is idle here, or the comparison would show nothing about it.
    assert not close(found, by_the_table(policy, base, rows, 0.1 - kl, clip))
    assert not close(found, by_the_table(policy, base, rows, kl, 0.8 - clip))


def test_an_upper_clip_range_of_its_own_changes_the_upper_side_only(tiny_model, tmp_path, monkeypatch):
    learner = a_learner(tiny_model, tmp_path, '{"epsilon_high": 0.6}', clip_range=0.2)
    rows = sampled_by_another(some_rows(learner))
    settings = a_run_document(tiny_model).model
    policy = load_model(settings, load_tokenizer(settings)).model
    found = gradients(learner, rows, monkeypatch)
    assert close(found, by_the_table(policy, policy, rows, 0.0, 0.2, upper=0.6))
    assert not close(found, by_the_table(policy, policy, rows, 0.0, 0.2))
    assert not close(found, by_the_table(policy, policy, rows, 0.0, 0.6))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_of_each_algorithm_is_that_of_its_formula(tiny_model, tmp_path, monkeypatch, name):
    rewards = [1.0, 0.0, 0.5, 0.5, 2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    learner = a_learner(tiny_model, tmp_path, type=name)
    episodes = [AnEpisode(f"1.{place // 4}", reward) for place, reward in enumerate(rewards)]
    assigned = assign(episodes, ALGORITHMS[name].advantage, 2)
    rows = some_rows(learner)
    settings = a_run_document(tiny_model).model
    policy = load_model(settings, load_tokenizer(settings)).model
    found = gradients(
        learner,
        [replace(row, advantage=given.advantage) for row, given in zip(rows, assigned, strict=True)],
        monkeypatch,
    )
    for other in ALGORITHMS:
        values = by_formula(other, torch.tensor(rewards, dtype=torch.float64).reshape(3, 4))
        golden = [replace(row, advantage=float(value)) for row, value in zip(rows, values, strict=True)]
        assert close(found, by_the_table(policy, policy, golden, 0.0, 0.2)) == (other == name)


@dataclass(frozen=True)
class AnEpisode:
    group: str
    reward: float
    outcome: Outcome = Outcome.COMPLETED


def by_formula(name: str, rewards: "torch.Tensor") -> "torch.Tensor":
    """Advantages of (groups, members) rewards as the papers have them."""
    if name == "rloo":
        others = rewards.size(1) - 1
        return (rewards - (rewards.sum(1, keepdim=True) - rewards) / others).flatten()
    if name == "reinforceplusplus":
        return ((rewards - rewards.mean()) / (rewards.std() + 1e-4)).flatten()
    return ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()


def sampled_by_another(rows: list[TrainingRow]) -> list[TrainingRow]:
    """The same rows as if a policy had drawn them that is off by 0.4 in every other log-probability, up and down."""
    shifts = (0.4, 0.0, -0.4, 0.0)
    return [
        replace(row, logprobs=tuple(value + shifts[place % 4] * mask for place, (value, mask) in enumerate(pairs)))
        for row in rows
        for pairs in [zip(row.logprobs, row.mask, strict=True)]
    ]


def by_the_table(
    model, base, rows: list[TrainingRow], kl: float, clip: float, upper: float | None = None
) -> dict[str, "torch.Tensor"]:
    """Gradients of the clipped surrogate with KL (estimator k3), the mean over all trained tokens, by plain passes."""
    model.zero_grad()
    tokens = sum(sum(row.mask) for row in rows)
    loss = torch.zeros(())
    for row in rows:
        old, mask = torch.tensor(row.logprobs), torch.tensor(row.mask)
        values = plain_logprobs(model, row)
        with torch.no_grad():
            reference = plain_logprobs(base, row)
        ratio = (values - old).exp()
        clipped = ratio.clamp(1 - clip, 1 + (clip if upper is None else upper))
        surrogate = -torch.min(ratio * row.advantage, clipped * row.advantage)
        difference = reference - values
        loss = loss + ((surrogate + kl * (difference.exp() - difference - 1)) * mask).sum() / tokens
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plain_logprobs(model, row: TrainingRow) -> "torch.Tensor":
    ids = torch.tensor([row.prompt_ids + row.completion_ids])
    start = len(row.prompt_ids) - 1
    values = model(input_ids=ids).logits[0].log_softmax(-1)[start:-1]
    return values.gather(-1, ids[0, start + 1 :, None]).squeeze(-1)


@pytest.mark.parametrize("lora", [None, LoraSettings(4, 8)])
def test_micro_batches_and_shared_prompts_do_not_change_the_gradient(tiny_model, tmp_path, monkeypatch, lora):
    rows = some_rows(a_learner(tiny_model, tmp_path))
    whole = gradients(a_learner(tiny_model, tmp_path, lora=lora), rows, monkeypatch)
    small = gradients(a_learner(tiny_model, tmp_path, lora=lora, micro_batch_tokens=16), rows, monkeypatch)
    assert close(whole, small)
    twice = a_learner(tiny_model, tmp_path, '{"gradient_checkpointing": true}', lora=lora)
    assert close(whole, gradients(twice, rows, monkeypatch))
    assert twice.model.is_activation_checkpointing
    monkeypatch.setattr(learner_module, "can_score", lambda model: False)
    assert close(whole, gradients(a_learner(tiny_model, tmp_path, lora=lora), rows, monkeypatch))


def test_rows_without_advantage_count_as_tokens_but_cost_no_pass(tiny_model, tmp_path, monkeypatch):
    learner = a_learner(tiny_model, tmp_path)
    rows = some_rows(learner)
    passed = []
    compute = learner._trainer._compute_loss
    monkeypatch.setattr(
        learner._trainer, "_compute_loss", lambda m, b: passed.append(b["prompt_ids"].size(0)) or compute(m, b)
    )
    update = learner.update(rows)
    assert sum(passed) == sum(row.advantage != 0 for row in rows) < len(rows)
    assert update.trained_tokens == sum(sum(row.mask) for row in rows)


def test_a_step_without_any_advantage_still_makes_one_update(tiny_model, tmp_path):
    learner = a_learner(tiny_model, tmp_path)
    rows = [TrainingRow(r.prompt_ids, r.completion_ids, r.mask, r.logprobs, 0.0) for r in some_rows(learner)]
    update = learner.update(rows)
    assert (update.policy_loss, update.gradient_norm) == (0.0, 0.0)
    assert learner.update([]).trained_tokens == 0


@pytest.mark.parametrize("lora", [None, LoraSettings(4, 8)])
def test_kl_is_zero_for_the_base_model_and_rises_with_training(tiny_model, tmp_path, lora):
    learner = a_learner(tiny_model, tmp_path, lora=lora, learning_rate=1e-2)
    rows = some_rows(learner)
    assert learner.update(rows).kl == pytest.approx(0.0, abs=1e-6)
    trained = some_rows(learner)
    assert learner.update(trained).kl > 1e-5


@pytest.mark.parametrize("lora", [None, LoraSettings(4, 8)])
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tiny_model, tmp_path, lora):
    first = a_learner(tiny_model, tmp_path, lora=lora, warmup_steps=3)
    rows = some_rows(first)
    for _ in range(2):
        before = first.weights_digest()
        first.update(rows)
    assert first.weights_digest() != before
    folder = tmp_path / "saved"
    folder.mkdir()
    first.save(folder)
    expected = first.update(rows)
    second = a_learner(tiny_model, tmp_path, lora=lora, warmup_steps=3)
    second.load(folder)
    update = second.update(rows)
    assert update.learning_rate == expected.learning_rate
    assert update.policy_loss == pytest.approx(expected.policy_loss, abs=1e-6)
    assert first.weights_digest() == second.weights_digest()


@pytest.mark.parametrize("lora", [None, LoraSettings(4, 8)])
def test_weights_alone_begin_a_new_training_with_a_fresh_optimizer(tiny_model, tmp_path, lora):
    first = a_learner(tiny_model, tmp_path, lora=lora, warmup_steps=3)
    rows = some_rows(first)
    for _ in range(2):
        first.update(rows)
    folder = tmp_path / "saved"
    folder.mkdir()
    first.save(folder)
    second = a_learner(tiny_model, tmp_path, lora=lora, warmup_steps=3)
    second.load_weights(folder)
    assert second.weights_digest() == first.weights_digest()
    assert second.update(rows).learning_rate == 0.0 < first.update(rows).learning_rate


@pytest.mark.parametrize(
    ("saved", "loaded", "text"),
    [
        (None, LoraSettings(4, 8), "holds no adapter, and this run has `algorithm.lora`"),
        (LoraSettings(4, 8), None, "holds an adapter, and this run has no `algorithm.lora`"),
        (LoraSettings(4, 8), LoraSettings(8, 16), r"is \(4, \d+\) in the checkpoint and \(8, \d+\) here"),
    ],
)
def test_weights_that_do_not_fit_are_a_wrong_configuration(tiny_model, tmp_path, saved, loaded, text):
    folder = tmp_path / "saved"
    folder.mkdir()
    a_learner(tiny_model, tmp_path, lora=saved).save(folder)
    with pytest.raises(RunError, match=text) as caught:
        a_learner(tiny_model, tmp_path, lora=loaded).load_weights(folder)
    assert caught.value.cause is Cause.CONFIG_INVALID


def test_weights_of_another_model_are_a_wrong_configuration(tiny_model, tmp_path):
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "saved"
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model))
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(str(folder))
    with pytest.raises(RunError, match=r"do not fit this run's model: .* in the checkpoint and ") as caught:
        a_learner(tiny_model, tmp_path).load_weights(folder)
    assert caught.value.cause is Cause.CONFIG_INVALID


@pytest.mark.parametrize("limit", [1 << 16, 1 << 20])
def test_a_checkpoint_that_does_not_fit_is_a_failure_of_the_storage(tiny_model, tmp_path, limit):
    learner = a_learner(tiny_model, tmp_path)
    learner.update(some_rows(learner))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # a write beyond it fails like one on a full disk
    try:
        with pytest.raises((SafetensorError, RuntimeError)) as caught:
            learner.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    # The weights have 0.6 MB, the optimizer's state twice as much.
    assert (tmp_path / "training_state.pt").exists() == (limit == 1 << 20)
    assert failure_of(caught.value).cause is Cause.STORAGE_FAILED


def test_warm_up_raises_the_learning_rate_and_then_keeps_it(tiny_model, tmp_path):
    learner = a_learner(tiny_model, tmp_path, warmup_steps=2, learning_rate=1e-3)
    rows = some_rows(learner)
    assert [learner.update(rows).learning_rate for _ in range(4)] == pytest.approx([0.0, 0.5e-3, 1e-3, 1e-3])


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_weights(tiny_model, tmp_path):
    learner = a_learner(tiny_model, tmp_path)
    rows = some_rows(learner)
    before = learner.weights_digest()
    bad = [TrainingRow(r.prompt_ids, r.completion_ids, r.mask, r.logprobs, math.nan) for r in rows]
    with pytest.raises(RunError) as caught:
        learner.update(bad)
    assert caught.value.cause is Cause.NON_FINITE_LOSS
    assert learner.weights_digest() == before


def test_the_exported_lora_model_is_whole_and_gives_the_policys_log_probabilities(tiny_model, tmp_path):
    from transformers import AutoModelForCausalLM

    learner = a_learner(tiny_model, tmp_path, lora=LoraSettings(4, 8), learning_rate=1e-2)
    rows = some_rows(learner)
    learner.update(rows)
    learner.update(rows)
    row = rows[0]
    ids = torch.tensor([row.prompt_ids + row.completion_ids])
    with torch.no_grad():
        expected = learner.model(input_ids=ids).logits
    folder = tmp_path / "final"
    folder.mkdir()
    learner.export(folder)
    assert model_problem(folder) == ""
    plain = AutoModelForCausalLM.from_pretrained(str(folder)).eval()
    with torch.no_grad():
        assert torch.allclose(plain(input_ids=ids).logits, expected, atol=1e-4)
    (folder / "model.safetensors").write_bytes(b"torn")
    assert "cannot be read" in model_problem(folder)


def test_a_model_that_was_stored_in_half_precision_is_exported_as_it_was_judged(tiny_model, tmp_path):
    from transformers import AutoModelForCausalLM

    half, final = tmp_path / "half", tmp_path / "final"
    shutil.copytree(tiny_model, half)
    AutoModelForCausalLM.from_pretrained(str(tiny_model)).to(torch.bfloat16).save_pretrained(str(half))
    assert '"bfloat16"' in (half / "config.json").read_text()
    learner = a_learner(half, tmp_path, learning_rate=1e-6)
    rows = some_rows(learner)
    learner.update(rows)
    judged = {name: value.clone() for name, value in learner.model.state_dict().items()}
    assert any(not torch.equal(value, value.to(torch.bfloat16).float()) for value in judged.values())
    final.mkdir()
    learner.export(final)
    plain = AutoModelForCausalLM.from_pretrained(str(final)).state_dict()
    assert set(plain) == set(judged)
    assert all(value.dtype == torch.float32 and torch.equal(value, judged[name]) for name, value in plain.items())


def test_micro_batches_stay_below_their_tokens_and_keep_groups_together():
    rows = [
        TrainingRow((group,) * 10, (1,) * length, (1,) * length, (0.0,) * length, 1.0)
        for group in range(3)
        for length in (2, 5, 3, 4)
    ]
    packed = pack(rows, tokens=35)
    assert sorted(map(id, (row for micro in packed for row in micro))) == sorted(map(id, rows))
    assert [{row.prompt_ids[0] for row in micro} for micro in packed] == [{0}, {1}, {2}]
    alone = pack([*rows, TrainingRow((9,) * 100, (1,), (1,), (0.0,), 1.0)], tokens=35)
    assert len(alone[-1]) == 1
