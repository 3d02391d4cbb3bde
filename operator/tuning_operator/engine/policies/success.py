"""Verdict (a): the result is complete and its step is the target."""

from tuning_contract.termination import EXIT_SUCCEEDED
from tuning_operator.engine import evidence
from tuning_operator.engine.contribution import Contribution, Verdict
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def decide(world: World, settings: Settings) -> Contribution | None:
    """End the run as succeeded, on the driver's word or on the sidecar's result."""
    word = evidence.last_word(world)
    if word is not None and evidence.is_complete(word.message):
        message = word.message
        complaint = "" if word.exit_code == EXIT_SUCCEEDED else f"the driver ended with exit code {word.exit_code}"
        text = message.message or f"all {message.target_steps} steps are done"
        verdict = Verdict(
            None, text, message.step, message.target_steps, message.checkpoint, message.metrics, complaint
        )
        return Contribution(verdict=verdict, final=True)
    result = world.notes.result
    if result is not None and result.complete and result.run_uid == world.run.uid:
        complaint = "the driver left no message; the result is the sidecar's"
        return Contribution(verdict=evidence.verdict_of(result, None, complaint), final=True)
    return None
