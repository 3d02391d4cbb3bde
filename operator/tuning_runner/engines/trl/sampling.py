"""Batched sampling of replies with exact token ids and log-probabilities.

Called by `policy`, in its one thread. The loop is our own and not `model.generate`, for three reasons: the noise of a
row depends on the row's seed alone, a prompt that many rows share (the episodes of one group) is prefilled once, and
rows that have ended leave the batch. Not here: queues, chat templates, training.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache

_LEAST_SHARED_PREFIX = 8
"""Tokens: a shorter common beginning of all prompts is not worth a forward pass of its own."""
_COMPACT_BELOW = 0.8
"""The batch is cut to its living rows when they are fewer than this share: a cut copies the whole cache."""


@dataclass(frozen=True)
class SamplingRequest:
    """One reply to draw."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    seed: int
    """Of the noise of this reply: 0 <= seed < 2**63."""
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class SampledReply:
    """One drawn reply."""

    tokens: tuple[int, ...]
    """With the end token, if it was drawn."""
    logprobs: tuple[float, ...]
    """Log-probability of each token under softmax(logits / temperature), before the nucleus is cut."""
    ended: bool
    """The end token was drawn; otherwise the limit cut the reply."""
    entropy: float
    """Sum over the tokens of the entropy of that distribution, in nats."""


@dataclass
class _Rows:
    """The living rows of the batch; all tensors have them in their first dimension."""

    numbers: list[int]
    """Number of the request of each row."""
    cache: Any
    mask: torch.Tensor
    """(rows, cached tokens): 0 for padding."""
    position: torch.Tensor
    """(rows,): position of the next token."""
    logits: torch.Tensor
    """(rows, vocabulary): of the next token."""

    def select(self, places: list[int]) -> None:
        index = torch.tensor(places, device=self.mask.device)
        self.numbers = [self.numbers[place] for place in places]
        self.cache.batch_select_indices(index)
        self.mask, self.position, self.logits = self.mask[index], self.position[index], self.logits[index]


@dataclass
class _Reply:
    noise: torch.Tensor
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropy: float = 0.0
    ended: bool = False


class Sampler:
    """Draws replies from a causal language model (or a PEFT model around one) in evaluation mode.

    Args:
        model: the policy; the caller holds gradients off and its weights still while `sample` runs.
        end_tokens: ids that end a reply.
    """

    def __init__(self, model: Any, end_tokens: frozenset[int]) -> None:
        self._model = model
        self._end_tokens = end_tokens
        config = model.config.get_text_config()
        layers = set(getattr(config, "layer_types", None) or ["full_attention"])
        # With a sliding window the padding behind a shared beginning would move that beginning out of sight too early.
        self._may_share_prefix = layers == {"full_attention"} and getattr(config, "sliding_window", None) is None

    def sample(self, requests: Sequence[SamplingRequest]) -> list[SampledReply]:
        """All replies, in the order of the requests."""
        replies = [_Reply(noise=_noise(request)) for request in requests]
        rows = self._prefill(requests)
        while True:
            tokens = self._draw(rows, requests, replies)
            alive = [
                place for place, number in enumerate(rows.numbers) if not self._over(replies[number], requests[number])
            ]
            if not alive:
                break
            places = torch.tensor(alive, device=tokens.device)
            living = torch.zeros_like(rows.position).index_fill(0, places, 1)
            if len(alive) < _COMPACT_BELOW * len(rows.numbers):
                rows.select(alive)
                tokens, living = tokens[places], living[places]
            self._advance(rows, tokens)
            # A row that is over stays where it is, or it would pass the model's last position.
            rows.position = rows.position + living
        return [SampledReply(tuple(r.tokens), tuple(r.logprobs), r.ended, r.entropy) for r in replies]

    def _over(self, reply: _Reply, request: SamplingRequest) -> bool:
        return reply.ended or len(reply.tokens) >= request.max_new_tokens

    def _prefill(self, requests: Sequence[SamplingRequest]) -> _Rows:
        distinct = {prompt: place for place, prompt in enumerate(dict.fromkeys(request.prompt for request in requests))}
        prompts = list(distinct)
        shared = _common_prefix(prompts) if self._may_share_prefix and len(prompts) > 1 else 0
        shared = shared if shared >= _LEAST_SHARED_PREFIX else 0
        device = self._model.device
        cache = DynamicCache(config=self._model.config)
        if shared:
            beginning = torch.tensor([prompts[0][:shared]], device=device)
            self._model(input_ids=beginning, cache=cache, use_cache=True, logits_to_keep=1)
            cache.batch_select_indices(torch.zeros(len(prompts), dtype=torch.long, device=device))
        width = max(map(len, prompts)) - shared
        ids = torch.zeros((len(prompts), width), dtype=torch.long)
        mask = torch.zeros((len(prompts), shared + width), dtype=torch.long)
        mask[:, :shared] = 1
        for place, prompt in enumerate(prompts):
            rest = prompt[shared:]
            ids[place, width - len(rest) :] = torch.tensor(rest)
            mask[place, shared + width - len(rest) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, shared:],
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        rows = _Rows(list(range(len(prompts))), cache, mask, mask.sum(-1), output.logits[:, -1])
        if len(prompts) < len(requests):
            rows.select([distinct[request.prompt] for request in requests])
            rows.numbers = list(range(len(requests)))
        return rows

    def _draw(self, rows: _Rows, requests: Sequence[SamplingRequest], replies: list[_Reply]) -> torch.Tensor:
        """Draw one token for each row and note it, unless the row is over; shape (rows,)."""
        device = rows.logits.device
        heat = torch.tensor([requests[number].temperature for number in rows.numbers], device=device)
        logprobs = torch.log_softmax(rows.logits.float() / heat[:, None], dim=-1)
        probabilities = logprobs.exp()
        entropies = -(probabilities * logprobs).sum(-1)
        nucleus = torch.tensor([requests[number].top_p for number in rows.numbers], device=device)
        if bool((nucleus < 1).any()):
            probabilities = _cut_nucleus(probabilities, nucleus)
        noise = torch.stack([_next_noise(replies[number]) for number in rows.numbers]).to(device)
        # Inverse of the cumulative distribution, in double precision: one uniform number decides one token, so rounding
        # in the logits changes a token only when the number lies on an edge.
        cumulative = probabilities.double().cumsum(-1)
        tokens = torch.searchsorted(cumulative, noise[:, None] * cumulative[:, -1:], right=True).squeeze(-1)
        tokens = tokens.clamp(max=cumulative.size(-1) - 1)
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
        values = zip(rows.numbers, tokens.tolist(), chosen.tolist(), entropies.tolist(), strict=True)
        for number, token, logprob, entropy in values:
            reply = replies[number]
            if not self._over(reply, requests[number]):
                reply.tokens.append(token)
                reply.logprobs.append(logprob)
                reply.entropy += entropy
                reply.ended = token in self._end_tokens
        return tokens

    def _advance(self, rows: _Rows, tokens: torch.Tensor) -> None:
        rows.mask = torch.cat([rows.mask, rows.mask.new_ones((rows.mask.size(0), 1))], dim=1)
        output = self._model(
            input_ids=tokens[:, None],
            attention_mask=rows.mask,
            position_ids=rows.position[:, None],
            cache=rows.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        rows.logits = output.logits[:, -1]


def _noise(request: SamplingRequest) -> torch.Tensor:
    """Uniform numbers for all tokens of a reply, from its seed alone."""
    generator = torch.Generator().manual_seed(request.seed)
    return torch.rand(request.max_new_tokens, generator=generator, dtype=torch.float64)


def _next_noise(reply: _Reply) -> torch.Tensor:
    """The number for the next token; a row that is over gets any."""
    return reply.noise[min(len(reply.tokens), len(reply.noise) - 1)]


def _cut_nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Set all but the most probable tokens that together reach `top_p` to 0, and scale the rest to sum 1."""
    ordered, index = probabilities.sort(dim=-1, descending=True)
    kept = ordered.cumsum(-1) - ordered < top_p[:, None]
    cut = torch.zeros_like(probabilities).scatter(-1, index, ordered * kept)
    return cut / cut.sum(-1, keepdim=True)


def _common_prefix(prompts: Sequence[tuple[int, ...]]) -> int:
    """Length of the beginning that all prompts share, at most one token less than the shortest prompt."""
    first, last = min(prompts), max(prompts)
    length = next(
        (place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    return min(length, min(map(len, prompts)) - 1)
