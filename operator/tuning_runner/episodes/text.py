"""Text that comes from user code, made such that it can be written down.

Called where such text enters the trainer (`workers`, `chat_request`) and, as a second defence, where it leaves it. JSON
and Python strings may hold half of a surrogate pair, which no UTF-8 file, console or result can carry.
"""

from typing import Any


def writable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair."""
    return text.encode(errors="replace").decode()


def writable_document(value: Any) -> Any:
    """The same JSON value with every string and key writable."""
    if isinstance(value, str):
        return writable(value)
    if isinstance(value, list):
        return [writable_document(item) for item in value]
    if isinstance(value, dict):
        return {writable(name): writable_document(item) for name, item in value.items()}
    return value
