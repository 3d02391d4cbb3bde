"""The wait for Ray's nodes and GPUs, and the connection, with a scripted Ray. A real one: `test_ray_workers`."""

import signal
import sys
from types import SimpleNamespace

import pytest

from tuning_contract.causes import Cause
from tuning_contract.run_document import ExpectedCluster
from tuning_runner import ray_cluster
from tuning_runner.episodes.errors import RunError


def a_node(gpus: float = 0.0, alive: bool = True) -> dict[str, object]:
    return {"Alive": alive, "Resources": {"CPU": 4.0} | ({"GPU": gpus} if gpus else {})}


@pytest.fixture
def scripted(monkeypatch):
    """`scripted([...])`: what Ray shows at each look, the last for ever."""

    def script(*looks: list[dict[str, object]]) -> list[str]:
        calls: list[str] = []
        left = list(looks)

        def init(log_to_driver: bool, **_: object) -> None:
            calls.append("init, output here" if log_to_driver else "init")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray puts its own handler there

        fake = SimpleNamespace(
            init=init,
            nodes=lambda: left.pop(0) if len(left) > 1 else left[0],
            shutdown=lambda: calls.append("shutdown"),
        )
        monkeypatch.setitem(sys.modules, "ray", fake)
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
        monkeypatch.setattr(ray_cluster.time, "sleep", lambda seconds: None)
        return calls

    return script


def test_it_waits_until_nodes_and_gpus_are_those_of_the_run(scripted):
    calls = scripted([a_node()], [a_node(), a_node(8, alive=False)], [a_node(), a_node(8)])
    said: list[str] = []
    with ray_cluster.joined(ExpectedCluster(2, 8), said.append):
        assert calls == ["init", "shutdown"]
    assert said == ["waiting for Ray: 1 of 2 nodes, 0 of 8 GPUs"]


def test_with_episode_nodes_the_connection_stays_until_the_end_and_brings_their_output(scripted):
    calls = scripted([a_node(), a_node()])
    with ray_cluster.joined(ExpectedCluster(2, 0, episode_nodes=1), lambda line: None):
        assert calls == ["init, output here"]
    assert calls == ["init, output here", "shutdown"]


def test_the_runners_own_handler_of_the_signal_to_stop_outlives_the_connection(scripted):
    before = signal.getsignal(signal.SIGTERM)
    scripted([a_node(), a_node()])
    with ray_cluster.joined(ExpectedCluster(2, 0, episode_nodes=1), lambda line: None):
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_cluster_that_stays_too_small_is_a_lost_worker(scripted):
    calls = scripted([a_node()])
    with (
        pytest.raises(RunError, match="Ray has 1 nodes with 0 GPUs after 0 s, expected 2 with 8") as caught,
        ray_cluster.joined(ExpectedCluster(2, 8), lambda line: None, patience=0),
    ):
        pytest.fail("the run began")
    assert caught.value.cause is Cause.WORKER_LOST
    assert calls == ["init", "shutdown"]


def test_a_head_alone_needs_no_look(scripted):
    calls = scripted([a_node()])
    with ray_cluster.joined(ExpectedCluster(1, 0), lambda line: None):
        assert calls == []


def test_outside_a_ray_job_there_is_nothing_to_wait_for(scripted, monkeypatch):
    calls = scripted([a_node()])
    monkeypatch.delenv("RAY_ADDRESS")
    with ray_cluster.joined(ExpectedCluster(2, 8), lambda line: None):
        assert calls == []


def test_episode_nodes_outside_a_ray_job_are_a_config_error(scripted, monkeypatch):
    calls = scripted([a_node()])
    monkeypatch.delenv("RAY_ADDRESS")
    with (
        pytest.raises(RunError, match=r"set `cluster.episodeNodes` to 0") as caught,
        ray_cluster.joined(ExpectedCluster(2, 0, episode_nodes=1), lambda line: None),
    ):
        pytest.fail("the run began")
    assert caught.value.cause is Cause.CONFIG_INVALID
    assert calls == []
