"""What the end of an attempt means for the run: it has succeeded, has failed, or goes on with another attempt.

The one place where it is decided whether to try again. Called by `status` with every verdict of the policies.
"""

from dataclasses import dataclass
from datetime import datetime

from tuning_contract.result import FAILED, STOPPED, SUCCEEDED
from tuning_operator.api.conditions import Phase
from tuning_operator.api.v1alpha1_lifecycle import RetryAction
from tuning_operator.engine import causes, figures
from tuning_operator.engine.contribution import Verdict
from tuning_operator.engine.world import World


@dataclass(frozen=True, slots=True)
class Ending:
    """An attempt that ends now."""

    verdict: Verdict
    phase: Phase
    """Of the run, from now on."""
    outcome: str
    """Of the attempt: Succeeded, Failed or Stopped."""
    message: str
    """What the status says."""
    counted: bool | None = None
    """Whether it counts for maxAttempts; None when it succeeded."""
    counted_failures: int = 0
    uncounted_failures: int = 0
    """Since the last new checkpoint, this one among them."""
    retry_time: datetime | None = None
    """Before which no other attempt begins."""


def of(world: World, verdict: Verdict) -> Ending:
    """Decide what becomes of the run."""
    if verdict.succeeded:
        return Ending(verdict, Phase.SUCCEEDED, SUCCEEDED, verdict.message)
    counted, uncounted = _failures_before(world, verdict)
    if verdict.cause is None:
        return Ending(verdict, Phase.SUSPENDING, STOPPED, verdict.message, False, counted, uncounted)
    retry = world.run.spec.retry
    action = RetryAction.FAIL if verdict.fatal else causes.action_for(verdict.cause, retry)
    counts = action is not RetryAction.RETRY_UNCOUNTED
    counted, uncounted = counted + counts, uncounted + (not counts)
    if action is RetryAction.FAIL:
        return Ending(verdict, Phase.FAILED, FAILED, verdict.message, counts, counted, uncounted)
    if (counts and counted >= retry.max_attempts) or uncounted >= causes.UNCOUNTED_LIMIT:
        message = _exhausted(verdict, counted if counts else uncounted, counts)
        return Ending(verdict, Phase.FAILED, FAILED, message, counts, counted, uncounted)
    due = world.now + causes.backoff(retry, counted if counts else 0)
    phase = Phase.SUSPENDING if world.run.spec.suspend else Phase.RETRYING
    message = f"attempt {world.attempt} failed: {verdict.message}; {_next(world, verdict, due)}"
    return Ending(verdict, phase, FAILED, message, counts, counted, uncounted, due)


def _failures_before(world: World, verdict: Verdict) -> tuple[int, int]:
    """Counted and uncounted failures before this one; none when this attempt has brought a new checkpoint."""
    attempt = world.run.status.attempt
    saved = figures.checkpoint_of(world, verdict).step or 0
    if saved > (attempt.first_step or 0):
        return 0, 0
    return attempt.counted_failures or 0, attempt.uncounted_failures or 0


def _exhausted(verdict: Verdict, failures: int, counted: bool) -> str:
    if failures == 1:
        return verdict.message
    limit = "`retry.maxAttempts`" if counted else f"the limit of {causes.UNCOUNTED_LIMIT} lost nodes and evictions"
    return f"{failures} attempts failed without a new checkpoint, which is {limit}; the last one: {verdict.message}"


def _next(world: World, verdict: Verdict, due: datetime) -> str:
    """Which attempt comes next, when, and from where."""
    step = figures.checkpoint_of(world, verdict).step
    source = f"the checkpoint of step {step}" if step else "the beginning"
    number = world.attempt + 1
    if world.run.spec.suspend:
        return f"attempt {number} begins from {source} when `suspend` is false"
    return f"attempt {number} begins from {source} when its pods are gone, not before {due:%H:%M:%S} UTC"
