"""run.json: everything resolved, nothing left to a default of the runner."""

import json
from typing import Any

import pytest

from tests.builders import UID, a_run, some_settings
from tuning_contract.algorithms import ALGORITHMS
from tuning_contract.run_document import ExpectedCluster, HubSource, ResumeFrom, RunDocument
from tuning_contract.version import FEATURES
from tuning_operator.api.v1alpha1 import TuningRun
from tuning_operator.desired import raycluster, run_document
from tuning_operator.desired.model_source import ModelSource

SMALLEST = {
    "version": "0.3",
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


@pytest.mark.parametrize(
    ("path", "mode"),
    [("ml/base-b1946a", "Continue"), ("ml/base-b1946a/checkpoints/step-000020", "Weights")],
)
def test_the_checkpoint_of_another_run_is_found_where_its_claim_is_mounted(path: str, mode: str) -> None:
    run = a_run(checkpoint={"resumeFrom": {"claimName": "old", "path": path, "mode": mode}})
    document = run_document.build(run)
    assert document.checkpoint.resume_from == ResumeFrom(f"/mnt/claims/old/{path}", mode)
    assert document.requires == ("resume_from", "trl")
    assert RunDocument.from_text(document.to_text()) == document


def test_every_feature_that_the_run_uses_is_required_of_the_runner() -> None:
    run = a_run(
        model={"chatTemplate": {"configMap": {"name": "t"}}},
        dataset={"evaluation": [{"name": "heldout", "image": {"path": "/opt/data/heldout.jsonl"}}]},
        algorithm={"lora": {}},
        workflow={"source": {"configMap": {"name": "code"}}},
    )
    assert run_document.required_features(run) == ("chat_template", "evaluation", "lora", "trl", "workflow_source")
    assert set(run_document.required_features(run)) <= FEATURES


HUB = {"repo": "openai/gsm8k", "subset": "main", "split": "train"}
TOKEN = {"name": "hub", "key": "token"}


def test_models_and_tasks_of_the_hub_are_named_with_the_variables_that_hold_their_tokens() -> None:
    run = a_run(
        model={"image": None, "huggingFace": {"repo": "Qwen/Qwen3-0.6B", "revision": "abc", "tokenSecretRef": TOKEN}},
        dataset={
            "train": {"image": None, "huggingFace": HUB | {"tokenSecretRef": TOKEN}},
            "evaluation": [
                {"name": "open", "huggingFace": {"repo": "a/b", "split": "test"}},
                {"name": "own", "huggingFace": {"repo": "a/c", "split": "test", "tokenSecretRef": TOKEN}},
            ],
        },
    )
    document = run_document.build(run)
    assert (document.model.path, document.dataset.path) == ("", "")
    assert document.model.hub == HubSource("Qwen/Qwen3-0.6B", "abc", token_variable="TUNING_TOKEN_MODEL")
    assert document.dataset.hub == HubSource("openai/gsm8k", "main", "main", "train", "TUNING_TOKEN_TRAIN")
    assert [(entry.path, entry.hub) for entry in document.dataset.evaluation] == [
        ("", HubSource("a/b", "main", None, "test")),
        ("", HubSource("a/c", "main", None, "test", "TUNING_TOKEN_EVALUATION_1")),
    ]
    variables = {entry["name"]: entry.get("valueFrom") for entry in ray_variables(run)}
    wanted = {"TUNING_TOKEN_MODEL", "TUNING_TOKEN_TRAIN", "TUNING_TOKEN_EVALUATION_1"}
    assert {name for name in variables if name.startswith("TUNING_TOKEN_")} == wanted
    assert all(variables[name] == {"secretKeyRef": TOKEN} for name in wanted)


def ray_variables(run: TuningRun) -> Any:
    """Variables of the head's Ray container."""
    template = raycluster.build(run, some_settings(), 1)["spec"]["headGroupSpec"]["template"]
    return template["spec"]["containers"][0]["env"]


def test_models_and_tasks_on_claims_are_found_where_those_are_mounted() -> None:
    run = a_run(
        model={"image": None, "volume": {"claimName": "models", "path": "Qwen3"}},
        dataset={
            "train": {"image": None, "volume": {"claimName": "data", "path": "gsm8k", "split": "main"}},
            "evaluation": [{"name": "heldout", "image": {"path": "/opt/data", "split": "test"}}],
        },
    )
    document = run_document.build(run)
    assert document.model.path == "/mnt/claims/models/Qwen3"
    assert (document.dataset.path, document.dataset.split) == ("/mnt/claims/data/gsm8k", "main")
    assert (document.dataset.evaluation[0].path, document.dataset.evaluation[0].split) == ("/opt/data", "test")


def test_without_a_path_the_root_of_a_claim_is_meant() -> None:
    claim: dict[str, Any] = {"image": None, "volume": {"claimName": "all"}}
    document = run_document.build(a_run(model=claim, dataset={"train": claim}))
    assert (document.model.path, document.dataset.path) == ("/mnt/claims/all", "/mnt/claims/all")


def test_the_model_of_another_run_is_in_its_folder_on_its_claim() -> None:
    run = a_run(model={"image": None, "run": {"name": "base"}})
    source = ModelSource(run_name="base", run_uid="b1946ac9-0000-4000-8000-000000000000", claim_name="results")
    assert run_document.build(run, source).model.path == "/mnt/claims/results/ml/base-b1946a/final"


def test_a_model_of_another_run_that_nobody_looked_up_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="run base, which has the model, must be looked up"):
        run_document.build(a_run(model={"image": None, "run": {"name": "base"}}))


def test_overrides_of_the_engine_are_canonical_text() -> None:
    first = run_document.build(a_run(engine={"config": {"weight_decay": 0.1, "optim": "sgd"}}))
    second = run_document.build(a_run(engine={"config": {"optim": "sgd", "weight_decay": 0.1}}))
    assert first.engine.config == '{"optim": "sgd", "weight_decay": 0.1}'
    assert first.digest == second.digest


def test_worker_pods_of_an_engine_that_trains_on_the_head_run_episodes() -> None:
    cluster = {"head": {"gpus": 1}, "workers": [{"name": "a", "replicas": 2}, {"name": "b", "replicas": 3}]}
    assert run_document.build(a_run(cluster=cluster)).cluster == ExpectedCluster(nodes=6, gpus=1, episode_nodes=5)


def test_worker_pods_of_an_engine_that_trains_on_them_run_no_episodes() -> None:
    cluster = {"workers": [{"name": "a", "replicas": 2, "gpus": 8}]}
    built = run_document.build(a_run(engine={"type": "Trinity"}, cluster=cluster)).cluster
    assert built == ExpectedCluster(nodes=3, gpus=16, episode_nodes=0)


FEATURE_OF: dict[str, dict[str, Any]] = {
    "hub_model": {"model": {"image": None, "huggingFace": {"repo": "a/b"}}},
    "hub_dataset": {"dataset": {"evaluation": [{"name": "x", "huggingFace": {"repo": "a/b", "split": "test"}}]}},
    "dataset_split": {"dataset": {"train": {"image": {"path": "/data", "split": "train"}}}},
    "engine_config": {"engine": {"config": {"weight_decay": 0.1}}},
    "episode_nodes": {"cluster": {"workers": [{"name": "a"}]}},
    "algorithm:rloo": {"algorithm": {"type": "rloo"}},
    "algorithm:reinforceplusplus": {"algorithm": {"type": "reinforceplusplus"}},
    "lora": {"algorithm": {"lora": {}}},
    "chat_template": {"model": {"chatTemplate": {"configMap": {"name": "t"}}}},
    "evaluation": {"dataset": {"evaluation": [{"name": "x", "image": {"path": "/x"}}]}},
    "workflow_source": {"workflow": {"source": {"configMap": {"name": "code"}}}},
    "resume_from": {"checkpoint": {"resumeFrom": {"claimName": "old", "path": "ml/base-b1946a"}}},
}


@pytest.mark.parametrize("feature", FEATURE_OF)
def test_a_feature_is_required_of_the_runner_by_the_runs_that_use_it(feature: str) -> None:
    assert feature in run_document.required_features(a_run(**FEATURE_OF[feature]))
    assert feature not in run_document.required_features(a_run())


def test_the_runner_has_every_feature_and_every_available_algorithm() -> None:
    assert set(FEATURE_OF) | {"trl"} == FEATURES
    for algorithm in ALGORITHMS:
        assert set(run_document.required_features(a_run(algorithm={"type": algorithm}))) <= FEATURES
