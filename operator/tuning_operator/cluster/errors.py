"""The one mapping from the API server's HTTP status to the operator's own errors.

Used by `client`; everybody else decides by class.
"""

from collections.abc import Mapping
from typing import Any

from tuning_operator import errors


def from_answer(
    verb: str, resource: str, status: int, body: Mapping[str, Any], retry_after: str | None = None
) -> errors.ApiError:
    """Make the error of an answer.

    Args:
        verb: What was tried, in the words of RBAC.
        resource: On what, as plural and group.
        status: HTTP status, or the `code` of a Status object in a watch.
        body: The Status object, or an empty mapping.
        retry_after: The header of that name; only its form in whole seconds is understood.
    """
    message = str(body.get("message") or f"HTTP {status}")
    told = f"{verb} {resource}: {message}"
    if status == 403 and not _namespace_goes(body):
        return errors.Forbidden(message, status, verb=verb, resource=resource)
    if status == 404:
        return errors.NotFound(told, status)
    if status == 409:
        kind = errors.AlreadyExists if verb == "create" else errors.Conflict
        return kind(told, status)
    if status == 410:
        return errors.Gone(told, status)
    if status in (400, 422):
        return errors.Invalid(message, status)
    # 401, too: a token that has just been replaced, or a server that cannot check one now, is no missing right. And a
    # namespace that goes: soon the run is gone as well.
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    return errors.ApiUnavailable(told, status, retry_after=wait)


def _namespace_goes(body: Mapping[str, Any]) -> bool:
    """Whether nothing can be made because the namespace is being deleted: then no right is missing."""
    causes = (body.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


def no_answer(verb: str, resource: str, error: BaseException) -> errors.ApiUnavailable:
    """Make the error of a request that got no answer: a time-out, a broken connection, half an answer."""
    return errors.ApiUnavailable(f"{verb} {resource}: {type(error).__name__}: {error}".rstrip(": "))
