"""The run whose final model is wanted is there and has succeeded."""

from collections.abc import Iterator

from tuning_operator.api.conditions import Phase, Reason
from tuning_operator.engine.policies.acceptance_checks.problem import Problem
from tuning_operator.engine.world import World
from tuning_operator.settings import Settings


def check(world: World, settings: Settings) -> Iterator[Problem]:
    """Yield ReferenceNotFound or RunNotFinished."""
    wanted = world.run.spec.model.run
    if wanted is None:
        return
    source = world.source_run
    if source is None:
        text = f"`model.run` needs TuningRun {wanted.name}, which is not in namespace {world.run.namespace}: create it"
        yield Problem(Reason.REFERENCE_NOT_FOUND, text)
    elif source.phase == Phase.FAILED:
        text = f"`model.run` needs TuningRun {wanted.name}, which has failed and has no final model: name another run"
        yield Problem(Reason.RUN_NOT_FINISHED, text)
    elif source.phase != Phase.SUCCEEDED:
        state = source.phase or Phase.PENDING
        text = f"`model.run` waits for TuningRun {wanted.name}, which is {state}, to succeed"
        yield Problem(Reason.RUN_NOT_FINISHED, text)
