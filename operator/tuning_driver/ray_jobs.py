"""Ray's Jobs REST API, as far as one job needs it.

`follow` calls it. The behaviour it relies on was observed on Ray 2.60: a duplicate submission answers 500
with "already exists" in a traceback, an unknown job 404 in plain text, a missing token 401. Nothing here
stops or deletes a job: a Ray job id must never be used twice, and a lost driver pod is not a lost run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from tuning_driver.http_client import Answer, HttpClient, UnreachableError

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


class SubmissionRefusedError(Exception):
    """Ray answered, and the answer was no."""


@dataclass(frozen=True)
class JobState:
    """What Ray says of a job."""

    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    message: str = ""
    exit_code: int | None = None
    """Exit code of the entrypoint; negative for a signal, None when it never ran."""

    @property
    def terminal(self) -> bool:
        """Whether it will not change any more."""
        return self.status in TERMINAL


@dataclass(frozen=True)
class Submission:
    """The job to run."""

    id: str
    entrypoint: str
    environment: Mapping[str, str]
    """Variables of the entrypoint's process."""
    metadata: Mapping[str, str]


class RayJobs:
    """One cluster's jobs."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def state(self, job_id: str) -> JobState | None:
        """The job's state; None when Ray does not know it.

        Raises:
            UnreachableError: no answer, a refused token, or an answer that is not the Jobs API's.
        """
        answer = self._client.get(f"/api/jobs/{quote(job_id, safe='')}")
        if answer.status == 404 and "does not exist" in answer.text:
            return None
        if answer.status != 200:
            raise UnreachableError(_describe("job status", answer))
        document = answer.document()
        if "status" not in document:
            raise UnreachableError(_describe("job status", answer))
        exit_code = document.get("driver_exit_code")
        return JobState(
            status=str(document["status"]),
            message=str(document.get("message") or ""),
            exit_code=int(exit_code) if exit_code is not None else None,
        )

    def submit(self, submission: Submission) -> bool:
        """Start the job: True when this call did, False when it existed already.

        Raises:
            UnreachableError: no answer or a refused token; the job may exist nevertheless.
            SubmissionRefusedError: Ray refused it, with Ray's words.
        """
        document = {
            "entrypoint": submission.entrypoint,
            "submission_id": submission.id,
            "runtime_env": {"env_vars": dict(submission.environment)},
            "metadata": dict(submission.metadata),
        }
        answer = self._client.post("/api/jobs/", document)
        if answer.status == 200:
            return True
        if "already exists" in answer.text:
            return False
        if answer.status in (401, 403, 404, 429, 502, 503, 504):
            raise UnreachableError(_describe("submission", answer))
        raise SubmissionRefusedError(_describe("submission", answer))

    def logs(self, job_id: str) -> str:
        """Everything that the entrypoint printed, at most what Ray kept. UnreachableError as in `state`."""
        answer = self._client.get(f"/api/jobs/{quote(job_id, safe='')}/logs")
        if answer.status != 200:
            raise UnreachableError(_describe("job logs", answer))
        return str(answer.document().get("logs") or "")


def _describe(what: str, answer: Answer) -> str:
    """One line: the last line of a traceback is the one that says something."""
    lines = [line for line in answer.text.strip().splitlines() if line.strip()]
    return f"{what}: HTTP {answer.status}: {lines[-1].strip()[:500] if lines else 'empty answer'}"
