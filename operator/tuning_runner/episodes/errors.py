"""The ways in which a step ends without its episodes: exceptions that engines catch and turn into a result.

An episode that ends badly is no exception but an outcome in its record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuning_contract.causes import Cause

if TYPE_CHECKING:
    from tuning_runner.episodes.record import EpisodeRecord


class RunError(Exception):
    """Stops the run.

    Attributes:
        cause: what goes into result.json.
        message: one text for a person, the user's own traceback included where there is one.
        records: finished episodes of the step so far, for the journal.
    """

    def __init__(self, cause: Cause, message: str, records: tuple[EpisodeRecord, ...] = ()) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.records = records


class UserCodeError(RunError):
    """The judge raised or returned no finite reward, or user code cannot be loaded: cause WorkflowError."""

    def __init__(self, message: str, records: tuple[EpisodeRecord, ...] = ()) -> None:
        super().__init__(Cause.WORKFLOW_ERROR, message, records)


class EntrypointError(RunError):
    """An entry point is no `async def` with the right parameters, or is not there: cause ConfigInvalid."""

    def __init__(self, message: str) -> None:
        super().__init__(Cause.CONFIG_INVALID, message)
