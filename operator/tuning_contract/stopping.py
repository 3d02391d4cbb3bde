"""The right to stop an attempt: a token that the operator alone can make, and its digest, which the pod may know.

The operator puts the digest into the sidecar's variables and sends the token with `POST /stop`; the sidecar compares.
Who can read the pod cannot stop the training with what is found there.
"""

import hashlib
import hmac


def stop_token(key: str, run_uid: str, attempt: int) -> str:
    """The bearer token for one attempt, in hexadecimal digits: HMAC-SHA256 under the operator's key (RFC 2104)."""
    return hmac.new(key.encode(), f"{run_uid}/{attempt}".encode(), hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    """What the pod knows of the token: its SHA-256, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()
