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


@pytest.fixture
def caches() -> Caches:
    found = some_caches()
    for informer in found.all():
        informer.synced.set()
    return found


async def test_health_waits_for_all_copies() -> None:
    shown, caches = Telemetry(), some_caches()
    assert shown.complaint() == "not connected yet"
    shown.show(caches, WorkQueue())
    assert shown.complaint() == "TuningRun is not read yet"
    for informer in caches.all():
        informer.synced.set()
    assert shown.complaint() == ""


async def test_a_watch_that_lost_the_server_is_unhealthy(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue())
    monkeypatch.setattr(telemetry, "STALE_SECONDS", -1.0)
    assert shown.complaint().startswith("nothing was heard of TuningRun")


async def test_a_late_loop_is_unhealthy(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue())
    monkeypatch.setattr(Telemetry, "lag", 9.0)
    assert shown.complaint() == "the event loop is 9.0 s late"


async def test_a_runs_series_live_as_long_as_its_object(caches: Caches) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue())
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


async def test_a_reward_that_is_not_there_yet_has_no_sample(caches: Caches) -> None:
    shown = Telemetry()
    shown.show(caches, WorkQueue())
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
