"""Verdict (c) and (d): the runner's own cause by the driver's mouth; without a word, what the sidecar still knows.

A Job with a podFailurePolicy makes no other driver while the last one is on its way out. On a dead node that is for
ever, so such a driver counts as lost when the node's patience is over; the cluster then is given back as always.
"""

from datetime import datetime, timedelta

from tuning_contract.causes import Cause
from tuning_contract.result import STOPPED, SUCCEEDED, RunResult
from tuning_contract.termination import EXIT_ATTEMPT_LOST, EXIT_FAILED, TerminationMessage
from tuning_operator.engine import diagnosis, evidence, facts, release
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.world import Reachability, World
from tuning_operator.settings import Settings

LATE_WORD = timedelta(seconds=5)
"""Job and pods are watched apart: the pod's last state may come after the Job's."""


def decide(world: World, settings: Settings) -> Contribution | None:
    """End the run with its cause; first ask the sidecar when no driver has said anything."""
    word = evidence.last_word(world)
    if word is not None:
        return Contribution(verdict=_spoken(world, word.message), final=True)
    silent, gone = evidence.job_ended_in_silence(world), _driver_gone_at(world, settings)
    if not silent and (gone is None or world.now < gone):
        return None if gone is None else Contribution(due=gone)
    if world.notes.result_asked is Reachability.NOT_ASKED and world.head is not None and world.head.ip:
        return Contribution(ask_result=True, final=True)
    result = world.notes.result
    if result is not None and result.run_uid == world.run.uid and result.attempt == world.attempt:
        if result.outcome == STOPPED:
            return Contribution(verdict=evidence.stopped(world, *_as_word(result)), final=True)
        cause = Cause.INCOMPLETE_STEPS if result.outcome == SUCCEEDED else evidence.cause_of(result.cause)
        return Contribution(verdict=evidence.verdict_of(result, cause), final=True)
    if not silent:
        return Contribution(verdict=_stranded(world), final=True)
    deadline = facts.since(world, facts.SILENCE) + LATE_WORD
    if world.now < deadline:
        return Contribution(due=deadline, final=True)
    return Contribution(verdict=_unspoken(world), final=True)


def _driver_gone_at(world: World, settings: Settings) -> datetime | None:
    """When the last driver counts as gone with its node; None while there is none that waits for that."""
    moments = [release.gone_at(pod, settings) for pod in world.drivers if pod.phase not in ("Failed", "Succeeded")]
    known = [moment for moment in moments if moment is not None]
    return max(known) if known and len(known) == len(moments) else None


def _stranded(world: World) -> Verdict:
    """The verdict on an attempt whose driver went with its node."""
    cause, words = diagnosis.ended_by(world.drivers, evidence.DRIVER, Cause.DRIVER_LOST)
    return Verdict(cause, f"nobody follows the training, since its Job makes no other driver: {words}")


def _as_word(result: RunResult) -> tuple[str, TerminationMessage]:
    """A result of a training that has stopped, as its driver would have told it."""
    word = TerminationMessage(STOPPED, "", result.message, result.step, result.target_steps, result.checkpoint)
    return result.message or "it has stopped", word


def _spoken(world: World, message: TerminationMessage) -> Verdict:
    """A failure in the driver's words; a success that is not complete is one, too."""
    if message.outcome == STOPPED:
        return evidence.stopped(world, message.message or "it has stopped", message)
    if message.outcome == SUCCEEDED:
        cause = Cause.INCOMPLETE_STEPS
        text = message.message or f"the run ended after {message.step} of {message.target_steps} steps"
    else:
        cause, text = evidence.cause_of(message.cause), message.message or message.cause or "no message"
        if cause is Cause.HEAD_LOST:
            cause, text = _loss(world, text)
    return Verdict(cause, text, message.step, message.target_steps, message.checkpoint, message.metrics)


def _loss(world: World, text: str) -> tuple[Cause, str]:
    """A head that only the driver misses: its pod may tell why, such as that its node does not answer."""
    found = [pod for pod in evidence.heads(world) if diagnosis.is_disrupted(pod)]
    cause, words = diagnosis.ended_by(found, evidence.RAY_HEAD)
    return cause, f"{text}; {words}" if words else text


def _unspoken(world: World) -> Verdict:
    """The exit code and the last lines of the driver's log are all that is left."""
    for container in evidence.ended_drivers(world):
        tail = container.message.strip() or container.reason
        if container.exit_code == EXIT_ATTEMPT_LOST:
            return Verdict(*_loss(world, f"the driver lost the Ray cluster: {tail}"))
        if container.exit_code == EXIT_FAILED:
            return Verdict(Cause.UNKNOWN, f"the driver ended without a verdict: {tail}")
        return Verdict(Cause.UNKNOWN, "the driver ended without a verdict, and no result was found")
    job = world.job
    if job is not None and job.complete:
        return Verdict(Cause.DRIVER_LOST, "the Job is complete, but neither its driver's word nor a result was found")
    text = f"{job.reason}: {job.message}" if job is not None else ""
    return Verdict(Cause.DRIVER_LOST, f"the Job failed and no driver left a word: {text}")
