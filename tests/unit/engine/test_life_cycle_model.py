"""Whatever happens, in whatever order: the rules of the life cycle hold, and every run comes to an end.

The real operator, in simulated time, on a simulated cluster in which hypothesis lets things happen. What must hold at
every write is in `life_cycle_rules`. LIFE_CYCLE_EXAMPLES asks for a deeper search than CI has time for.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.builders import a_run_object, merged, some_settings
from tests.unit.engine.life_cycle_rules import LifeCycleRules
from tests.unit.engine.simulated_api import WATCHED, Fault, Raw, SimulatedApi
from tests.unit.engine.simulated_cluster import SimulatedCluster, has_ended
from tests.unit.engine.simulated_operator import SimulatedOperator, SimulatedTime
from tests.unit.engine.simulated_training import Move
from tuning_contract.causes import Cause
from tuning_contract.result import FAILED
from tuning_operator.api.conditions import Phase
from tuning_operator.api.meta import COMPONENT_HEAD
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.cluster.resources import JOBS, PODS, RAY_CLUSTERS, TUNING_RUNS, Resource

EXAMPLES = int(os.environ.get("LIFE_CYCLE_EXAMPLES", "250"))
STEPS = 40
SETTLES = 600
"""Rounds in which every run must have come to its end once all is well."""
ROUNDS_OF_OLD_PLANS = 8
"""What was planned before the run was suspended may be written for so long."""
ROUNDS_TO_A_TRAINING = 40

WORKERS = [{"name": "agents", "replicas": 2}]
RULES = [{"causes": ["EngineError"], "action": "RetryUncounted"}, {"causes": ["HeadLost"], "action": "Fail"}]
SPECS = st.fixed_dictionaries(
    {
        "algorithm": st.just({"steps": 8}),
        "cluster": st.sampled_from([{}, {"workers": WORKERS}]),
        "retry": st.fixed_dictionaries(
            {
                "maxAttempts": st.sampled_from([3, 2, 3, 1]),
                "backoffSeconds": st.sampled_from([30, 0]),
                "rules": st.sampled_from([[], [], [], RULES]),
            }
        ),
        "deadlines": st.fixed_dictionaries(
            {"startSeconds": st.sampled_from([3600, 300]), "activeSeconds": st.sampled_from([None, None, 1000])}
        ),
        "cleanup": st.fixed_dictionaries(
            {"clusterTTLSeconds": st.sampled_from([0, 600]), "runTTLSeconds": st.sampled_from([None, 3600])}
        ),
        "suspend": st.sampled_from([False, False, False, True]),
    }
)
COUNT = st.sampled_from([5, 1, 2, 10, 20])
"""How many things happen, one after the other."""
ORDER = st.integers(0, 2**24 - 1)
"""Which of the things that could happen next do happen: two bits each, over and over."""


class LifeCycle(RuleBasedStateMachine):
    """One run, one operator, one cluster, and all that may happen to them."""

    @initialize(
        spec=SPECS, stop_key=st.sampled_from(["key", ""]), remakes_heads=st.booleans(), steps=st.integers(0, 30)
    )
    def begin(self, spec: dict[str, Any], stop_key: str, remakes_heads: bool, steps: int) -> None:
        """A run is created, and for a while all goes well."""
        self.loop = SimulatedTime()
        self.late: Resource | None = None
        self.api = SimulatedApi(self.loop.now)
        raw = a_run_object(**_without_nothing(spec))
        run = TuningRun.from_object(raw)
        self.cluster = SimulatedCluster(self.api, self.loop.now, run, stop_key, remakes_heads)
        options = some_settings(stop_key=stop_key)
        self.life_cycle = LifeCycleRules(self.api, self.cluster, options)
        self.operator = SimulatedOperator(self.loop, self.api, self.cluster, options)
        self.operator.start()
        self.api.put(TUNING_RUNS, raw)
        self._go_on(steps, 0)

    def teardown(self) -> None:
        if not hasattr(self, "operator"):
            return
        try:
            self._settle()
        finally:
            self.operator.close()
            self.loop.close()

    # The world goes its way.

    @rule(count=COUNT, order=ORDER)
    def things_go_on(self, count: int, order: int) -> None:
        """The operator sees and does everything as it happens."""
        self._go_on(count, order)

    @rule(count=COUNT, order=ORDER)
    def things_happen_unseen(self, count: int, order: int) -> None:
        """The watches lag, and the operator does nothing meanwhile."""
        for number in range(count):
            self._move(order, number)

    @rule(head_dies=st.booleans())
    def all_goes_well_until_a_training_runs(self, head_dies: bool) -> None:
        """Without it few examples would come to a second attempt: so much has to happen before."""
        pause = 1
        for _ in range(ROUNDS_TO_A_TRAINING):
            if any(not training.ended for training in self.cluster.trainings.values()):
                break
            before = self.cluster.moves()
            self._go_on(1, 0)
            pause = 1 if before else min(pause * 2, 64)
            self.operator.work(pause)
        heads = [pod for pod in self.cluster.pods.values() if pod.component == COMPONENT_HEAD]
        if head_dies and heads and not heads[-1].node_lost and heads[-1].phase == "Running":
            self.cluster.end_pod(heads[-1], 137, "killed")

    @rule(resource=st.sampled_from(WATCHED), count=st.integers(1, 5))
    def news_of_one_kind_comes(self, resource: Resource, count: int) -> None:
        self.api.deliver(resource, count)
        self.operator.work()

    @rule(seconds=st.sampled_from([1, 5, 10, 31, 61, 160, 310, 620, 3601]))
    def time_passes(self, seconds: int) -> None:
        self.operator.work(seconds)

    @rule()
    def sidecars_are_polled(self) -> None:
        self.operator.poll()
        self.operator.work()

    # The operator and the API server have their troubles.

    @rule(fault=st.sampled_from(Fault), restarts=st.booleans())
    def a_write_goes_wrong(self, fault: Fault, restarts: bool) -> None:
        self.api.faults.append(fault)
        self.operator.work()
        if restarts:
            self.the_operator_restarts()

    @rule()
    def the_operator_restarts(self) -> None:
        self.api.note("the operator restarts")
        self.operator.kill()
        self.operator.start()

    @rule(slow=st.booleans(), count=st.integers(0, 3))
    def writes_wait(self, slow: bool, count: int) -> None:
        """While they wait the world goes on: what was planned is old when it is done."""
        self.api.slow = slow
        self.api.let_through(count if slow else self.api.waiting)
        self.operator.work()

    @rule(resource=st.sampled_from([PODS, RAY_CLUSTERS, JOBS, TUNING_RUNS, None]))
    def one_watch_lags_behind_all_others(self, resource: Resource | None) -> None:
        """Until another one does, or none."""
        self.late = resource

    @rule(resource=st.sampled_from(WATCHED))
    def a_watch_loses_its_history(self, resource: Resource) -> None:
        self.api.lose_history(resource)
        self.operator.work()

    # Pods, nodes and trainings have theirs.

    @precondition(lambda self: self.cluster.pods)
    @rule(
        number=st.integers(0, 5), what=st.sampled_from(["dies", "restarts", "is evicted", "is preempted", "vanishes"])
    )
    def a_pod_is_lost(self, number: int, what: str) -> None:
        pod = self._pod(number)
        happens: dict[str, Callable[[], None]] = {
            "dies": lambda: self.cluster.end_pod(pod, 137, "killed", "OOMKilled"),
            "restarts": lambda: self.cluster.restart_container(pod),
            "is evicted": lambda: self.cluster.disrupt(pod, "EvictionByEvictionAPI"),
            "is preempted": lambda: self.cluster.disrupt(pod, "PreemptionByScheduler"),
            "vanishes": lambda: self.cluster.vanish(pod),
        }
        if not pod.node_lost and (pod.phase == "Running" or what == "vanishes"):
            happens[what]()

    @precondition(lambda self: self.cluster.pods)
    @rule(number=st.integers(0, 5), given_up=st.booleans())
    def a_node_dies(self, number: int, given_up: bool) -> None:
        pod = self._pod(number)
        if pod.node_lost:
            return
        self.cluster.lose_node(pod)
        if given_up:
            self.operator.work(301)
            self.cluster.disrupt(pod, "DeletionByTaintManager")

    @precondition(lambda self: self.cluster.trainings)
    @rule(cause=st.sampled_from([Cause.ENGINE_ERROR, Cause.WORKFLOW_ERROR, "", "stalls"]))
    def a_training_fails(self, cause: str) -> None:
        training = list(self.cluster.trainings.values())[-1]
        if training.ended:
            return
        if cause == "stalls":
            training.stalls = True
        elif cause:
            training.end(FAILED, cause)
        else:
            training.kill()

    @rule(what=st.sampled_from(["has_room", "has_images", "sidecars_answer"]))
    def the_cluster_changes(self, what: str) -> None:
        setattr(self.cluster, what, not getattr(self.cluster, what))

    # People do what they like.

    @precondition(lambda self: self.api.all(RAY_CLUSTERS))
    @rule(slowly=st.booleans())
    def somebody_deletes_the_cluster(self, slowly: bool) -> None:
        self.cluster.delete_cluster(self.api.all(RAY_CLUSTERS)[0], slowly)

    @precondition(lambda self: self.api.all(JOBS))
    @rule()
    def somebody_deletes_a_job(self) -> None:
        self.api.remove(JOBS, self.api.all(JOBS)[-1])

    @precondition(lambda self: self._run())
    @rule(seen=st.booleans())
    def the_user_suspends_or_resumes(self, seen: bool) -> None:
        self.api.note("the user suspends or resumes")
        self._edit({"suspend": not self._spec().get("suspend", False)})
        if seen:
            self._go_on(0, 0)

    @precondition(lambda self: self._run())
    @rule(seconds=st.sampled_from([None, 100, 5000]))
    def the_user_changes_a_deadline(self, seconds: int | None) -> None:
        self._edit({"deadlines": {"activeSeconds": seconds}})

    @precondition(lambda self: self._run() and self.cluster.made > 3)
    @rule(sure=st.integers(0, 3))
    def the_user_deletes_the_run(self, sure: int) -> None:
        if sure == 3:
            self.api.remove(TUNING_RUNS, self._run() or {})

    # What always holds.

    @invariant()
    def no_rule_is_broken(self) -> None:
        if hasattr(self, "operator"):
            wrong = [*self.life_cycle.broken, *self.operator.bugs.found]
            assert not wrong, f"{wrong}, after:\n{self._story()}"
            normal = [event["reason"] for event in self.api.events.values() if event["type"] == "Normal"]
            assert len(normal) <= 3, normal

    def _go_on(self, count: int, order: int) -> None:
        for number in range(count):
            self._see()
            self._move(order, number)
        self._see()

    def _see(self) -> None:
        for resource in WATCHED:
            if resource is not self.late:
                self.api.deliver(resource, self.api.lag(resource))
        self.operator.work(1)

    def _move(self, order: int, number: int) -> None:
        moves = self.cluster.moves()
        if moves:
            self._do(moves[(order >> 2 * number % 24 & 3) % len(moves)])

    def _do(self, move: Move) -> None:
        self.api.note(move[0])
        move[1]()

    def _pod(self, number: int) -> Any:
        pods = list(self.cluster.pods.values())
        return pods[number % len(pods)]

    def _run(self) -> Raw | None:
        return next(iter(self.api.all(TUNING_RUNS)), None)

    def _spec(self) -> Raw:
        spec: Raw = (self._run() or {})["spec"]
        return spec

    def _edit(self, changes: Raw) -> None:
        raw = self._run() or {}
        metadata = {**raw["metadata"], "generation": raw["metadata"]["generation"] + 1}
        self.api.put(TUNING_RUNS, {**raw, "metadata": metadata, "spec": merged(raw["spec"], changes)})

    def _settle(self) -> None:
        """All is well from now on: the run must come to its end, and leave nothing behind."""
        self.api.slow, self.late = False, None
        self.api.faults.clear()
        self.api.let_through(self.api.waiting)
        self.cluster.has_room = self.cluster.has_images = self.cluster.sidecars_answer = True
        began, pause = self.loop.now(), 1.0
        for number in range(SETTLES):
            self.api.deliver_all()
            self.operator.work()
            known = number >= ROUNDS_OF_OLD_PLANS and self._run() is not None
            self.life_cycle.suspension_is_known = known and self._spec().get("suspend", False)
            self.no_rule_is_broken()
            moves = [move for move in self.cluster.moves() if "hears nothing" not in move[0]]
            if moves:
                self._do(moves[0])
                pause = 1.0
                continue
            if self._is_over():
                if self._run() is None or not self._spec().get("suspend"):
                    return
                self._edit({"suspend": False})
                self.life_cycle.suspension_is_known = False
                continue
            self.operator.work(pause)
            pause = min(pause * 2, 3600.0)
            if pause > 60:
                self._move(0, 0)
        raise AssertionError(f"after {self.loop.now() - began} the run is still not over:\n{self._story()}")

    def _is_over(self) -> bool:
        run = self._run()
        if self.api.all(RAY_CLUSTERS) or not all(map(has_ended, self.api.all(JOBS))):
            return False
        if run is None:
            return True
        phase = Phase(run.get("status", {}).get("phase", "Pending"))
        return phase.terminal or (phase is Phase.SUSPENDED and self._spec().get("suspend") is True)

    def _story(self) -> str:
        """What happened last, and what there is now."""
        status = (self._run() or {}).get("status") or {}
        told = {key: status.get(key) for key in ("phase", "reason", "message", "attempt")}
        pods = [(pod.name, pod.phase, pod.deleting, pod.disruption) for pod in self.cluster.pods.values()]
        now = [told, pods, [name for name, _ in self.cluster.moves()]]
        return "\n".join([*self.api.chronicle[-60:], *map(str, now)])


def _without_nothing(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec without its empty values."""
    return {
        key: _without_nothing(value) if isinstance(value, dict) else value
        for key, value in spec.items()
        if value is not None
    }


def test_pods_of_a_cluster_that_no_status_has_named_are_awaited() -> None:
    # Found by the search below: the RayCluster is made, the ConfigMap is not, and the run is suspended meanwhile.
    state = LifeCycle()
    state.begin(spec={"suspend": True}, stop_key="", remakes_heads=False, steps=0)
    state.writes_wait(slow=True, count=0)
    state.the_user_suspends_or_resumes(seen=True)
    while not state.api.all(RAY_CLUSTERS):
        state.writes_wait(slow=True, count=1)
    state.operator.kill()
    state.things_happen_unseen(count=4, order=0)
    state.the_user_suspends_or_resumes(seen=False)
    state.operator.start()
    state.writes_wait(slow=False, count=0)
    state.no_rule_is_broken()
    state.teardown()


@pytest.mark.timeout(0)
def test_whatever_happens_the_rules_hold_and_every_run_comes_to_an_end() -> None:
    profile = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=timedelta(seconds=60),
        derandomize="LIFE_CYCLE_EXAMPLES" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(LifeCycle, settings=profile)
