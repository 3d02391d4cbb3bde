"""The driver against services that behave as Ray and the sidecar do, with short periods; stalls are in test_stall."""

import io
import threading
import time

import pytest

from tests.unit.driver.services import TOKEN, FakeRay, FakeSidecar
from tests.unit.sidecar.documents import a_result, a_run
from tests.unit.sidecar.processes import eventually
from tuning_contract.progress import Progress
from tuning_contract.result import FAILED, STOPPED
from tuning_driver.console import Console
from tuning_driver.follow import Attempt, ClusterSilentError, Follower, Timing, submission_for
from tuning_driver.http_client import HttpClient
from tuning_driver.ray_jobs import RayJobs, SubmissionRefusedError
from tuning_driver.sidecar import Sidecar
from tuning_driver.verdict import Evidence

RUN = a_run()
JOB = "math-agent-0a1b2c-1"
FAST = Timing(
    poll=0.02, job=0.04, progress=0.05, end_poll=0.02, retry=0.02, start=0.6, head=0.6, job_end=0.3, result=0.3
)


class Driver:
    """A driver in a thread, with what it printed."""

    def __init__(
        self, ray: FakeRay, sidecar: FakeSidecar, token: str = TOKEN, attempt: int = 1, timing: Timing = FAST
    ) -> None:
        self.stream = io.BytesIO()
        submission = submission_for(JOB, attempt, "90", {"run": "math-agent"})
        self.follower = Follower(
            Attempt(attempt, RUN.digest, submission),
            RayJobs(HttpClient(ray.url, token)),
            Sidecar(HttpClient(sidecar.url)),
            Console(self.stream),
            timing,
        )
        self.evidence: Evidence | None = None
        self.silence = ""
        self._thread = threading.Thread(target=self._run)

    @property
    def printed(self) -> str:
        return self.stream.getvalue().decode()

    def start(self) -> None:
        self.follower.attach()
        self._thread.start()

    def finished(self) -> Evidence:
        self._thread.join(timeout=10)
        assert self.evidence is not None
        return self.evidence

    def without_verdict(self) -> str:
        """Why it ended without any evidence."""
        self._thread.join(timeout=10)
        assert self.evidence is None
        return self.silence

    def _run(self) -> None:
        try:
            self.evidence = self.follower.follow()
        except ClusterSilentError as error:
            self.silence = str(error)


@pytest.fixture
def driver(ray: FakeRay, sidecar: FakeSidecar) -> Driver:
    return Driver(ray, sidecar)


def test_the_submission_names_entrypoint_id_attempt_and_the_time_to_save(driver: Driver, ray: FakeRay) -> None:
    driver.follower.attach()
    assert ray.submissions == [
        {
            "entrypoint": "python -m tuning_runner",
            "submission_id": JOB,
            "runtime_env": {
                "env_vars": {
                    "TUNING_ATTEMPT": "1",
                    "TUNING_STOP_GRACE_SECONDS": "90",
                    "RAY_JOB_STOP_WAIT_TIME_S": "90",
                }
            },
            "metadata": {"run": "math-agent"},
        }
    ]


def test_without_a_time_to_save_ray_keeps_its_own() -> None:
    assert submission_for(JOB, 2, "", {}).environment == {"TUNING_ATTEMPT": "2"}


def test_a_second_driver_attaches_and_prints_the_log_from_its_start(ray: FakeRay, sidecar: FakeSidecar) -> None:
    sidecar.written.log = b"step 1\nstep 2\n"
    for _ in range(2):
        driver = Driver(ray, sidecar)
        driver.follower.attach()
        driver.follower._print_log()
        assert "step 1\nstep 2\n" in driver.printed
    assert len(ray.submissions) == 1


def test_a_duplicate_that_ray_refuses_with_500_is_attached_to(driver: Driver, ray: FakeRay) -> None:
    # Unknown when asked, there when submitted: another driver was faster.
    ray.ends(JOB, "RUNNING")
    ray.failures.append((404, f"Job {JOB} does not exist"))
    driver.follower.attach()
    assert ray.submissions == []
    assert driver.printed == f"driver: attached to Ray job {JOB}\n"


def test_it_waits_for_a_cluster_that_is_not_there_yet(driver: Driver, ray: FakeRay) -> None:
    ray.failures += [(401, "Unauthorized: Missing authentication token"), (503, "starting")]
    driver.follower.attach()
    assert len(ray.submissions) == 1
    assert "waiting for Ray" in driver.printed


def test_a_wrong_token_is_no_verdict(ray: FakeRay, sidecar: FakeSidecar) -> None:
    with pytest.raises(ClusterSilentError, match="401"):
        Driver(ray, sidecar, token="wrong").follower.attach()
    assert ray.submissions == []


def test_a_cluster_that_never_answers_is_no_verdict(driver: Driver, ray: FakeRay) -> None:
    ray.stop()
    with pytest.raises(ClusterSilentError):
        driver.follower.attach()


def test_a_job_that_ray_will_not_take_is_reported_with_rays_words(driver: Driver, ray: FakeRay) -> None:
    ray.failures += [(404, f"Job {JOB} does not exist"), (500, "Traceback\nValueError: bad runtime_env")] * 50
    with pytest.raises(SubmissionRefusedError, match="bad runtime_env"):
        driver.follower.attach()


def test_a_complete_result_ends_the_run_soon_with_its_whole_log(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver.start()
    ray.ends(JOB, "RUNNING")
    sidecar.written.log = "loading ✓\n".encode() * 10
    eventually(lambda: driver.printed.count("loading ✓") == 10)
    sidecar.written.log += b"last words without line end"
    sidecar.written.result = a_result(RUN)
    started = time.monotonic()
    ray.ends(JOB, "SUCCEEDED")
    found = driver.finished()
    assert time.monotonic() - started < 0.5
    assert found.result == a_result(RUN)
    assert found.job is not None
    assert found.job.status == "SUCCEEDED"
    assert driver.printed.endswith("last words without line end\n")
    assert "Ray job is RUNNING" in driver.printed


def test_a_process_that_hangs_after_its_result_does_not_hold_the_verdict_back(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver.start()
    ray.ends(JOB, "RUNNING")
    sidecar.written.result = a_result(RUN)
    found = driver.finished()
    assert found.result == a_result(RUN)
    assert found.job is not None
    assert found.job.status == "RUNNING"


def test_the_result_of_other_settings_or_of_an_older_attempts_failure_is_not_believed(
    ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver = Driver(ray, sidecar, attempt=2)
    driver.start()
    sidecar.written.result = a_result(RUN, run_digest="other")
    time.sleep(0.15)
    sidecar.written.result = a_result(RUN, outcome=FAILED, cause="HeadLost", attempt=1)
    time.sleep(0.15)
    assert driver.evidence is None
    ray.ends(JOB, "FAILED", "exit code 1", 1)
    assert driver.finished().result is None


def test_a_result_that_the_sidecar_serves_only_after_the_job_ended_is_found(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver.start()
    sidecar.stop()
    ray.ends(JOB, "SUCCEEDED")
    sidecar.written.result = a_result(RUN)
    time.sleep(0.1)
    sidecar.start()
    assert driver.finished().result == a_result(RUN)


def test_ray_may_be_silent_for_a_while(driver: Driver, ray: FakeRay, sidecar: FakeSidecar) -> None:
    driver.start()
    ray.stop()
    eventually(lambda: "Ray does not answer" in driver.printed)
    ray.start()
    eventually(lambda: "Ray answers again" in driver.printed)
    ray.ends(JOB, "SUCCEEDED")
    sidecar.written.result = a_result(RUN)
    assert driver.finished().head_loss == ""


def test_a_head_that_is_silent_as_a_whole_is_no_verdict(driver: Driver, ray: FakeRay, sidecar: FakeSidecar) -> None:
    driver.start()
    time.sleep(0.15)
    ray.stop()
    sidecar.stop()
    assert "neither Ray nor the sidecar has answered for" in driver.without_verdict()


def test_a_dashboard_that_died_does_not_end_a_training_that_goes_on(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    sidecar.written.progress = Progress(1, 4, 12)
    driver.start()
    ray.stop()
    time.sleep(FAST.head * 2)
    assert driver.evidence is None
    sidecar.written.result = a_result(RUN)
    found = driver.finished()
    assert found.result == a_result(RUN)
    assert found.head_loss == ""


def test_a_job_that_ended_beside_a_silent_sidecar_is_no_verdict(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver.start()
    sidecar.stop()
    ray.ends(JOB, "SUCCEEDED")
    assert "does not say whether there is a result" in driver.without_verdict()


def test_a_head_that_forgot_the_job_was_replaced(driver: Driver, ray: FakeRay) -> None:
    driver.start()
    ray.jobs.clear()
    assert "the head was replaced" in driver.finished().head_loss
    assert len(ray.submissions) == 1


def test_one_strange_404_is_not_a_replaced_head(driver: Driver, ray: FakeRay, sidecar: FakeSidecar) -> None:
    driver.start()
    ray.failures += [(404, f"Job {JOB} does not exist"), (404, "<html>not found</html>"), (502, "bad gateway")]
    time.sleep(0.3)
    sidecar.written.result = a_result(RUN)
    assert driver.finished().head_loss == ""


def test_a_failure_that_a_dying_head_left_behind_is_no_verdict(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver.start()
    ray.stop()
    sidecar.written.result = a_result(RUN, outcome=FAILED, cause="EngineError", message="SIGTERM", step=3)
    time.sleep(FAST.head / 2)
    sidecar.stop()
    assert "neither Ray nor the sidecar" in driver.without_verdict()


def test_a_failure_beside_a_dead_dashboard_is_the_runners_own(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    failure = a_result(RUN, outcome=FAILED, cause="WorkflowError", message="no such tool", step=3)
    sidecar.written.progress = Progress(1, 3, 12)
    driver.start()
    ray.stop()
    sidecar.written.result = failure
    found = driver.finished()
    assert found.result == failure
    assert found.head_loss == ""


def test_a_runner_that_has_saved_on_request_is_believed_though_the_head_goes(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    stopped = a_result(RUN, outcome=STOPPED, step=7, final_model="")
    sidecar.written.log = b"saved\n"
    driver.start()
    eventually(lambda: "saved" in driver.printed)
    ray.stop()
    sidecar.written.result = stopped
    started = time.monotonic()
    found = driver.finished()
    assert time.monotonic() - started < FAST.head
    assert (found.result, found.head_loss) == (stopped, "")


def test_a_volume_that_cannot_be_read_leaves_the_last_word_to_ray(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver.start()
    sidecar.written.volume_error = "[Errno 5] Input/output error"
    ray.logs = "failed: StorageFailed\n"
    ray.ends(JOB, "FAILED", "Job entrypoint command failed with exit code 10", 10)
    found = driver.finished()
    assert "Input/output error" in found.volume_problem
    assert driver.printed.count("failed: StorageFailed") == 1


def test_a_volume_that_can_be_read_again_in_time_says_how_it_ended(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    driver.start()
    sidecar.written.volume_error = "[Errno 116] Stale file handle"
    sidecar.written.result = a_result(RUN)
    ray.ends(JOB, "SUCCEEDED")
    time.sleep(FAST.result / 2)
    sidecar.written.volume_error = ""
    found = driver.finished()
    assert (found.result, found.volume_problem) == (a_result(RUN), "")


def test_a_runner_that_never_started_shows_rays_own_log(driver: Driver, ray: FakeRay) -> None:
    driver.start()
    ray.logs = "python: No module named tuning_runner\n"
    ray.ends(JOB, "FAILED", "Job entrypoint command failed with exit code 1", 1)
    found = driver.finished()
    assert found.result is None
    assert found.job is not None
    assert found.job.exit_code == 1
    assert driver.printed.endswith("this is Ray's:\npython: No module named tuning_runner\n")


def test_a_runner_with_a_log_of_its_own_is_not_printed_twice(
    driver: Driver, ray: FakeRay, sidecar: FakeSidecar
) -> None:
    ray.logs = "step 1\n"
    sidecar.written.log = b"step 1\n"
    driver.start()
    ray.ends(JOB, "FAILED", "exit code 1", 1)
    driver.finished()
    assert driver.printed.count("step 1\n") == 1
