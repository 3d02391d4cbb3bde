"""No field of the life cycle is accepted and ignored: changing its value changes what is done for some run.

The other fields change a manifest or run.json (`unit/api/test_effects`); these decide when something is done.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import a_run, some_settings
from tests.unit.api.test_effects import OF_THE_LIFE_CYCLE
from tests.unit.engine.worlds import NOW, RUNNING, STARTING, a_driver, a_head, a_running_world, a_starting_world
from tuning_contract.termination import EXIT_FAILED, TerminationMessage
from tuning_operator.engine.plan import Plan, plan
from tuning_operator.engine.world import World

Status = Mapping[str, Any]

ENDED: Status = {
    **RUNNING,
    "phase": "Succeeded",
    "conditions": [
        {
            "type": "Finished",
            "status": "True",
            "reason": "Completed",
            "message": "done",
            "lastTransitionTime": "2026-01-02T11:59:00Z",
        }
    ],
}


def failed(status: Status = RUNNING, **spec: Any) -> World:
    """The engine has failed."""
    word = TerminationMessage("Failed", "EngineError", "it broke")
    return a_running_world(run=a_run(status=status, **spec), pods=(a_head(), a_driver(word, EXIT_FAILED)))


def running(**spec: Any) -> World:
    """The training has run for nine minutes."""
    return a_running_world(run=a_run(status=RUNNING, **spec))


def starting(**spec: Any) -> World:
    """The attempt began ten minutes ago."""
    return a_starting_world(run=a_run(status=STARTING, **spec))


def ended(**spec: Any) -> World:
    """The run ended a minute ago, its cluster is there."""
    return a_running_world(run=a_run(status=ENDED, **spec))


def given_back(**spec: Any) -> World:
    """The run ended a minute ago, nothing of it is left but its Job."""
    world = ended(**spec)
    done = replace(world.job, complete=True) if world.job else None
    return replace(world, cluster=None, pods=(), job=done)


def rules(cause: str, action: str) -> dict[str, Any]:
    return {"retry": {"rules": [{"causes": [cause], "action": action}]}}


CASES: Mapping[str, tuple[World, World]] = {
    "suspend": (running(), running(suspend=True)),
    "retry.maxAttempts": (failed(), failed(retry={"maxAttempts": 1})),
    "retry.backoffSeconds": (failed(), failed(retry={"backoffSeconds": 5})),
    "retry.rules[].causes": (failed(**rules("HeadLost", "Fail")), failed(**rules("EngineError", "Fail"))),
    "retry.rules[].action": (failed(**rules("EngineError", "Retry")), failed(**rules("EngineError", "Fail"))),
    "deadlines.startSeconds": (starting(), starting(deadlines={"startSeconds": 60})),
    "deadlines.activeSeconds": (running(), running(deadlines={"activeSeconds": 60})),
    "cleanup.clusterTTLSeconds": (ended(), ended(cleanup={"clusterTTLSeconds": 600})),
    "cleanup.runTTLSeconds": (given_back(), given_back(cleanup={"runTTLSeconds": 30})),
}
"""Two worlds for each field, which differ in nothing but its value."""


def planned(world: World) -> Plan:
    return plan(world, some_settings(stop_key="a-key"))


def test_every_field_of_the_life_cycle_has_its_worlds() -> None:
    assert set(CASES) == OF_THE_LIFE_CYCLE


@pytest.mark.parametrize("path", CASES)
def test_a_field_that_changes_changes_what_is_done(path: str) -> None:
    one, other = CASES[path]
    assert one.now == other.now == NOW
    assert planned(one) != planned(other)
