"""Prompt ids of a request that continues an earlier turn, without re-tokenising what the policy sampled.

Text that is decoded and encoded again may come back as other ids than were sampled; training on those would
be off-policy. So a prompt that continues a turn is that turn's ids plus the encoding of the new text only.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tuning_runner.episodes.policy import Message, Renderer, Tool
from tuning_runner.episodes.turns import Turn


@dataclass(frozen=True)
class HeldTurn:
    """A finished turn that a later request may continue."""

    turn: Turn
    tools: tuple[Tool, ...]


@dataclass(frozen=True)
class Prompt:
    """Ids for the policy."""

    ids: tuple[int, ...]
    stitched: bool = False
    drifted: bool = False
    """Encoding the whole text would have given other ids."""


def prompt_of(
    renderer: Renderer, messages: tuple[Message, ...], tools: tuple[Tool, ...], held: Iterable[HeldTurn]
) -> Prompt:
    """The prompt of a request; ValueError when the template refuses the messages.

    The longest held turn whose messages and exact reply begin this request is continued. With a template
    that is not prefix-preserving (it prints earlier replies otherwise once they are history), or an edited
    reply, the conversation is rendered anew: still correct, but the next turn begins a row of its own.
    """
    text = renderer.text(messages, tools, generation_prompt=True)
    plain = renderer.encode(text)
    for candidate in sorted(held, key=lambda entry: -len(entry.turn.messages)):
        if not _continues(messages, tools, candidate):
            continue
        suffix = _new_text(renderer, messages[: len(candidate.turn.messages) + 1], tools, text)
        if suffix is None:
            continue
        ids = _closed_ids(renderer, candidate.turn) + renderer.encode(suffix)
        return Prompt(ids, stitched=True, drifted=ids != plain)
    return Prompt(plain)


def _continues(messages: tuple[Message, ...], tools: tuple[Tool, ...], held: HeldTurn) -> bool:
    known = len(held.turn.messages)
    return (
        len(messages) > known
        and messages[:known] == held.turn.messages
        and _said(messages[known]) == _said(held.turn.reply)
        and tools == held.tools
    )


def _said(message: Message) -> tuple[str, str, object]:
    """What makes two replies the same; frameworks add a `name` of their own to what they send back."""
    return message["role"], message["content"], message.get("tool_calls")


def _new_text(renderer: Renderer, history: tuple[Message, ...], tools: tuple[Tool, ...], whole: str) -> str | None:
    """What follows the reply's end-of-turn token in the whole text; None when the history is not its beginning."""
    beginning = renderer.text(history, tools, generation_prompt=False)
    _, end = renderer.end_of_turn
    place = beginning.rfind(end)
    if place < 0 or not whole.startswith(beginning):
        return None
    return whole[place + len(end) :]


def _closed_ids(renderer: Renderer, turn: Turn) -> tuple[int, ...]:
    """The turn's ids, with the end-of-turn token that a reply at the token limit lacks."""
    end, _ = renderer.end_of_turn
    ids = turn.prompt_ids + turn.completion_ids
    return ids if turn.completion_ids[-1:] == (end,) else (*ids, end)
