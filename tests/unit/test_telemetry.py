"""The operator's own health and figures."""

import json
import logging
from typing import Any

import pytest
from prometheus_client import generate_latest

from tests.builders import a_run_object
from tests.unit.cluster.caches import some_caches
from tests.unit.engine.worlds import RUNNING
from tuning_operator import telemetry
from tuning_operator.cluster.observe import Caches
from tuning_operator.cluster.queue import WorkQueue
from tuning_operator.telemetry import JsonLines, Telemetry


def leading() -> bool:
    """Whether this process acts: it does."""
    return True


@pytest.fixture
def caches() -> Caches:
    found = some_caches()
    for informer in found.all():
        informer.synced.set()
    return found


async def test_health_waits_for_all_copies() -> None:
    shown, caches = Telemetry(), some_caches()
    assert shown.complaint() == "not connected yet"
    shown.show(caches, WorkQueue(), leading)
    assert shown.complaint() == "TuningRun is not read yet"
    for informer in caches.all():
        informer.synced.set()
    assert shown.complaint() == ""


async def test_a_watch_that_lost_the_server_is_unhealthy(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue(), leading)
    monkeypatch.setattr(telemetry, "STALE_SECONDS", -1.0)
    assert shown.complaint().startswith("nothing was heard of TuningRun")


async def test_a_late_loop_is_unhealthy(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue(), leading)
    monkeypatch.setattr(Telemetry, "lag", 9.0)
    assert shown.complaint() == "the event loop is 9.0 s late"


async def test_a_runs_series_live_as_long_as_its_object(caches: Caches) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue(), leading)
    progress = {"step": 3, "targetSteps": 12, "reward": "0.432"}
    raw = a_run_object(status={**RUNNING, "progress": progress, "usage": {"gpuSeconds": 600}})
    caches.runs.put(raw)
    text = generate_latest(shown.registry).decode()
    assert 'tuningrun_status_phase{namespace="ml",phase="Running",run="math-agent"} 1.0' in text
    assert 'tuningrun_status_phase{namespace="ml",phase="Failed",run="math-agent"} 0.0' in text
    assert 'tuningrun_status_reward_mean{namespace="ml",run="math-agent"} 0.432' in text
    assert 'tuningrun_status_gpu_seconds{namespace="ml",run="math-agent"} 600.0' in text
    caches.runs.drop("ml", "math-agent", raw["metadata"]["uid"])
    assert 'run="math-agent"' not in generate_latest(shown.registry).decode()


async def test_only_the_leader_tells_of_runs_so_that_each_has_one_series(caches: Caches) -> None:
    caches.runs.put(a_run_object(status=RUNNING))
    for leads in (True, False):
        shown = Telemetry()
        shown.show(caches, WorkQueue(), lambda leads=leads: leads)  # type: ignore[misc]
        text = generate_latest(shown.registry).decode()
        assert f"tuning_operator_leader {float(leads)}" in text
        assert ('run="math-agent"' in text) is leads
        assert ("tuning_operator_runs{" in text) is leads
        assert 'tuning_operator_objects{kind="TuningRun"} 1.0' in text


async def test_runs_are_counted_by_phase_and_their_ended_attempts_by_cause(caches: Caches) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue(), leading)
    lost = {"number": 1, "outcome": "Failed", "cause": "HeadLost", "counted": True}
    history = [lost, lost | {"number": 2}, {"number": 3, "outcome": "Stopped"}]
    attempt = RUNNING["attempt"] | {"number": 4, "countedFailures": 2}
    caches.runs.put(a_run_object(status={**RUNNING, "phase": "Suspended", "attempt": attempt, "history": history}))
    caches.runs.put(a_run_object(metadata={"name": "new", "uid": "another"}, status={}))
    text = generate_latest(shown.registry).decode()
    ended = 'tuningrun_status_ended_attempts{{cause="{}",namespace="ml",outcome="{}",run="math-agent"}} {}'
    assert ended.format("HeadLost", "Failed", "2.0") in text
    assert ended.format("", "Stopped", "1.0") in text
    assert 'tuningrun_status_counted_failures{namespace="ml",run="math-agent"} 2.0' in text
    assert 'tuning_operator_runs{phase="Suspended"} 1.0' in text
    assert 'tuning_operator_runs{phase="Pending"} 1.0' in text
    assert 'tuning_operator_runs{phase="Running"} 0.0' in text


async def test_a_reward_that_is_not_there_yet_has_no_sample(caches: Caches) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue(), leading)
    caches.runs.put(a_run_object(status={**RUNNING, "progress": {"step": 0, "reward": "-"}}))
    assert 'tuningrun_status_reward_mean{namespace="ml"' not in generate_latest(shown.registry).decode()


def test_requests_and_passes_are_counted() -> None:
    shown = Telemetry()
    shown.requested("create", "jobs", 201, 0.01)
    shown.passed("ok", 0.002)
    text = generate_latest(shown.registry).decode()
    assert 'tuning_operator_api_requests_total{code="201",resource="jobs",verb="create"} 1.0' in text
    assert 'tuning_operator_reconciles_total{outcome="ok"} 1.0' in text


def test_a_log_line_is_one_json_object_even_with_a_trace() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", 40, __file__, 1, "it %s", ("broke",), exc_info=_exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["message"]) == ("error", "it broke")
    assert "ValueError: boom" in found["trace"]


def _exc_info() -> Any:
    import sys

    return sys.exc_info()
