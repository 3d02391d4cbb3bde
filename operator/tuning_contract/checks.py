"""Types of what was read from JSON that another process, or a user's code beside it, has written.

Used by the documents of this package when they parse. A document with a wrong type is no document: what cannot be
read must not become a verdict.
"""

from collections.abc import Mapping

LARGEST_COUNT = 10**11
"""No training has as many steps; JSON itself knows no bounds."""


def is_text(value: object) -> bool:
    """Whether it is a string that UTF-8 can carry: JSON's escapes allow half of a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_count(value: object) -> bool:
    """Whether it is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def is_number(value: object) -> bool:
    """Whether it is a number; NaN and infinity are, since a loss may become that."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_COUNT


def are_figures(value: object) -> bool:
    """Whether it is an object of numbers."""
    return isinstance(value, Mapping) and all(is_text(name) and is_number(number) for name, number in value.items())
