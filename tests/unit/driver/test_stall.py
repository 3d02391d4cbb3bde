"""When a training counts as stalled: the watch with a clock of its own, and a driver that follows one."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.driver.services import FakeRay, FakeSidecar
from tests.unit.driver.test_follow import FAST, JOB, RUN, Driver
from tests.unit.sidecar.documents import a_result
from tests.unit.sidecar.processes import eventually
from tuning_contract.causes import Cause
from tuning_contract.progress import Progress
from tuning_contract.termination import EXIT_FAILED
from tuning_driver.stall import FIRST_LIMIT, KNOWN_AFTER, LEAST_LIMIT, LONGEST_LOOK, SLOWER, StallWatch
from tuning_driver.verdict import judge

NOTHING = Progress(attempt=1)


class Training:
    """A run under watch; the clock goes in looks of ten seconds."""

    def __init__(self, limit: float | None = None) -> None:
        self.now = 1000.0
        self.progress = NOTHING
        self.watch = StallWatch(limit, lambda: self.now)
        self.watch.look(self.progress)

    def lasts(self, seconds: float, look: float = 10.0) -> str:
        """Let time go by with a look every so often; the words of the last one."""
        end = self.now + seconds
        while self.now < end and not self.watch.words:
            self.now = min(self.now + look, end)
            self.watch.look(self.progress)
        return self.watch.words

    def unwatched(self, seconds: float) -> None:
        self.now += seconds

    def steps(self, count: int = 1, seconds: float = 10.0) -> str:
        for _ in range(count):
            self.lasts(seconds - 10)
            self.progress = replace(
                self.progress, step=self.progress.step + 1, target_steps=12, updated_at=self.now + 10
            )
            self.lasts(10)
        return self.watch.words


def test_a_limit_that_is_set_counts_from_the_start_and_from_every_step() -> None:
    training = Training(limit=600)
    assert training.lasts(99) == ""
    assert training.steps(3, seconds=500) == ""
    assert training.lasts(599) == ""
    assert "step 3 of 12" in training.lasts(1)


def test_a_training_that_never_begins_stalls_as_well() -> None:
    training = Training(limit=600)
    assert training.lasts(599) == ""
    assert "there was none" in training.lasts(1)


def test_the_words_name_what_was_last_for_how_long_the_limit_and_what_to_set() -> None:
    training = Training(limit=600)
    training.steps(5)
    words = training.lasts(700)
    for part in ("600 s", "limit 600 s", "deadlines.stallSeconds", "the last was step 5 of 12", "log"):
        assert part in words


@pytest.mark.parametrize(
    "news",
    [
        {"step": 6, "updated_at": 2.0},
        {"updated_at": 2.0, "evaluation": ({"dataset": "heldout", "step": 5, "mean": 0.5},)},
        {"checkpoint_step": 5, "checkpoint_saved_at": 2.0},
    ],
)
def test_a_step_an_evaluation_or_a_checkpoint_is_news(news: dict[str, object]) -> None:
    training = Training(limit=600)
    training.progress = Progress(1, 5, 12, updated_at=1.0)
    assert training.lasts(590) == ""
    training.progress = replace(training.progress, **news)  # type: ignore[arg-type]
    assert training.lasts(590) == ""
    assert training.lasts(30) != ""


def test_other_figures_are_no_news() -> None:
    training = Training(limit=600)
    training.progress = Progress(1, 5, 12, updated_at=1.0)
    training.lasts(300)
    training.progress = replace(training.progress, eta_seconds=7.0, values={"reward_mean": 0.5})
    assert training.lasts(310) != ""


def test_without_a_limit_a_run_that_is_not_known_yet_has_two_hours() -> None:
    training = Training()
    assert training.lasts(FIRST_LIMIT - 1) == ""
    assert "7200 s" in training.lasts(1)


def test_a_run_of_quick_steps_has_half_an_hour() -> None:
    training = Training()
    training.steps(4)
    assert training.lasts(LEAST_LIMIT - 1) == ""
    assert "learned" in training.lasts(1)


def test_a_run_of_slow_steps_has_ten_times_its_slowest_even_before_it_is_known() -> None:
    training = Training()
    training.steps(1, seconds=5000)
    training.steps(1, seconds=3600)
    assert training.lasts(SLOWER * 3600 - 1) == ""
    assert training.lasts(1) != ""


@pytest.mark.parametrize("steps", [0, 5])
def test_an_evaluation_of_slow_episodes_may_take_as_long_again_between_quick_steps(steps: int) -> None:
    training = Training()
    training.lasts(4000)
    training.progress = replace(training.progress, updated_at=1.0, evaluation_seconds=3000.0)
    training.steps(steps)
    assert training.lasts(SLOWER * 3000 - 1) == ""
    assert "the slowest so far, 3000 s" in training.lasts(11)


def test_however_many_sets_the_base_model_was_judged_on_the_next_has_two_hours() -> None:
    training = Training()
    for number in range(1, 8):
        training.lasts(60)
        training.progress = replace(training.progress, updated_at=float(number), evaluation_seconds=60.0)
        training.lasts(10)
    assert training.lasts(FIRST_LIMIT - 11) == ""
    assert training.lasts(11) != ""


def test_the_page_tells_what_is_learned() -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/stop-resume-and-retry.md").read_text()
    words = {3: "three", 7200.0: "two hours", 1800.0: "half an hour", 10: "ten times"}
    assert all(words[figure] in page for figure in (KNOWN_AFTER, FIRST_LIMIT, LEAST_LIMIT, SLOWER))


def test_the_time_to_the_first_step_is_nothing_to_learn_from() -> None:
    training = Training()
    training.steps(1, seconds=6000)
    training.steps(3, seconds=20)
    assert training.lasts(LEAST_LIMIT + 10) != ""


def test_the_next_driver_starts_with_all_of_its_patience() -> None:
    training = Training(limit=600)
    training.steps(4)
    assert training.lasts(590) == ""
    training.watch = StallWatch(600, lambda: training.now)
    assert training.lasts(600) == ""
    assert training.lasts(20) != ""


def test_the_next_driver_learns_the_pace_of_a_step_that_it_did_not_see() -> None:
    training = Training()
    training.progress = Progress(1, 5, 12, updated_at=1.0, values={"step_seconds": 3600.0})
    assert training.lasts(SLOWER * 3600 - 20) == ""
    assert training.lasts(40) != ""


def test_time_in_which_nothing_could_be_read_is_not_held_against_the_run() -> None:
    training = Training(limit=600)
    training.steps(2)
    training.unwatched(5000)
    assert training.lasts(10) == ""
    assert training.lasts(600 - 2 * LONGEST_LOOK) == ""
    assert training.lasts(LONGEST_LOOK) != ""


def test_a_sidecar_that_has_just_started_and_has_read_nothing_yet_is_no_news() -> None:
    training = Training(limit=600)
    training.steps(2)
    before = training.progress
    training.lasts(400)
    training.progress = NOTHING
    training.lasts(20)
    training.progress = before
    assert training.lasts(200) != ""


STALLING = replace(FAST, stall=0.5)


def test_a_stalled_training_gets_its_verdict_and_its_job_is_left_to_the_operator(
    ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver = Driver(ray, sidecar, timing=STALLING)
    sidecar.written.log = b"episode 7 waits for the judge\n"
    driver.start()
    ray.ends(JOB, "RUNNING")
    for step in (1, 2, 3):
        sidecar.written.progress = Progress(1, step, 12, updated_at=float(step))
        eventually(lambda: driver.follower._progress == sidecar.written.progress)
    verdict = judge(driver.finished())
    assert (verdict.exit_code, verdict.message.cause, verdict.message.step) == (EXIT_FAILED, Cause.STALLED, 3)
    assert "the last was step 3 of 12" in verdict.message.message
    assert "episode 7 waits for the judge" in driver.printed
    assert verdict.message.message in driver.printed
    assert {method for method, path in ray.requests if path != "/api/jobs/"} == {"GET"}
    assert ray.jobs[JOB]["status"] == "RUNNING"


def test_a_training_whose_progress_cannot_be_read_does_not_stall(ray: FakeRay, sidecar: FakeSidecar) -> None:
    driver = Driver(ray, sidecar, timing=STALLING)
    driver.start()
    ray.ends(JOB, "RUNNING")
    sidecar.stop()
    eventually(lambda: ray.requests.count(("GET", f"/api/jobs/{JOB}")) > 30)
    assert driver.evidence is None
    sidecar.written.result = a_result(RUN)
    sidecar.start()
    assert driver.finished().result == a_result(RUN)


def test_a_lost_attempts_job_is_left_to_the_operator(ray: FakeRay, sidecar: FakeSidecar) -> None:
    driver = Driver(ray, sidecar)
    driver.start()
    ray.jobs.clear()
    assert driver.finished().head_loss
    assert {method for method, path in ray.requests if path != "/api/jobs/"} == {"GET"}
    assert len(ray.submissions) == 1
