"""A good and a bad episode of a step, as text for the log. Pure.

Called by engines every few steps: a reward that rises for the wrong reason is seen here first.
"""

from collections.abc import Sequence

from tuning_runner.episodes.batch import EpisodeResult
from tuning_runner.episodes.policy import Message
from tuning_runner.groups import is_scored

_LONGEST = 400
"""Characters of one message."""


def transcripts(results: Sequence[EpisodeResult]) -> list[str]:
    """Lines that show the best and the worst scored episode; one of them when all rewards are equal."""
    scored = [result for result in results if is_scored(result.record) and result.turns]
    if not scored:
        return []
    good = max(scored, key=_reward)
    bad = min(scored, key=_reward)
    chosen = [("good", good), ("bad", bad)] if _reward(good) > _reward(bad) else [("typical", good)]
    return [line for word, result in chosen for line in _show(word, result)]


def _reward(result: EpisodeResult) -> float:
    return result.record.reward if result.record.reward is not None else 0.0


def _show(word: str, result: EpisodeResult) -> list[str]:
    record = result.record
    lines = [f"--- a {word} episode ({record.episode}): reward {_reward(result):.3g}, {len(result.turns)} turns"]
    seen: list[Message] = []
    for turn in result.turns:
        messages = list(turn.messages)
        # A conversation that goes on is shown once; an independent one from its beginning.
        new = messages[len(seen) :] if messages[: len(seen)] == seen else messages
        lines += [f"    {_line(message)}" for message in [*new, turn.reply]]
        seen = [*messages, turn.reply]
    return lines


def _line(message: Message) -> str:
    text = str(message.get("content") or "")
    if message.get("tool_calls"):
        text += f" {message['tool_calls']}"
    text = text.replace("\n", "\\n")
    return f"{message.get('role', '?')}: {text[:_LONGEST]}" + ("…" if len(text) > _LONGEST else "")
