"""Moments: between the API's text, the contract's seconds and aware datetimes. Nothing here asks for the time."""

from datetime import UTC, datetime


def from_epoch(seconds: float) -> datetime:
    """The moment of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def from_text(text: str | None) -> datetime | None:
    """The moment of an RFC 3339 text; None for none."""
    return datetime.fromisoformat(text).astimezone(UTC) if text else None
