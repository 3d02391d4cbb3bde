"""What the driver asks the sidecar in the head pod: log, result, progress.

`follow` calls it. An unreachable sidecar never decides anything by itself, so most failures are None here.
"""

from tuning_contract.progress import Progress
from tuning_contract.result import RunResult
from tuning_driver.http_client import HttpClient, UnreachableError


class VolumeUnreadableError(UnreachableError):
    """The sidecar answers, but the run's volume does not."""


class Sidecar:
    """The sidecar of one attempt."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def log(self, offset: int) -> tuple[bytes, int]:
        """Bytes of the runner's log from `offset` on and the offset after them; no bytes when there is nothing new.

        Raises:
            UnreachableError: no answer.
        """
        answer = self._client.get(f"/log?offset={offset}")
        if answer.status != 200:
            return b"", offset
        following = answer.headers.get("x-next-offset", "")
        return answer.body, int(following) if following.isdigit() else offset + len(answer.body)

    def result(self) -> RunResult | None:
        """The run's result; None when there is none yet.

        Raises:
            UnreachableError: no answer, or one that is no result.
            VolumeUnreadableError: the sidecar says that it cannot read the volume.
        """
        answer = self._client.get("/result")
        if answer.status == 404:
            return None
        if answer.status == 500:
            raise VolumeUnreadableError(answer.text.strip()[:300])
        if answer.status != 200:
            raise UnreachableError(f"result: HTTP {answer.status}")
        try:
            return RunResult.from_text(answer.text)
        except ValueError as error:
            raise UnreachableError(f"result: {error}") from error

    def progress(self) -> Progress | None:
        """The newest figures, None when they cannot be had."""
        try:
            answer = self._client.get("/progress")
            return Progress.from_text(answer.body) if answer.status == 200 else None
        except (UnreachableError, ValueError):
            return None
