"""What the gateway needs of an engine: a policy that samples token ids, and a renderer between messages and ids.

Engines implement both protocols; tests implement them by script. The gateway calls `Policy.generate` from
its event loop, once for each model turn, many at a time: batching is the policy's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tuning_contract.run_document import Sampling

Message = Mapping[str, Any]
"""`{role, content: str[, tool_calls: [{type: "function", function: {name, arguments: object}}]][, name]}`."""
Tool = Mapping[str, Any]
"""One entry of the request's `tools`, as OpenAI defines it."""


@dataclass(frozen=True)
class GenerationRequest:
    """One model turn to sample."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    """At least 1; prompt and response together fit into the model's length."""
    seed: int
    """Seed of this turn's sampling noise (`tuning_contract.schedule.turn_seed`), 0 <= seed < 2**63."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    """Strings that end the reply. A policy may ignore them: the gateway cuts the generation itself."""


@dataclass(frozen=True)
class Generation:
    """What was sampled."""

    token_ids: tuple[int, ...]
    """With the end-of-turn token when the model ended its turn by itself."""
    logprobs: tuple[float, ...]
    """Natural logarithm of the sampled token's probability under `sampling.temperature`; one for each token."""
    finish: Literal["stop", "length"]
    seconds: float
    """Wall time of sampling, without the wait for a batch."""


class Policy(Protocol):
    """The model that is being tuned, with its newest weights."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Sample one reply; any exception becomes HTTP 500 `model_failed` and the outcome ModelError."""
        ...


@dataclass(frozen=True)
class Reply:
    """A generation as an assistant message."""

    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """`{name: str, arguments: object}`."""


class Renderer(Protocol):
    """Tokenizer and chat template. All methods are pure and quick; they run in the gateway's event loop."""

    @property
    def end_of_turn(self) -> tuple[int, str]:
        """Id and text of the token that ends an assistant turn."""
        ...

    @property
    def parses_tool_calls(self) -> bool:
        """Whether `parse` finds tool calls; without it requests with `tools` are refused."""
        ...

    def text(self, messages: Sequence[Message], tools: Sequence[Tool], generation_prompt: bool) -> str:
        """The template's text, without tools when there are none; ValueError when it refuses the messages."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of rendered text; special tokens in it are recognised, none are added."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids without special tokens."""
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """The reply in sampled ids; without tools `Reply(decode(token_ids))`."""
        ...
