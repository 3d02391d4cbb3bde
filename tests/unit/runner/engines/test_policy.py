"""The batching policy and the renderer: what the gateway gets of them."""

import asyncio
import json
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

from tests.unit.runner.documents import REPOSITORY, a_run_document  # noqa: E402
from tuning_contract.causes import Cause  # noqa: E402
from tuning_contract.run_document import ModelSettings, Sampling  # noqa: E402
from tuning_runner.engines.trl.model import load_model, load_tokenizer  # noqa: E402
from tuning_runner.engines.trl.policy import BatchedPolicy, BatchLimits  # noqa: E402
from tuning_runner.engines.trl.renderer import TokenizerRenderer  # noqa: E402
from tuning_runner.engines.trl.sampling import SampledReply, Sampler  # noqa: E402
from tuning_runner.episodes.errors import RunError  # noqa: E402
from tuning_runner.episodes.policy import GenerationRequest  # noqa: E402

pytestmark = pytest.mark.model
CHAT = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]


class ScriptedSampler:
    """Replies with the seed; remembers the sizes of its batches and whether gradients were off."""

    def __init__(self, error: Exception | None = None) -> None:
        self.batches: list[int] = []
        self.error = error

    def sample(self, requests):
        assert not torch.is_grad_enabled()
        self.batches.append(len(requests))
        if self.error is not None:
            raise self.error
        return [SampledReply((request.seed,), (-0.5,), request.seed % 2 == 0, 0.25) for request in requests]


def a_request(seed=1, prompt=10) -> GenerationRequest:
    return GenerationRequest(tuple(range(prompt)), 5, seed, Sampling())


def a_policy(sampler, expected=4, **limits) -> BatchedPolicy:
    return BatchedPolicy(sampler, BatchLimits(**{"quiet_seconds": 0.05} | limits), lambda: expected)


async def test_requests_that_come_together_are_sampled_together():
    sampler = ScriptedSampler()
    policy = a_policy(sampler, expected=4, quiet_seconds=10.0)
    replies = await asyncio.gather(*(policy.generate(a_request(seed)) for seed in range(4)))
    assert sampler.batches == [4]
    assert [(reply.token_ids, reply.finish) for reply in replies] == [
        ((0,), "stop"), ((1,), "length"), ((2,), "stop"), ((3,), "length"),
    ]  # fmt: skip
    usage = policy.take_usage()
    assert (usage.tokens, usage.entropy) == (4, 1.0)
    assert policy.take_usage().tokens == 0
    policy.close()


async def test_a_batch_starts_after_a_quiet_while_when_some_episodes_do_not_ask():
    sampler = ScriptedSampler()
    policy = a_policy(sampler, expected=4)
    started = time.monotonic()
    await asyncio.gather(policy.generate(a_request(0)), policy.generate(a_request(1)))
    assert sampler.batches == [2]
    assert 0.05 <= time.monotonic() - started < 2
    policy.close()


async def test_a_batch_holds_no_more_rows_and_tokens_than_allowed():
    sampler = ScriptedSampler()
    policy = a_policy(sampler, expected=100, rows=3, tokens=40)
    requests = [a_request(seed) for seed in range(4)] + [a_request(9, prompt=100)]
    replies = await asyncio.gather(*(policy.generate(request) for request in requests))
    assert sampler.batches == [2, 2, 1]
    assert [reply.token_ids[0] for reply in replies] == [0, 1, 2, 3, 9]
    policy.close()


async def test_a_failure_of_the_model_reaches_its_requests_and_the_engine_and_nobody_after():
    error = RuntimeError("no memory")
    sampler = ScriptedSampler(error)
    policy = a_policy(sampler, expected=1)
    with pytest.raises(RuntimeError, match="no memory"):
        await policy.generate(a_request())
    assert policy.failure is error
    sampler.error = None
    assert (await policy.generate(a_request(8))).token_ids == (8,)
    policy.close()


class Cache:
    """Stands for the tensors of a batch."""


async def test_a_failure_of_the_model_does_not_keep_the_memory_of_its_batch():
    held: list[weakref.ref[Cache]] = []

    class FullSampler(ScriptedSampler):
        def sample(self, requests):
            cache = Cache()
            held.append(weakref.ref(cache))
            try:
                self._grow(cache)
            except RuntimeError as error:
                raise RuntimeError("no memory for the batch") from error

        def _grow(self, cache):
            larger = Cache()
            held.append(weakref.ref(larger))
            raise RuntimeError("no memory")

    policy = a_policy(FullSampler(), expected=1)
    with pytest.raises(RuntimeError, match="no memory for the batch"):
        await policy.generate(a_request())
    assert str(policy.failure) == "no memory for the batch"
    assert [reference() for reference in held] == [None, None]
    policy.close()


async def test_a_request_whose_client_is_gone_is_not_sampled():
    sampler = ScriptedSampler()
    policy = a_policy(sampler, expected=3, quiet_seconds=0.3)
    gone = asyncio.create_task(policy.generate(a_request(1)))
    stays = asyncio.create_task(policy.generate(a_request(2)))
    await asyncio.sleep(0.05)
    gone.cancel()
    assert (await stays).token_ids == (2,)
    assert sampler.batches == [1]
    policy.close()


async def test_the_policy_is_not_idle_before_the_batch_of_a_request_that_is_gone_is_sampled():
    began, may_end = threading.Event(), threading.Event()

    class SlowSampler(ScriptedSampler):
        def sample(self, requests):
            began.set()
            assert may_end.wait(30)
            return super().sample(requests)

    sampler = SlowSampler()
    policy = a_policy(sampler, expected=1)
    gone = asyncio.create_task(policy.generate(a_request(1)))
    assert await asyncio.to_thread(began.wait, 30)
    gone.cancel()
    waiting = asyncio.ensure_future(asyncio.to_thread(policy.wait_until_idle))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert sampler.batches == []
    may_end.set()
    await waiting
    assert sampler.batches == [1]
    policy.close()


@pytest.mark.parametrize("error", [None, RuntimeError("no memory")])
async def test_what_a_batch_that_was_cut_off_sampled_is_known_once_the_policy_is_idle(error):
    began, may_end = threading.Event(), threading.Event()

    class SlowSampler(ScriptedSampler):
        def sample(self, requests):
            began.set()
            assert may_end.wait(30)
            return super().sample(requests)

    policy = a_policy(SlowSampler(error), expected=1)
    gone = asyncio.create_task(policy.generate(a_request(1)))
    assert await asyncio.to_thread(began.wait, 30)
    gone.cancel()
    may_end.set()
    policy.wait_until_idle()  # the event loop waits with it, as slow as it can be
    assert policy.failure is error
    assert policy.take_usage().tokens == (1 if error is None else 0)
    await asyncio.sleep(0.1)
    assert policy.take_usage().tokens == 0
    policy.close()


async def test_the_tiny_model_answers_through_policy_and_renderer(tiny_model):
    run = a_run_document(tiny_model)
    loaded = load_model(run.model, load_tokenizer(run.model))
    renderer = TokenizerRenderer(loaded.tokenizer, loaded.end_tokens)
    policy = a_policy(Sampler(loaded.model, loaded.end_tokens), expected=1)
    prompt = renderer.encode(renderer.text([{"role": "user", "content": "What is 1 + 2?"}], (), True))
    replies = [await policy.generate(GenerationRequest(prompt, 4, seed, Sampling())) for seed in range(8)]
    assert any(reply.token_ids[-1] == renderer.end_of_turn[0] and reply.finish == "stop" for reply in replies)
    assert any(renderer.parse(reply.token_ids, ()).content.strip().isdigit() for reply in replies)
    policy.close()


def test_the_renderer_knows_the_token_that_ends_a_turn(tiny_model):
    tokenizer = load_tokenizer(a_run_document(tiny_model).model)
    renderer = TokenizerRenderer(tokenizer, frozenset({tokenizer.eos_token_id}))
    assert renderer.end_of_turn == (tokenizer.eos_token_id, "<|im_end|>")
    assert renderer.text(CHAT, (), False) == "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    assert renderer.is_prefix_preserving
    assert not renderer.parses_tool_calls


def test_the_runs_own_template_replaces_the_models(tiny_model):
    template = REPOSITORY / "images/examples/math-agent/chat.jinja"
    settings = ModelSettings(str(tiny_model), 64, 4, chat_template_path=str(template))
    tokenizer = load_tokenizer(settings)
    renderer = TokenizerRenderer(tokenizer, frozenset({tokenizer.eos_token_id}))
    assert renderer.text(CHAT, (), False) == "Q A<|im_end|>\n"
    other = TokenizerRenderer(load_tokenizer(ModelSettings(str(tiny_model), 64, 4)), frozenset())
    assert renderer.template_digest != other.template_digest


def test_a_template_that_rewrites_the_past_is_noticed_and_a_broken_one_refused(tiny_model):
    tokenizer = load_tokenizer(a_run_document(tiny_model).model)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content if loop.last else '...' }}{% endfor %}"
    assert not TokenizerRenderer(tokenizer, frozenset()).is_prefix_preserving
    for template in ("{{ raise_exception('no such role') }}", "{% for", ""):
        tokenizer.chat_template = template
        with pytest.raises(RunError) as caught:
            TokenizerRenderer(tokenizer, frozenset())
        assert caught.value.cause is Cause.CONFIG_INVALID


def test_a_folder_without_a_model_is_refused_by_its_content(tiny_model, tmp_path):
    (tmp_path / "weights.bin").write_text("x")
    with pytest.raises(RunError, match=r"has no config\.json \(weights\.bin\)"):
        load_tokenizer(ModelSettings(str(tmp_path), 64, 4))
    with pytest.raises(RunError, match="no such folder"):
        load_tokenizer(ModelSettings(str(tmp_path / "gone"), 64, 4))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    with pytest.raises(RunError) as caught:
        load_tokenizer(ModelSettings(str(tmp_path), 64, 4))
    assert caught.value.cause is Cause.CONFIG_INVALID


def test_a_length_beyond_the_models_positions_is_refused(tiny_model):
    settings = ModelSettings(str(tiny_model), 4096, 4)
    with pytest.raises(RunError, match=r"`model\.maxModelLength` 4096 is more than the model's 2048 positions"):
        load_model(settings, load_tokenizer(settings))
