"""The transition table: what it allows, and that it has no row twice."""

from tuning_operator.api.conditions import Phase
from tuning_operator.engine.transitions import TRANSITIONS, is_allowed


def test_a_run_that_has_ended_never_goes_on() -> None:
    assert not [row for row in TRANSITIONS if row.before.terminal]
    assert not is_allowed(Phase.FAILED, Phase.RETRYING)
    assert is_allowed(Phase.FAILED, Phase.FAILED)


def test_every_arrow_is_there_once_and_says_why() -> None:
    arrows = [(row.before, row.after) for row in TRANSITIONS]
    assert len(set(arrows)) == len(arrows)
    assert all(row.why and row.before is not row.after for row in TRANSITIONS)


def test_every_phase_can_be_reached_and_every_active_one_can_end() -> None:
    assert {row.after for row in TRANSITIONS} == set(Phase)
    ends = {row.before for row in TRANSITIONS if row.after is Phase.FAILED}
    assert ends == {phase for phase in Phase if not phase.terminal}


def test_a_run_without_a_status_is_pending() -> None:
    assert is_allowed(None, Phase.STARTING)
    assert is_allowed(None, None)
    assert not is_allowed(Phase.RUNNING, None)


def test_only_an_attempt_that_is_over_is_followed_by_another() -> None:
    assert not is_allowed(Phase.RUNNING, Phase.STARTING)
    assert not is_allowed(Phase.RUNNING, Phase.SUSPENDED)
    assert not is_allowed(Phase.RETRYING, Phase.RUNNING)
