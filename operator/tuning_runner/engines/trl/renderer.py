"""The gateway's `Renderer` over a Hugging Face tokenizer and its chat template.

Called by the gateway for every turn and by the preflight once. Not here: which ids are kept from earlier turns (the
gateway stitches), tool calls (no parser is configured in this version, so requests with tools are refused).
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from tuning_contract.causes import Cause
from tuning_runner.episodes.errors import RunError
from tuning_runner.episodes.policy import Message, Reply, Tool

_MARK = "MARK"
"""An assistant text that no template changes."""


class TokenizerRenderer:
    """Renders with the tokenizer's own template.

    Args:
        tokenizer: with its chat template set.
        end_tokens: ids that the model's generation settings name as ends.

    Raises:
        RunError: ConfigInvalid, when there is no template, or it cannot render a question and an answer.
    """

    def __init__(self, tokenizer: Any, end_tokens: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise RunError(Cause.CONFIG_INVALID, "the model has no chat template: set `model.chatTemplate`")
        try:
            self.text([{"role": "user", "content": _MARK}], (), True)
            self._end = self._find_end(end_tokens)
        except ValueError as error:
            message = f"the chat template cannot render a question and its answer: {error}"
            raise RunError(Cause.CONFIG_INVALID, message) from error

    def _find_end(self, end_tokens: frozenset[int]) -> int:
        """The token after an assistant's text when it is an end token, else the tokenizer's."""
        messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": _MARK}]
        after = self.encode(self.text(messages, (), False).rpartition(_MARK)[2])
        if after and after[0] in end_tokens:
            return after[0]
        if self._tokenizer.eos_token_id is None:
            raise ValueError("neither the template nor the tokenizer names a token that ends an assistant's turn")
        return int(self._tokenizer.eos_token_id)

    @property
    def end_of_turn(self) -> tuple[int, str]:
        """Id and text of the token that ends an assistant's turn."""
        return self._end, str(self._tokenizer.convert_ids_to_tokens(self._end))

    @property
    def parses_tool_calls(self) -> bool:
        """No parser yet."""
        return False

    @property
    def is_prefix_preserving(self) -> bool:
        """Whether a conversation's text is the beginning of its continuation's."""
        question, answer = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
        try:
            short = self.text([question, answer], (), False)
            return self.text([question, answer, question], (), False).startswith(short) and short.startswith(
                self.text([question], (), True)
            )
        except ValueError:
            return False

    @property
    def template_digest(self) -> str:
        """SHA-256 of the template's text, for the resume fingerprint."""
        return hashlib.sha256(str(self._tokenizer.chat_template).encode()).hexdigest()

    def text(self, messages: Sequence[Message], tools: Sequence[Tool], generation_prompt: bool) -> str:
        """The template's text; ValueError when the template refuses the messages."""
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=generation_prompt,
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return str(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids; special tokens in the text are recognised, none are added."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def parse(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """The reply's text."""
        return Reply(self.decode(token_ids))
