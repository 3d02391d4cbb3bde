"""One model turn as it was sampled, and the session through which an episode reaches the model.

The gateway makes them; the runner reads outcome and rows from them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tuning_contract.run_document import Sampling
from tuning_runner.episodes.policy import Message


@dataclass(frozen=True)
class Turn:
    """One finished model turn: the exact ids that were sampled, never re-tokenised."""

    number: int
    """From 0, in the order in which the requests came."""
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One for each completion id, natural logarithm, under the turn's temperature."""
    finish: str
    """`stop`, `length` or `tool_calls`."""
    seconds: float
    seed: int
    sampling: Sampling
    messages: tuple[Message, ...]
    """The request's messages."""
    reply: Message
    """The assistant message that the client got."""
    stitched: bool
    """The prompt continues an earlier turn's ids."""
    drifted: bool
    """Rendering the whole conversation anew would have given other ids; stitching kept the sampled ones."""


class FailureKind(StrEnum):
    """What a typed error of the gateway says about the episode."""

    MODEL = "model"
    """The policy failed: nobody's fault but the infrastructure's."""
    REFUSED = "refused"
    """The request asks for what training cannot honour; asking again cannot help."""
    LIMIT = "limit"
    """Turns or the model's length are used up."""
    CLOSED = "closed"
    """The try is over."""


@dataclass(frozen=True)
class GatewayFailure:
    """A typed error that the gateway gave to a client of this session."""

    kind: FailureKind
    code: str
    message: str


class ModelSession(Protocol):
    """One try of one episode: where its user code finds the model, and what it did there."""

    @property
    def base_url(self) -> str:
        """`http://host:port/ep/<run attempt>/<episode>/<try>/v1`."""
        ...

    @property
    def key(self) -> str:
        """Bearer key, valid for this try only."""
        ...

    @property
    def model_name(self) -> str:
        """What to put into `model`."""
        ...

    def turns(self) -> tuple[Turn, ...]:
        """Finished turns, by number."""
        ...

    @property
    def failures(self) -> tuple[GatewayFailure, ...]:
        """Typed errors given so far, oldest first."""
        ...

    @property
    def last_failure(self) -> GatewayFailure | None:
        """The newest answer's typed error; None when the newest answer was a turn, or there was none."""
        ...

    @property
    def unresolved_failure(self) -> GatewayFailure | None:
        """A failure of the model whose request, however often it was sent, got no turn; None without one."""
        ...

    @property
    def pending(self) -> int:
        """Requests that wait for the policy."""
        ...

    def close(self) -> None:
        """Refuse all further requests with 410 `episode_closed`."""
        ...
