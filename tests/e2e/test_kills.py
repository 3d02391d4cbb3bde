"""Anything may be killed at any time: every row of the table in `kills` is a test of a run that it happens to.

`make kill` runs all of them, `make test` those that happen most.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.full import FullCluster
from tests.e2e.accidents import SAVE_EVERY
from tests.e2e.conftest import NAMESPACE, Installation
from tests.e2e.kills import FAILED, GONE, KILLS, RUNNING, STARTING, SUCCEEDED, Kill
from tests.e2e.scene import Scene, Step
from tests.harness import Object, install_operator

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def as_parameter(kill: Kill) -> object:
    """The row as a test that is selected by its name, or by how often it is run."""
    marks = [pytest.mark.cluster, pytest.mark.timeout(900)]
    return pytest.param(kill, id=kill.name, marks=marks if kill.often else [*marks, pytest.mark.kill])


class ChartValues:
    """The values that the chart is installed with: a row that needs others installs it anew."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._values: dict[str, str] = {}

    def become(self, values: dict[str, str]) -> None:
        """Install the chart with these values, unless it is."""
        if values != self._values:
            install_operator(self._installation.cluster, self._installation.images, values=values)
            self._values = values


@pytest.fixture(scope="module")
def chart_values(installation: Installation) -> Iterator[ChartValues]:
    """The chart's values, put back at the end."""
    values = ChartValues(installation)
    yield values
    values.become({})


@pytest.mark.parametrize("kill", [as_parameter(kill) for kill in KILLS])
def test_a_run_comes_to_its_right_end_after(
    kill: Kill, installation: Installation, cluster: FullCluster, chart_values: ChartValues
) -> None:
    chart_values.become(dict(kill.values))
    namespace = f"{NAMESPACE}-{kill.name}" if kill.name.startswith("namespace") else NAMESPACE
    installation.cluster.ensure_namespace(namespace, RESTRICTED)
    scene = Scene(installation, cluster, kill.name, namespace)
    with scene.undo:
        try:
            run_to_its_end(kill, scene)
        except Exception as error:
            error.add_note(scene.evidence())
            raise


def run_to_its_end(kill: Kill, scene: Scene) -> None:
    """Apply the row's run, do to it what the row says, and compare what becomes of it."""
    scene.start(*kill.run(scene))
    wait_until(kill.when, scene)
    kill.act(scene)
    if kill.phase == GONE:
        scene.wait_until_gone()
        return
    run = scene.end(kill.seconds)
    assert_ended_as_expected(kill, run)
    assert_steps_are_kept(kill, scene.steps())
    scene.wait_until_nothing_is_left()
    if kill.phase == SUCCEEDED:  # with the head, the sidecar has sent what it had
        assert_one_reward_for_each_step(scene, run)
    scene.kubectl("delete", "trun", kill.name, "--wait=false")
    scene.wait_until_gone()


def wait_until(when: str, scene: Scene) -> None:
    """Wait for the moment of a kill."""
    if when == STARTING:
        scene.pod("head")
        assert not scene.objects("jobs"), "the head pod was seen too late"
    if when == RUNNING:
        scene.wait_for_step(3)


def assert_ended_as_expected(kill: Kill, run: Object) -> None:
    """Compare phase, causes, attempts and what is counted with the row."""
    status = run["status"]
    history = [entry for entry in status.get("history", []) if entry["outcome"] == "Failed"]
    assert status["phase"] == kill.phase, status
    assert status["attempt"]["number"] == kill.attempts, status
    assert tuple(entry["cause"] for entry in history) == kill.causes, status
    assert sum(bool(entry.get("counted")) for entry in history) == kill.counted, status
    assert kill.says in " ".join([status.get("message", ""), *(entry.get("message", "") for entry in history)]), status
    if kill.phase == FAILED:
        assert status["reason"] == kill.causes[-1], status
    else:
        assert status["progress"]["step"] == run["spec"]["algorithm"]["steps"], status


def assert_steps_are_kept(kill: Kill, steps: list[Step]) -> None:
    """Each attempt goes on where the one before was saved, and only the last of them makes a step for good."""
    for attempt in sorted({step.attempt for step in steps})[1:]:
        before = max(step.number for step in steps if step.attempt < attempt)
        first = min(step.number for step in steps if step.attempt == attempt)
        saved = before if kill.saves else before - before % SAVE_EVERY
        assert saved < first <= before + 1, f"attempt {attempt} began with step {first} after step {before}"
        own = [step.number for step in steps if step.attempt == attempt]
        assert own == list(range(first, first + len(own)))


def assert_one_reward_for_each_step(scene: Scene, run: Object) -> None:
    """The reward curve in Prometheus has a value at the time of each step, and one more only where a step was redone.

    What was pushed of a step that is lost afterwards stays where it was in time; the newest value is the step's.
    """
    steps = scene.steps()
    series = f'tuningrun_reward_mean{{run="{scene.name}",namespace="{scene.namespace}"}}'
    # Not since its creation: a run of the same name that was deleted a moment before may have ended a step after that.
    pushed = [at for at, _ in scene.here.cluster.samples(series, steps[0].at - 0.1)]
    kept = {step.number: step.at for step in steps}
    assert len(kept) == run["spec"]["algorithm"]["steps"]
    assert not [number for number, at in kept.items() if not is_among(at, pushed)], "steps without a value"
    assert not [at for at in pushed if not is_among(at, [step.at for step in steps])], "values that no step has"


def is_among(moment: float, moments: list[float]) -> bool:
    """Whether it is one of them, as Prometheus keeps them: in whole milliseconds."""
    return any(abs(moment - other) < 0.002 for other in moments)
