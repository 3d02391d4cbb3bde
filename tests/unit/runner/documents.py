"""Builders of run documents for the runner's tests: valid defaults, any field by keyword."""

import dataclasses
from pathlib import Path
from typing import Any

from tuning_contract.run_document import (
    AlgorithmSettings,
    CheckpointSettings,
    DatasetSettings,
    EngineSettings,
    EvaluationSet,
    ExpectedCluster,
    ModelSettings,
    RolloutLimits,
    RolloutSettings,
    RunDocument,
    RunIdentity,
    WorkflowSettings,
)

REPOSITORY = Path(__file__).parents[3]
TINY = REPOSITORY / "images/examples/tiny"
DIRECTORY = "ml/tiny-abcdef"


def an_algorithm(**changes: Any) -> AlgorithmSettings:
    values: dict[str, Any] = dict(
        type="multi_step_grpo",
        learning_rate=1.5e-3,
        group_size=16,
        batch_size=20,
        epochs=None,
        steps=4,
        save_every_steps=2,
        evaluate_every_steps=0,
        kl_coefficient=0.0,
        clip_range=0.2,
        gradient_clip=1.0,
        warmup_steps=0,
        micro_batch_tokens=4096,
    )
    return AlgorithmSettings(**values | changes)


def a_run_document(model: Path = Path("/nowhere"), **changes: Any) -> RunDocument:
    run = RunDocument(
        version="0.1",
        requires=("trl", "evaluation"),
        run=RunIdentity("ml", "tiny", "abcdef12-3456"),
        seed=0,
        engine=EngineSettings("TRL", "2.60.0"),
        model=ModelSettings(str(model), max_model_length=64, max_response_tokens=4),
        dataset=DatasetSettings(
            str(TINY / "train.jsonl"),
            hidden_fields=("answer",),
            evaluation=(EvaluationSet("heldout", str(TINY / "heldout.jsonl"), samples_per_task=4),),
        ),
        algorithm=an_algorithm(),
        rollout=RolloutSettings(2, 2, 0.25, 64, RolloutLimits(turns=4, seconds=30)),
        workflow=WorkflowSettings("tiny_agent:run", "tiny_agent:judge"),
        checkpoint=CheckpointSettings(DIRECTORY, "claim", keep_last=2),
        cluster=ExpectedCluster(nodes=1, gpus=0),
    )
    return dataclasses.replace(run, **changes)
