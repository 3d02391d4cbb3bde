"""How an episode ended, from what its worker said and what the gateway saw. Pure.

The runner asks `after_workflow`, then - if the episode is to be graded - `after_judge`.
An infrastructure failure is never a reward.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuning_contract.outcomes import Outcome
from tuning_runner.episodes import exceptions
from tuning_runner.episodes.record import EpisodeError
from tuning_runner.episodes.turns import FailureKind, GatewayFailure, ModelSession

STUCK = "stuck"
"""Status of an order whose worker was killed at its deadline."""
DIED = "died"
"""Status of an order whose worker ended by itself."""
_TEXT = 4000


@dataclass(frozen=True)
class Ending:
    """Where the episode stands."""

    outcome: Outcome
    error: EpisodeError | None = None
    retry: bool = True
    """Whether another try can help, if the outcome is an infrastructure failure."""


@dataclass(frozen=True)
class JudgeFailure:
    """The judge's own code is wrong: the run ends."""

    text: str


def after_workflow(reply: Mapping[str, Any], session: ModelSession) -> Ending:
    """The outcome of a workflow's end.

    Args:
        reply: the worker's answer, `{status: returned | raised | timeout | stuck | died, error?}`.
        session: the episode's model session, after the workflow's end.
    """
    status = reply["status"]
    if status == DIED:
        return Ending(Outcome.LOST, EpisodeError("worker", "WorkerDied", reply["text"]))
    failure = session.last_failure
    if status in ("timeout", STUCK):
        return _at_the_deadline(session.unresolved_failure or failure, session)
    if session.unresolved_failure is not None:
        # Also when the workflow swallowed it and went on: a reply that never came must not become a reward.
        return _model_error(session.unresolved_failure)
    if failure is not None and failure.kind is FailureKind.LIMIT:
        return _at_a_limit(failure, session)
    if failure is not None and failure.kind is FailureKind.REFUSED:
        return _model_error(failure)
    if status == "raised":
        return _raised(reply["error"], session)
    return Ending(Outcome.COMPLETED)


def _at_the_deadline(failure: GatewayFailure | None, session: ModelSession) -> Ending:
    unhealthy = failure is not None and failure.kind is FailureKind.MODEL
    error = EpisodeError("workflow", "SecondsLimit", "the episode reached limits.seconds")
    if session.turns() and not unhealthy:
        return Ending(Outcome.LIMIT_REACHED, error)
    text = "limits.seconds passed before a model turn had finished"
    if failure is not None:
        text += f"; the gateway's last answer was {failure.code}: {failure.message}"
    return Ending(Outcome.TIMED_OUT, EpisodeError("workflow", "SecondsLimit", text))


def _at_a_limit(failure: GatewayFailure, session: ModelSession) -> Ending:
    outcome = Outcome.LIMIT_REACHED if session.turns() else Outcome.TIMED_OUT
    # A first prompt that is too long is too long in the next try as well.
    return Ending(outcome, EpisodeError("gateway", failure.code, failure.message), retry=False)


def _model_error(failure: GatewayFailure) -> Ending:
    refused = failure.kind is FailureKind.REFUSED
    error = EpisodeError("workflow" if refused else "gateway", failure.code, failure.message)
    return Ending(Outcome.MODEL_ERROR, error, retry=not refused)


def _raised(error: Mapping[str, Any], session: ModelSession) -> Ending:
    described = EpisodeError("workflow", error["type"], error["text"])
    if error["category"] == exceptions.OWN:
        return Ending(Outcome.AGENT_ERROR, described)
    model_failed = any(failure.kind is FailureKind.MODEL for failure in session.failures)
    if error["category"] == exceptions.SERVICE and (model_failed or session.pending):
        # The broken connection was the one to the model: it had failed, or had not answered in the client's time.
        return Ending(Outcome.MODEL_ERROR, EpisodeError("gateway", error["type"], error["text"]))
    return Ending(Outcome.ENVIRONMENT_ERROR, described)


def after_judge(reply: Mapping[str, Any], ending: Ending) -> Ending | JudgeFailure:
    """The outcome of a judge's end; `ending` is the workflow's, and stays when the judge gave a reward."""
    status = reply["status"]
    if status == DIED:
        return Ending(Outcome.LOST, EpisodeError("worker", "WorkerDied", reply["text"]))
    if status in ("timeout", STUCK):
        text = "the judge took longer than `rollout.limits.seconds`: see why it waits, or raise that limit"
        return Ending(Outcome.JUDGE_ERROR, EpisodeError("judge", "TimeoutError", text))
    if status == "raised":
        error = reply["error"]
        if error["category"] == exceptions.OWN:
            return JudgeFailure(f"the judge raised {error['text']}")
        return Ending(Outcome.JUDGE_ERROR, EpisodeError("judge", error["type"], error["text"]))
    problem = reward_problem(reply["reward"])
    return JudgeFailure(f"the judge returned {problem}") if problem else ending


def ungraded(ending: Ending, failure: JudgeFailure) -> Ending:
    """The end of a workflow that was cut off and whose judge could make nothing of the last reply: no reward."""
    if ending.error is None:
        return ending
    text = f"{ending.error.text}; no grade for the last reply in place of a response: {failure.text}"
    return replace(ending, error=replace(ending.error, text=text[:_TEXT]))


def reward_problem(reward: Any) -> str:
    """What is wrong with a reward in words; empty when it is a finite number."""
    if reward is None:
        return "no reward"
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return f"a reward that is not finite: {reward}"
    return ""
