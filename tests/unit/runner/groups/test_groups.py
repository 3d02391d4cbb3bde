"""Masks, advantages and verdicts, against numbers worked out by hand."""

import math
from dataclasses import dataclass

import pytest

from tuning_contract.algorithms import Advantage
from tuning_contract.causes import Cause
from tuning_contract.outcomes import Outcome
from tuning_runner.groups import (
    Assignment,
    StepFailure,
    assign,
    failed_ratio,
    group_reward_stddev,
    step_failure,
)


@dataclass(frozen=True)
class AnError:
    text: str = "first text"
    where: str = "workflow"


@dataclass(frozen=True)
class AnEpisode:
    group: str = "1.0"
    outcome: Outcome = Outcome.COMPLETED
    reward: float | None = None
    error: AnError | None = None


def scored(*rewards: float, group: str = "1.0") -> list[AnEpisode]:
    return [AnEpisode(group, Outcome.COMPLETED, reward) for reward in rewards]


def ended(outcome: Outcome, times: int = 1, where: str = "workflow", group: str = "1.0") -> list[AnEpisode]:
    return [AnEpisode(group, outcome, None, AnError(f"text of {outcome.value}", where))] * times


def by_group(episodes: list[AnEpisode], min_group_size: int) -> tuple[Assignment, ...]:
    return assign(episodes, Advantage.GROUP, min_group_size)


def test_advantages_are_reward_minus_mean_over_the_sample_standard_deviation() -> None:
    assignments = by_group(scored(1.0, 0.0, 0.0, 0.0), min_group_size=2)
    # mean 1/4; deviations 3/4 and -1/4: squares 9/16 + 3/16 = 12/16, over n - 1 = 3 gives 1/4, root 1/2
    assert [assignment.advantage for assignment in assignments] == pytest.approx(
        [0.75 / 0.5001, *[-0.25 / 0.5001] * 3], abs=1e-15
    )


def test_a_failed_episode_is_neither_a_zero_nor_a_member_of_its_group() -> None:
    episodes = [*scored(1.0, 0.0), *ended(Outcome.ENVIRONMENT_ERROR, 6)]
    assignments = by_group(episodes, min_group_size=2)
    # two survivors: mean 1/2, deviation root(1/4 + 1/4) = 0.70710678...
    expected = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert assignments[0].advantage == pytest.approx(expected, abs=1e-15)
    assert assignments[1].advantage == pytest.approx(-expected, abs=1e-15)
    assert assignments[2:] == (Assignment(masked="EnvironmentError"),) * 6


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome not in ("Completed", "LimitReached")])
def test_every_outcome_without_a_score_is_masked_under_its_name_even_with_a_reward(outcome: Outcome) -> None:
    episodes = [*scored(1.0, 0.0), AnEpisode("1.0", outcome, 5.0)]
    assert by_group(episodes, 2)[2] == Assignment(masked=outcome.value)
    assert by_group(episodes, 2)[:2] == by_group(episodes[:2], 2)


def test_an_episode_at_its_limit_counts_with_its_grade_and_is_masked_without_one() -> None:
    episodes = [*scored(1.0), AnEpisode("1.0", Outcome.LIMIT_REACHED, 0.0), AnEpisode("1.0", Outcome.LIMIT_REACHED)]
    graded, limit, ungraded = by_group(episodes, min_group_size=2)
    assert graded.advantage == -limit.advantage if limit.advantage else None
    assert ungraded == Assignment(masked="Unscored")


def test_a_group_below_the_least_size_is_masked_whole_and_others_are_not() -> None:
    episodes = [*scored(1.0), *ended(Outcome.LOST, 3), *scored(1.0, 0.0, group="1.1")]
    assignments = by_group(episodes, min_group_size=2)
    assert assignments[0] == Assignment(masked="SmallGroup")
    assert assignments[4].advantage is not None


# Two groups, each number worked out by hand. Group A has rewards 1, 0, 1/2, 1/2: mean 1/2, squares 1/4 + 1/4 = 1/2,
# over n - 1 = 3 gives 1/6. Group B has 2, 1: mean 3/2, squares 1/4 + 1/4 = 1/2, over 1 gives 1/2. The step has all six:
# sum 5, mean 5/6; sum of squares 1 + 0 + 1/4 + 1/4 + 4 + 1 = 13/2, less 6 x 25/36 = 25/6 leaves 7/3, over 5 gives 7/15.
GROUP_A, GROUP_B = (1.0, 0.0, 0.5, 0.5), (2.0, 1.0)
BY_HAND = {
    Advantage.GROUP: [
        *[reward / (math.sqrt(1 / 6) + 1e-4) for reward in (0.5, -0.5, 0.0, 0.0)],
        *[reward / (math.sqrt(1 / 2) + 1e-4) for reward in (0.5, -0.5)],
    ],
    # The others' means: of A 1/3, 2/3, 1/2, 1/2; of B 1 and 2.
    Advantage.LEAVE_ONE_OUT: [2 / 3, -2 / 3, 0.0, 0.0, 1.0, -1.0],
    Advantage.STEP: [part / 6 / (math.sqrt(7 / 15) + 1e-4) for part in (1.0, -5.0, -2.0, -2.0, 7.0, 1.0)],
}


@pytest.mark.parametrize("advantage", Advantage)
def test_advantages_are_those_worked_out_by_hand(advantage: Advantage) -> None:
    lost = ended(Outcome.LOST, 2)
    episodes = [*scored(*GROUP_A), *lost, *scored(*GROUP_B, group="1.1")]
    assignments = assign(episodes, advantage, min_group_size=2)
    assert assignments[4:6] == (Assignment(masked="Lost"),) * 2
    found = [assignment.advantage for assignment in (*assignments[:4], *assignments[6:])]
    assert found == pytest.approx(BY_HAND[advantage], abs=1e-12)
    assert sum(value for value in found if value is not None) == pytest.approx(0.0, abs=1e-12)


def test_one_episode_a_task_learns_from_the_whole_step() -> None:
    episodes = [*scored(1.0, group="1.0"), *scored(0.0, group="1.1"), *scored(0.5, group="1.2")]
    # mean 1/2, squares 1/4 + 1/4 over 2 give 1/4, root 1/2
    expected = [0.5 / 0.5001, -0.5 / 0.5001, 0.0]
    found = assign(episodes, Advantage.STEP, min_group_size=1)
    assert [assignment.advantage for assignment in found] == pytest.approx(expected, abs=1e-12)


def test_a_masked_small_group_still_counts_in_the_mean_of_the_step() -> None:
    episodes = [*scored(1.0, 0.0), *scored(2.0, group="1.1")]
    # mean 1, squares 0 + 1 + 1 over 2 give 1
    first, second, small = assign(episodes, Advantage.STEP, min_group_size=2)
    assert small == Assignment(masked="SmallGroup")
    assert (first.advantage, second.advantage) == pytest.approx((0.0, -1 / 1.0001), abs=1e-12)


@pytest.mark.parametrize("advantage", Advantage)
@pytest.mark.parametrize("reward", [0.3, 0.1, 1 / 3])
def test_equal_rewards_have_advantage_zero_whatever_their_number(advantage: Advantage, reward: float) -> None:
    for size in range(1, 60):
        assert assign(scored(*[reward] * size), advantage, 1) == (Assignment(advantage=0.0),) * size


@pytest.mark.parametrize("advantage", Advantage)
def test_a_lone_episode_has_advantage_zero_where_it_is_allowed(advantage: Advantage) -> None:
    assert assign(scored(0.7), advantage, min_group_size=1) == (Assignment(advantage=0.0),)
    assert assign(scored(0.7), advantage, min_group_size=2) == (Assignment(masked="SmallGroup"),)


@pytest.mark.parametrize("advantage", Advantage)
def test_a_step_without_a_score_has_masks_only(advantage: Advantage) -> None:
    assert assign(ended(Outcome.LOST, 3), advantage, 1) == (Assignment(masked="Lost"),) * 3
    assert assign([], advantage, 1) == ()


def test_the_failed_ratio_counts_infrastructure_only() -> None:
    episodes = [*scored(1.0, 0.0), *ended(Outcome.AGENT_ERROR), *ended(Outcome.LOST)]
    assert failed_ratio(episodes) == 0.25
    assert failed_ratio([]) == 0.0


def test_the_reward_deviation_is_the_mean_over_groups_with_two_scores() -> None:
    episodes = [*scored(1.0, 0.0), *scored(0.5, 0.5, group="1.1"), *scored(1.0, group="1.2")]
    assert group_reward_stddev(episodes) == pytest.approx(math.sqrt(0.5) / 2)
    assert group_reward_stddev(scored(1.0)) is None


def test_a_step_within_the_ratio_goes_on_whatever_agents_did() -> None:
    episodes = [*scored(1.0, 0.0, 1.0), *ended(Outcome.LOST), *ended(Outcome.AGENT_ERROR, 4)]
    assert step_failure(episodes, max_failed_ratio=0.25) is None


@pytest.mark.parametrize(
    ("outcomes", "cause"),
    [
        ((Outcome.JUDGE_ERROR, Outcome.JUDGE_ERROR), Cause.JUDGE_UNAVAILABLE),
        ((Outcome.ENVIRONMENT_ERROR, Outcome.ENVIRONMENT_ERROR), Cause.ENVIRONMENT_UNAVAILABLE),
        ((Outcome.ENVIRONMENT_ERROR, Outcome.JUDGE_ERROR), Cause.EPISODE_FAILURES),
        ((Outcome.MODEL_ERROR, Outcome.LOST), Cause.EPISODE_FAILURES),
    ],
)
def test_too_many_failures_end_the_attempt_under_what_failed(outcomes: tuple[Outcome, ...], cause: Cause) -> None:
    failed = [episode for outcome in outcomes for episode in ended(outcome, where="gateway")]
    for others in (scored(1.0, 0.0), []):
        failure = step_failure([*others, *failed], max_failed_ratio=0.25)
        assert isinstance(failure, StepFailure)
        assert failure.cause is cause
        assert f"text of {outcomes[0].value}" in failure.message


def test_a_step_in_which_every_agent_raised_is_the_workflows_error_with_its_own_text() -> None:
    failure = step_failure([*ended(Outcome.AGENT_ERROR, 3), *ended(Outcome.LOST)], max_failed_ratio=0.25)
    assert failure is not None
    assert failure.cause is Cause.WORKFLOW_ERROR
    assert "text of AgentError" in failure.message
    assert "3 AgentError, 1 Lost" in failure.message


def test_a_step_in_which_every_request_was_refused_is_the_workflows_error() -> None:
    failure = step_failure(ended(Outcome.MODEL_ERROR, 4, where="workflow"), max_failed_ratio=0.25)
    assert failure is not None
    assert failure.cause is Cause.WORKFLOW_ERROR


def test_refused_requests_are_masked_as_agent_errors_are_and_are_no_failed_episodes() -> None:
    refused = ended(Outcome.MODEL_ERROR, 6, where="workflow")
    assert failed_ratio([*scored(1.0, 0.0), *refused]) == 0.0
    assert step_failure([*scored(1.0, 0.0), *refused], max_failed_ratio=0.25) is None
    outage = step_failure([*scored(1.0, 0.0), *refused, *ended(Outcome.LOST, 4, where="worker")], max_failed_ratio=0.25)
    assert outage is not None
    assert (outage.cause, "text of Lost" in outage.message) == (Cause.EPISODE_FAILURES, True)


def test_an_outage_with_one_agent_error_stays_an_outage() -> None:
    failure = step_failure([*ended(Outcome.AGENT_ERROR), *ended(Outcome.JUDGE_ERROR, 5)], max_failed_ratio=0.25)
    assert failure is not None
    assert failure.cause is Cause.JUDGE_UNAVAILABLE


def test_a_step_without_one_score_never_trains() -> None:
    failure = step_failure([AnEpisode(outcome=Outcome.LIMIT_REACHED)] * 4, max_failed_ratio=1.0)
    assert failure is not None
    assert "4 LimitReached" in failure.message
    assert step_failure(ended(Outcome.LOST, 4, where="worker"), max_failed_ratio=1.0) is not None
