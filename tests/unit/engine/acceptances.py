"""What the tests of acceptance share: runs that refer to something, and what a world deserves."""

from tests.builders import some_settings
from tests.unit.engine.worlds import (
    NOW,
    seconds,
)
from tuning_operator.engine.plan import plan
from tuning_operator.engine.world import SourceRun, World
from tuning_operator.settings import Settings

SOURCE = {"workflow": {"source": {"configMap": {"name": "code"}}}}
TASKS = {"dataset": {"train": {"image": None, "configMap": {"name": "tasks"}}}}
CLAIMED = {"checkpoint": {"volume": {"claimTemplate": None, "claimName": "results"}}}
CHAINED = {"model": {"image": None, "run": {"name": "first"}}}
FIRST = SourceRun("first", "first-uid", "Succeeded", "first-claim")


def rejected(world: World, settings: Settings | None = None) -> tuple[str, str]:
    """Reason and message of the rejection that the world deserves."""
    todo = plan(world, settings or some_settings())
    assert todo.create == ()
    assert todo.status is not None
    assert todo.status.patch["phase"] == "Rejected"
    assert todo.due is not None
    assert todo.due <= NOW + seconds(5)
    accepted = todo.status.patch["conditions"][0]
    assert (accepted["type"], accepted["status"]) == ("Accepted", "False")
    return accepted["reason"], todo.status.patch["message"]


def accepted(world: World, settings: Settings | None = None) -> bool:
    """Whether children are made."""
    return bool(plan(world, settings or some_settings()).create)
