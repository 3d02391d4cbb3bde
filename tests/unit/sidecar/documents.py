"""Builders of the documents that sidecar and driver read, with valid defaults."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuning_contract.directory import RunDirectory, relative_path
from tuning_contract.metrics import EVALUATION, TRAINER, MetricRecord
from tuning_contract.result import SUCCEEDED, RunResult
from tuning_contract.run_document import RunDocument

UID = "0a1b2c3d-0000-4000-8000-000000000000"


def a_run(name: str = "math-agent", remote_write_url: str = "") -> RunDocument:
    document = {
        "version": "0.1",
        "requires": [],
        "run": {"namespace": "ml", "name": name, "uid": UID},
        "seed": 0,
        "engine": {"type": "TRL", "rayVersion": "2.60.0"},
        "model": {"path": "/opt/model", "maxModelLength": 2048, "maxResponseTokens": 256},
        "dataset": {"path": "/opt/data/train.jsonl"},
        "algorithm": {
            "type": "multi_step_grpo",
            "learningRate": 1e-5,
            "groupSize": 8,
            "batchSize": 4,
            "epochs": None,
            "steps": 12,
            "saveEverySteps": 3,
            "evaluateEverySteps": 0,
            "klCoefficient": 0.0,
            "clipRange": 0.2,
            "gradientClip": 1.0,
            "warmupSteps": 0,
            "microBatchTokens": 4096,
        },
        "rollout": {
            "maxAttempts": 3,
            "minGroupSize": 2,
            "maxFailedRatio": 0.25,
            "concurrency": 32,
            "limits": {"turns": 32, "seconds": 300},
        },
        "workflow": {"entrypoint": "agent:run"},
        "checkpoint": {"directory": relative_path("ml", name, UID), "claimName": "c", "keepLast": 3},
        "cluster": {"nodes": 1, "gpus": 0},
        "metrics": {"remoteWrite": {"url": remote_write_url}} if remote_write_url else {},
    }
    return RunDocument.from_text(json.dumps(document))


def a_record(step: int, ts: float, attempt: int = 1, values: Mapping[str, float] | None = None) -> MetricRecord:
    return MetricRecord(
        ts=ts,
        attempt=attempt,
        role=TRAINER,
        step=step,
        target_steps=12,
        values={"reward_mean": step / 100, "policy_loss": -step / 1000, "kl": 0.01, **(values or {})},
    )


def an_evaluation(step: int, mean: float, ts: float, dataset: str = "heldout", attempt: int = 1) -> MetricRecord:
    values = {"mean": mean, "episodes": 120.0, "seconds": 40.0}
    return MetricRecord(ts, attempt, EVALUATION, step, 12, values, dataset)


def a_result(run: RunDocument, **changes: Any) -> RunResult:
    result = RunResult(
        run_uid=run.run.uid,
        run_digest=run.digest,
        attempt=1,
        outcome=SUCCEEDED,
        step=12,
        target_steps=12,
        finished_at=1.0,
        checkpoint=f"{run.checkpoint.directory}/checkpoints/step-000012",
        checkpoint_step=12,
        final_model=f"{run.checkpoint.directory}/final",
    )
    return replace(result, **changes)


def directory_of(run: RunDocument, volume: Path) -> RunDirectory:
    directory = RunDirectory(volume / run.checkpoint.directory)
    directory.root.mkdir(parents=True, exist_ok=True)
    return directory


def append(path: Path, *records: MetricRecord) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(record.to_line() + "\n" for record in records)
