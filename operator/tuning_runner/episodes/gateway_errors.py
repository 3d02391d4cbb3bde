"""The gateway's typed errors: codes, HTTP status and body.

Raised by everything behind the gateway, turned into responses by it. Client libraries retry 408, 409, 429
and 5xx by themselves, so only a failure of the model has such a status.
"""

from typing import Any

from tuning_runner.episodes.turns import FailureKind, GatewayFailure

HEADER = "X-Agent-Tuning-Error"
"""Response header that carries the code, so that nobody takes a proxy's error page for ours."""

INVALID_REQUEST = "invalid_request"
UNSUPPORTED_PARAMETER = "unsupported_parameter"
UNSUPPORTED_CONTENT = "unsupported_content"
TOOLS_WITHOUT_PARSER = "tools_without_parser"
INVALID_KEY = "invalid_key"
TURN_LIMIT = "turn_limit"
CONTEXT_LENGTH = "context_length"
EPISODE_CLOSED = "episode_closed"
MODEL_FAILED = "model_failed"

_STATUS = {INVALID_KEY: 401, EPISODE_CLOSED: 410, MODEL_FAILED: 500}
_KIND = {
    TURN_LIMIT: FailureKind.LIMIT,
    CONTEXT_LENGTH: FailureKind.LIMIT,
    EPISODE_CLOSED: FailureKind.CLOSED,
    MODEL_FAILED: FailureKind.MODEL,
}


class GatewayError(Exception):
    """One refusal or failure, as the client will see it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = GatewayFailure(_KIND.get(code, FailureKind.REFUSED), code, message)

    @property
    def status(self) -> int:
        """HTTP status; 400 for all that is the request's own doing."""
        return _STATUS.get(self.failure.code, 400)

    def body(self) -> dict[str, Any]:
        """The response's JSON, in OpenAI's form."""
        return {
            "error": {
                "type": f"agent_tuning_{self.failure.kind.value}",
                "code": self.failure.code,
                "message": self.failure.message,
                "param": None,
            }
        }
