"""The sampler: exact ids and log-probabilities, whatever else is in the batch."""

import pytest

torch = pytest.importorskip("torch")

from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

from tuning_runner.engines.trl.sampling import Sampler, SamplingRequest  # noqa: E402

pytestmark = pytest.mark.model
END = 5
PROMPTS = (
    tuple(range(10, 30)),
    (*range(10, 26), 40, 41),
    (*range(10, 26), 42, 43, 44, 45, 46),
)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def a_request(prompt=PROMPTS[0], seed=1, **changes):
    return SamplingRequest(prompt=prompt, seed=seed, **{"max_new_tokens": 12, **changes})


def sample(model, *requests, end_tokens=frozenset({END})):
    with torch.no_grad():
        return Sampler(model, end_tokens).sample(requests)


def recomputed(model, request, reply):
    ids = torch.tensor([[*request.prompt, *reply.tokens]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].float() / request.temperature
    place = range(len(request.prompt) - 1, ids.size(1) - 1)
    return [torch.log_softmax(logits[p], -1)[t].item() for p, t in zip(place, reply.tokens, strict=True)]


def test_recorded_log_probabilities_equal_those_of_a_plain_forward_pass(model):
    requests = [
        a_request(prompt, seed, temperature=heat) for prompt in PROMPTS for seed in (1, 2) for heat in (1.0, 0.7)
    ]
    for request, reply in zip(requests, sample(model, *requests), strict=True):
        assert reply.logprobs == pytest.approx(recomputed(model, request, reply), abs=1e-4)
        assert reply.entropy > 0


def test_a_reply_does_not_depend_on_the_other_rows_of_its_batch(model):
    requests = [a_request(prompt, seed) for prompt in PROMPTS for seed in (1, 2, 3)]
    together = sample(model, *requests)
    alone = [sample(model, request)[0] for request in requests]
    assert [reply.tokens for reply in together] == [reply.tokens for reply in alone]
    assert len({reply.tokens for reply in together}) > 3


def test_a_reply_ends_with_the_end_token_or_at_its_own_limit(model):
    requests = [a_request(seed=seed, max_new_tokens=1 + seed) for seed in range(30)]
    replies = sample(model, *requests, end_tokens=frozenset(range(8)))
    for request, reply in zip(requests, replies, strict=True):
        assert reply.ended == (reply.tokens[-1] < 8)
        assert all(token >= 8 for token in reply.tokens[:-1])
        assert reply.ended or len(reply.tokens) == request.max_new_tokens
    assert {reply.ended for reply in replies} == {True, False}


def test_a_row_that_is_over_passes_no_position_while_the_others_go_on(model):
    seen = []

    class Watched:
        config, device = model.config, model.device

        def __call__(self, **inputs):
            if "position_ids" in inputs:
                seen.append(inputs["position_ids"].max(dim=1).values.tolist())
            return model(**inputs)

    requests = [a_request(seed=0, max_new_tokens=3), *(a_request(seed=seed) for seed in range(1, 7))]
    replies = sample(Watched(), *requests, end_tokens=frozenset())
    assert [len(reply.tokens) for reply in replies] == [3, *[12] * 6]
    start = len(PROMPTS[0])
    decoding = seen[1:]
    assert [positions[1] for positions in decoding] == list(range(start, start + 11))
    assert [positions[0] for positions in decoding] == [start, start + 1, *[start + 2] * 9]
    for request, reply in zip(requests, replies, strict=True):
        assert reply.logprobs == pytest.approx(recomputed(model, request, reply), abs=1e-4)


def test_a_small_nucleus_draws_the_most_probable_token_only(model):
    (reply,) = sample(model, a_request(top_p=1e-6))
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        greedy = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=END, pad_token_id=0)
    assert list(reply.tokens) == greedy[0, ids.size(1) :].tolist()


def test_sampled_frequencies_follow_the_distribution(model):
    replies = sample(model, *(a_request(seed=seed, max_new_tokens=1) for seed in range(4000)))
    counts = torch.bincount(torch.tensor([reply.tokens[0] for reply in replies]), minlength=64) / len(replies)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1].softmax(-1)
    assert (counts - expected).abs().max() < 0.02
