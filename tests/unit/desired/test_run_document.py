"""run.json: everything resolved, nothing left to a default of the runner."""

import json

from tests.builders import UID, a_run
from tuning_contract.run_document import RunDocument
from tuning_contract.version import FEATURES
from tuning_operator.desired import run_document

SMALLEST = {
    "version": "0.2",
    "requires": ["trl"],
    "run": {"namespace": "ml", "name": "math-agent", "uid": UID},
    "seed": 0,
    "engine": {"type": "TRL", "rayVersion": "2.60.0"},
    "model": {
        "path": "/opt/models/tiny",
        "maxModelLength": 2048,
        "maxResponseTokens": 256,
        "sampling": {"temperature": 1.0, "topP": 1.0},
        "chatTemplatePath": None,
    },
    "dataset": {
        "path": "/opt/data/tiny/train.jsonl",
        "order": "Shuffle",
        "hiddenFields": [],
        "evaluation": [],
    },
    "algorithm": {
        "type": "multi_step_grpo",
        "learningRate": 0.001,
        "groupSize": 8,
        "batchSize": 8,
        "epochs": None,
        "steps": 12,
        "saveEverySteps": 20,
        "evaluateEverySteps": 0,
        "klCoefficient": 0.0,
        "clipRange": 0.2,
        "gradientClip": 1.0,
        "warmupSteps": 0,
        "microBatchTokens": 4096,
        "lora": None,
    },
    "rollout": {
        "maxAttempts": 3,
        "minGroupSize": 2,
        "maxFailedRatio": 0.25,
        "concurrency": 32,
        "limits": {"turns": 32, "seconds": 300},
    },
    "workflow": {"entrypoint": "tiny_agent:run", "judge": "tiny_agent:judge"},
    "checkpoint": {"directory": "ml/math-agent-3f9a1c", "claimName": "math-agent-3f9a1c", "keepLast": 3},
    "cluster": {"nodes": 1, "gpus": 0},
    "metrics": {"remoteWrite": None},
}


def test_the_smallest_run_is_resolved_completely() -> None:
    assert json.loads(run_document.build(a_run()).to_text()) == SMALLEST


def test_the_runner_parses_what_the_operator_writes() -> None:
    document = run_document.build(a_run(algorithm={"lora": {}, "steps": None, "epochs": 1}))
    assert RunDocument.from_text(document.to_text()) == document
    assert document.algorithm.epochs == 1.0


def test_a_given_hyperparameter_wins_even_when_it_is_zero() -> None:
    given = {"klCoefficient": 0.01, "clipRange": 0.3, "gradientClip": 0.5, "warmupSteps": 4}
    algorithm = run_document.build(a_run(algorithm=given)).algorithm
    assert (algorithm.kl_coefficient, algorithm.clip_range) == (0.01, 0.3)
    assert (algorithm.gradient_clip, algorithm.warmup_steps) == (0.5, 4)
    assert run_document.build(a_run(algorithm={"klCoefficient": 0})).algorithm.kl_coefficient == 0


def test_alpha_is_twice_the_rank_unless_it_is_given() -> None:
    lora = run_document.build(a_run(algorithm={"lora": {"rank": 8}})).algorithm.lora
    assert lora is not None
    assert (lora.rank, lora.alpha) == (8, 16)
    lora = run_document.build(a_run(algorithm={"lora": {"rank": 8, "alpha": 4}})).algorithm.lora
    assert lora is not None
    assert lora.alpha == 4


def test_datasets_and_template_of_config_maps_are_found_where_they_are_mounted() -> None:
    run = a_run(
        model={"chatTemplate": {"configMap": {"name": "t", "key": "own.jinja"}}},
        dataset={
            "train": {"image": None, "configMap": {"name": "tasks"}},
            "evaluation": [{"name": "heldout", "configMap": {"name": "tasks", "key": "test.jsonl"}}],
        },
    )
    document = run_document.build(run)
    assert document.model.chat_template_path == "/etc/agent-tuning/chat-template/own.jinja"
    assert document.dataset.path == "/etc/agent-tuning/datasets/train/train.jsonl"
    assert document.dataset.evaluation[0].path == "/etc/agent-tuning/datasets/heldout/test.jsonl"


def test_every_feature_that_the_run_uses_is_required_of_the_runner() -> None:
    run = a_run(
        model={"chatTemplate": {"configMap": {"name": "t"}}},
        dataset={"evaluation": [{"name": "heldout", "image": {"path": "/opt/data/heldout.jsonl"}}]},
        algorithm={"lora": {}},
        workflow={"source": {"configMap": {"name": "code"}}},
    )
    assert run_document.required_features(run) == ("chat_template", "evaluation", "lora", "trl", "workflow_source")
    assert set(run_document.required_features(run)) <= FEATURES
