"""Whether a step must fail the attempt, and under which cause.

Engines call `step_failure` after each step, before training on it. Pure.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tuning_contract.causes import Cause
from tuning_contract.outcomes import Outcome
from tuning_runner.groups.advantages import (
    FailedEpisode,
    failed_ratio,
    is_infrastructure_failure,
    is_refused,
    is_scored,
)


@dataclass(frozen=True)
class StepFailure:
    """The attempt ends here."""

    cause: Cause
    message: str


def step_failure(episodes: Sequence[FailedEpisode], max_failed_ratio: float) -> StepFailure | None:
    """The failure of a step, or None when it may train.

    - No scored episode: WorkflowError with the first error of the agent's own code, unless infrastructure
      failures outnumber those; then as below.
    - Infrastructure failures above `max_failed_ratio` of all episodes: JudgeUnavailable or
      EnvironmentUnavailable when they are all of that kind, else EpisodeFailures.

    A request that the gateway refused (a ModelError whose error stands at `workflow`) is the agent's own doing, as an
    AgentError is.
    """
    if not episodes:
        return None
    nothing_scored = not any(is_scored(episode) for episode in episodes)
    own = [episode for episode in episodes if episode.outcome == Outcome.AGENT_ERROR or is_refused(episode)]
    failed = [episode for episode in episodes if is_infrastructure_failure(episode)]
    if nothing_scored and len(own) >= len(failed):
        return StepFailure(
            Cause.WORKFLOW_ERROR, _message("no episode of the step was scored", episodes, own or episodes)
        )
    ratio = failed_ratio(episodes)
    if nothing_scored or ratio > max_failed_ratio:
        summary = f"{ratio:.0%} of the step's episodes failed (maxFailedRatio {max_failed_ratio:g})"
        return StepFailure(_cause(failed), _message(summary, episodes, failed))
    return None


def _cause(failed: Sequence[FailedEpisode]) -> Cause:
    outcomes = {episode.outcome for episode in failed}
    if outcomes == {Outcome.JUDGE_ERROR}:
        return Cause.JUDGE_UNAVAILABLE
    if outcomes == {Outcome.ENVIRONMENT_ERROR}:
        return Cause.ENVIRONMENT_UNAVAILABLE
    return Cause.EPISODE_FAILURES


def _message(summary: str, episodes: Sequence[FailedEpisode], failed: Sequence[FailedEpisode]) -> str:
    counts = Counter(episode.outcome.value for episode in episodes)
    listed = ", ".join(f"{number} {name}" for name, number in counts.most_common())
    first = next((episode.error.text for episode in failed if episode.error is not None), "")
    return f"{summary}: {listed}" + (f"; the first error: {first}" if first else "")
