"""Conditions keep the time of their last change."""

from datetime import UTC, datetime, timedelta, timezone

from tuning_operator.api.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Phase,
    find,
    is_true,
    merge,
    timestamp,
)

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)


def a_condition(
    kind: str = ConditionType.ACCEPTED, status: ConditionStatus = ConditionStatus.TRUE, reason: str = "Valid"
) -> Condition:
    return Condition(type=kind, status=status, reason=reason, observed_generation=1)


def test_a_new_condition_is_stamped_with_now() -> None:
    (merged,) = merge((), [a_condition()], NOON)
    assert merged.last_transition_time == "2026-01-02T12:00:00Z"


def test_the_time_stays_while_the_status_stays_whatever_the_reason() -> None:
    before = merge((), [a_condition(reason="Creating")], NOON)
    (after,) = merge(before, [a_condition(reason="Ready")], LATER)
    assert (after.reason, after.last_transition_time) == ("Ready", "2026-01-02T12:00:00Z")


def test_the_time_moves_with_the_status() -> None:
    before = merge((), [a_condition(status=ConditionStatus.FALSE)], NOON)
    (after,) = merge(before, [a_condition()], LATER)
    assert after.last_transition_time == "2026-01-02T12:05:00Z"


def test_the_time_of_degraded_is_that_of_what_it_shows() -> None:
    before = merge((), [a_condition(ConditionType.DEGRADED, reason="Unschedulable")], NOON)
    assert merge(before, [a_condition(ConditionType.DEGRADED, reason="Unschedulable")], LATER) == before
    (after,) = merge(before, [a_condition(ConditionType.DEGRADED, reason="ImagePullFailed")], LATER)
    assert after.last_transition_time == "2026-01-02T12:05:00Z"


def test_merging_the_same_again_changes_nothing() -> None:
    before = merge((), [a_condition(ConditionType.STARTED), a_condition()], NOON)
    assert merge(before, [a_condition(), a_condition(ConditionType.STARTED)], LATER) == before


def test_conditions_stand_in_the_order_of_their_types_and_unknown_ones_last() -> None:
    kinds = ["Zebra", ConditionType.SUCCEEDED, ConditionType.ACCEPTED, "Aardvark"]
    merged = merge((), [a_condition(kind) for kind in kinds], NOON)
    assert [condition.type for condition in merged] == ["Accepted", "Succeeded", "Aardvark", "Zebra"]


def test_a_condition_that_is_not_named_stays() -> None:
    before = merge((), [a_condition(), a_condition(ConditionType.STARTED)], NOON)
    merged = merge(before, [a_condition(ConditionType.STARTED, ConditionStatus.FALSE)], LATER)
    assert find(merged, "Accepted") == find(before, "Accepted")
    assert is_true(merged, "Accepted")
    assert not is_true(merged, "Started")
    assert not is_true(merged, "Finished")


def test_a_time_stamp_is_utc_in_whole_seconds() -> None:
    local = datetime(2026, 1, 2, 14, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp(local) == "2026-01-02T12:00:00Z"


def test_only_succeeded_and_failed_are_terminal() -> None:
    assert {phase for phase in Phase if phase.terminal} == {Phase.SUCCEEDED, Phase.FAILED}
