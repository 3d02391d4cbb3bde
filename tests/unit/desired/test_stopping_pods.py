"""How the pods of a Ray cluster are stopped: the hook, the time to save, and the token."""

from typing import Any

from tests.builders import UID, a_run, some_settings
from tests.unit.desired.test_raycluster import HOOK, head, ray, worker
from tuning_contract.stopping import stop_token, token_digest
from tuning_operator.desired import raycluster


def test_the_time_to_save_is_the_runs_own_and_ends_before_the_pods() -> None:
    run = a_run(deadlines={"stopGraceSeconds": 300}, cluster={"workers": [{"name": "agents"}]})
    assert head(run)["terminationGracePeriodSeconds"] == 330
    assert {"name": "TUNING_STOP_GRACE_SECONDS", "value": "300"} in ray(run)["env"]
    # Workers that only run episodes save nothing.
    assert "terminationGracePeriodSeconds" not in worker(run)["template"]["spec"]
    assert "lifecycle" not in worker(run)["template"]["spec"]["containers"][0]


def test_the_time_of_the_final_evaluation_is_told_to_the_training_where_it_has_a_limit() -> None:
    limited = {"name": "TUNING_FINAL_EVALUATION_SECONDS", "value": "900"}
    assert limited in ray(a_run(deadlines={"finalEvaluationSeconds": 900}))["env"]
    assert "TUNING_FINAL_EVALUATION_SECONDS" not in str(ray(a_run()))


def test_workers_that_train_are_waited_for_like_the_head() -> None:
    run = a_run(engine={"type": "Trinity"}, cluster={"workers": [{"name": "gpu"}]})
    spec = worker(run)["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 150
    assert spec["containers"][0]["lifecycle"] == HOOK


def test_only_the_digest_of_the_token_that_stops_an_attempt_is_in_its_pod() -> None:
    def digest(attempt: int) -> Any:
        built = raycluster.build(a_run(), some_settings(stop_key="k"), attempt)["spec"]["headGroupSpec"]["template"]
        assert stop_token("k", UID, attempt) not in str(built)
        (found,) = [
            entry["value"]
            for entry in built["spec"]["initContainers"][0]["env"]
            if entry["name"] == "TUNING_STOP_TOKEN_DIGEST"
        ]
        return found

    assert digest(2) == token_digest(stop_token("k", UID, 2)) != digest(1)
    assert "TUNING_STOP_TOKEN_DIGEST" not in str(raycluster.build(a_run(), some_settings(), 1))
