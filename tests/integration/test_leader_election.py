"""Two operators and one Lease, on a real API server: one acts, the other waits, and nothing is made twice."""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.integration.operator_process import OperatorProcess, wait_for
from tests.integration.stage import CLUSTERS, JOBS, Stage
from tuning_contract.termination import EXIT_FAILED, TerminationMessage

pytestmark = pytest.mark.control_plane

MakeOperator = Callable[..., OperatorProcess]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
FAILURE = TerminationMessage(outcome="Failed", cause="ConfigInvalid", message="no such field", step=3, target_steps=12)
LONGEST_PAUSE = 20.0


class Pair:
    """A leader and a standby for one namespace."""

    def __init__(self, leader: OperatorProcess, standby: OperatorProcess, stage: Stage) -> None:
        """Start both, the leader first."""
        self.leader, self.standby, self.stage = leader.start(), standby.start(), stage
        assert (leads(leader), leads(standby)) == (True, False)

    def swap(self) -> None:
        """The standby has taken over."""
        self.leader, self.standby = self.standby, self.leader

    def wait_for_the_standby(self, seconds: float = LONGEST_PAUSE) -> float:
        """Wait until the standby leads; returns how long it took, in seconds."""
        began = time.monotonic()
        wait_for("new leader", lambda: leads(self.standby), seconds)
        self.swap()
        return time.monotonic() - began

    def writes(self) -> Counter[tuple[str, str]]:
        """Writes of both together about the runs of the namespace."""
        both = self.leader.writes(self.stage.namespace) + self.standby.writes(self.stage.namespace)
        return Counter({key: count for key, count in both.items() if key[1] != "leases"})


def leads(operator: OperatorProcess) -> bool:
    """Whether an operator says that it is the one that acts."""
    found = re.search(r"^tuning_operator_leader (\S+)$", operator.get("metrics"), re.MULTILINE)
    return bool(found) and float(found[1]) == 1.0


@pytest.fixture
def pair(another_operator: MakeOperator, stage: Stage) -> Pair:
    """Two operators of one namespace, in which their Lease lies, too."""
    places = {"WATCH_NAMESPACE": stage.namespace, "LEASE_NAMESPACE": stage.namespace}
    return Pair(another_operator(**places), another_operator(**places), stage)


def made_once(pair: Pair) -> None:
    """No child exists or was made twice."""
    stage = pair.stage
    assert len(stage.children(CLUSTERS)) <= 1
    assert len(stage.children(JOBS)) <= 1
    # The ConfigMap is not watched: whoever comes anew makes it again, which the server answers with its being there.
    assert [count for (verb, kind), count in pair.writes().items() if verb == "create" and kind != "configmaps"] == [
        1,
        1,
        1,
    ]


def test_the_standby_is_healthy_reads_all_and_writes_nothing(pair: Pair) -> None:
    driver = pair.stage.walk_to_running()
    wait_for("copy", lambda: 'tuning_operator_objects{kind="Job"} 1.0' in pair.standby.get("metrics"))
    assert pair.standby.is_healthy()
    assert pair.standby.writes(pair.stage.namespace) == {}
    assert "tuningrun_status_phase{" in pair.leader.get("metrics")
    assert "tuningrun_status_phase{" not in pair.standby.get("metrics")
    pair.stage.end_driver(driver, FAILURE, EXIT_FAILED)
    pair.stage.wait_for_phase("Failed")
    assert pair.standby.writes(pair.stage.namespace) == {}


def test_a_leader_that_is_killed_before_it_acted_is_followed_within_twenty_seconds(pair: Pair) -> None:
    began = time.monotonic()
    pair.leader.kill()
    pair.stage.apply()
    pair.stage.wait_for_phase("Starting", LONGEST_PAUSE)
    print(f"applied without a leader: children after {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < LONGEST_PAUSE
    pair.swap()
    pair.stage.run_head_pod()
    pair.stage.set_cluster_ready()
    pair.stage.wait_for_phase("Running")
    made_once(pair)


def test_a_leader_that_is_killed_while_the_cluster_starts_is_followed(pair: Pair) -> None:
    pair.stage.apply()
    pair.stage.wait_for_phase("Starting")
    began = time.monotonic()
    pair.leader.kill()
    pair.stage.run_head_pod()
    pair.stage.set_cluster_ready()
    pair.stage.wait_for_phase("Running", LONGEST_PAUSE)
    print(f"ready without a leader: Job after {time.monotonic() - began:.1f} s")
    pair.swap()
    made_once(pair)


def test_a_leader_that_is_killed_while_the_run_ends_is_followed_and_the_gpus_are_freed(pair: Pair) -> None:
    driver = pair.stage.walk_to_running()
    began = time.monotonic()
    pair.leader.kill()
    pair.stage.end_driver(driver, FAILURE, EXIT_FAILED)
    assert pair.stage.wait_for_phase("Failed", LONGEST_PAUSE)["reason"] == "ConfigInvalid"
    wait_for("freed cluster", lambda: not pair.stage.children(CLUSTERS))
    print(f"ended without a leader: verdict and clean-up after {time.monotonic() - began:.1f} s")
    pair.swap()
    made_once(pair)


def test_a_leader_that_is_killed_between_two_attempts_is_followed_and_no_attempt_is_made_twice(pair: Pair) -> None:
    pair.stage.lose_the_head(pair.stage.walk_to_running(retry={"backoffSeconds": 2}))
    pair.stage.wait_for_phase("Retrying")
    pair.leader.kill()
    pause = pair.wait_for_the_standby()
    pair.stage.free(1)
    driver = pair.stage.walk_on_to_running(2)
    print(f"killed while it waited to try again: the standby leads after {pause:.1f} s")
    pair.stage.end_driver(driver, FAILURE, EXIT_FAILED)
    status = pair.stage.wait_for_phase("Failed")
    assert [(item["number"], item["cause"]) for item in status["history"]] == [(1, "HeadLost"), (2, "ConfigInvalid")]
    assert {kind: pair.writes()["create", kind] for kind in ("rayclusters", "jobs")} == {"rayclusters": 2, "jobs": 2}


def test_a_run_that_is_well_sees_only_a_pause(pair: Pair) -> None:
    pair.stage.walk_to_running()
    version, before = pair.stage.run()["metadata"]["resourceVersion"], pair.writes()
    pair.leader.kill()
    pause = pair.wait_for_the_standby()
    print(f"killed: the standby leads after {pause:.1f} s")
    pair.stage.pass_by()
    assert pair.stage.run()["metadata"]["resourceVersion"] == version
    of_the_other = {("create", kind): 1 for kind in ("rayclusters", "configmaps", "persistentvolumeclaims")}
    assert pair.writes() - before == {**of_the_other, ("patch", "tuningruns/status"): 1}


def test_a_leader_that_ends_in_good_order_is_followed_within_three_seconds(pair: Pair) -> None:
    pair.stage.walk_to_running()
    began = time.monotonic()
    assert pair.leader.stop() == 0
    stopped = time.monotonic() - began
    pair.wait_for_the_standby(3)
    print(f"stopped in {stopped:.1f} s: the standby leads after {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 3
    pair.stage.pass_by()


def test_a_leader_that_was_asleep_ends_by_itself_and_writes_nothing_more(pair: Pair) -> None:
    driver = pair.stage.walk_to_running()
    os.kill(pair.leader.pid, signal.SIGSTOP)
    try:
        pair.stage.end_driver(driver, FAILURE, EXIT_FAILED)
        pair.wait_for_the_standby()
        pair.stage.wait_for_phase("Failed")
    finally:
        os.kill(pair.standby.pid, signal.SIGCONT)
    before = pair.standby.requests(pair.stage.namespace)
    assert pair.standby.wait(10) not in (0, None)
    assert {
        key for key in pair.standby.requests(pair.stage.namespace) - before if key[0] not in ("list", "watch")
    } == set()
    assert "errors.Deposed" in pair.standby.log


def test_a_leader_without_the_right_to_its_lease_ends_and_says_what_is_missing(pair: Pair) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/test-{pair.leader.user}"
    pair.stage.api.request("DELETE", path)
    assert pair.leader.wait(20) not in (0, None)
    assert 'cannot patch resource "leases"' in pair.leader.log
    pair.wait_for_the_standby()


def test_a_single_operator_that_is_killed_leads_again_when_its_lease_is_over(
    another_operator: MakeOperator, stage: Stage
) -> None:
    operator = another_operator(WATCH_NAMESPACE=stage.namespace, LEASE_NAMESPACE=stage.namespace).start()
    assert leads(operator)
    began = time.monotonic()
    operator.kill()
    operator.start()
    wait_for("leader", lambda: leads(operator), LONGEST_PAUSE)
    print(f"killed and started again: it leads after {time.monotonic() - began:.1f} s")
    (lease,) = stage.api.get(LEASES.format(stage.namespace))["items"]
    assert lease["spec"]["leaseTransitions"] == 1
    assert operator.stop() == 0
    began = time.monotonic()
    operator.start()
    assert leads(operator)
