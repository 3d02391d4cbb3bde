"""The rules over engine, model, tasks, algorithm and episodes, each from both sides, on a real kube-apiserver."""

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.integration.api_requests import RuleCase, Spec, judge
from tuning_contract.engine_config import RESERVED

pytestmark = pytest.mark.control_plane

HUB = {"repo": "openai/gsm8k", "split": "train"}
HELDOUT = {"name": "heldout", "image": {"path": "/opt/data/heldout.jsonl"}}
EITHER_MODEL = "set exactly one of `huggingFace`, `volume`, `image`, `run`"
EITHER_DATASET = "set exactly one of `huggingFace`, `volume`, `configMap`, `image`"
EITHER_LENGTH = "set exactly one of `epochs`, `steps`"
RAY = "`rayVersion` must be at least 2.53.0: earlier ones lack token authentication or the health check in use"
COMPARES = "must be at least 2 with multi_step_grpo, rloo, which compare the episodes of one task"
ALONE = {"type": "reinforceplusplus", "groupSize": 1}
NATURAL: Spec = {
    "auto_find_batch_size": True,
    "chat_template_path": "chat.jinja",
    "dataset_name": "openai/gsm8k",
    "eval_strategy": "steps",
    "importance_sampling_level": "sequence",
    "loss_type": "dr_grpo",
    "model_init_kwargs": {"dtype": "bfloat16", "attn_implementation": "sdpa"},
    "model_name_or_path": "Qwen/Qwen3-0.6B",
    "output_dir": "/data/out",
    "report_to": ["wandb"],
    "reward_weights": [1, 2.5],
    "save_strategy": "steps",
    "scale_rewards": False,
    "shuffle_dataset": False,
    "use_cpu": True,
    "use_peft": True,
    "use_vllm": False,
    "warmup_ratio": 0.1,
    "max_steps": -1,
}
"""What people write for a reserved key; a number where it is not here."""
KEY = (
    "`key` must end with .jsonl, .json, .csv (these also with .gz) or .parquet, which says how the tasks are written: "
    "rename it in the ConfigMap, too"
)


def sets(entry: Spec) -> Spec:
    """A run with one held-out set."""
    return {"dataset": {"evaluation": [entry]}}


def in_a_map(**reference: str) -> Spec:
    """A run whose training tasks are in a ConfigMap."""
    return {"dataset": {"train": {"image": None, "configMap": {"name": "tasks"} | reference}}}


def retried(action: str, *causes: str) -> Spec:
    """A run with one rule for retries."""
    return {"retry": {"rules": [{"causes": list(causes), "action": action}]}}


RULES = [
    RuleCase(
        "spec.retry.rules[0].causes",
        "`causes` must not have DeadlineExceeded with this `action`: no time is left for another attempt; raise "
        "`deadlines.activeSeconds`, which can be changed at any time",
        retried("RetryUncounted", "NodeLost", "DeadlineExceeded"),
        retried("Fail", "NodeLost", "DeadlineExceeded"),
    ),
    RuleCase("spec.model", EITHER_MODEL, {"model": {"image": None}}, {}),
    RuleCase(
        "spec.model",
        EITHER_MODEL,
        {"model": {"run": {"name": "other"}}},
        {"model": {"run": {"name": "other"}, "image": None}},
    ),
    RuleCase(
        "spec.model.maxResponseTokens",
        "`maxResponseTokens` must be less than `maxModelLength`: the prompt needs room too",
        {"model": {"maxModelLength": 64, "maxResponseTokens": 64}},
        {"model": {"maxModelLength": 64, "maxResponseTokens": 63}},
    ),
    RuleCase(
        "spec.dataset.train",
        EITHER_DATASET,
        {"dataset": {"train": {"huggingFace": HUB}}},
        {"dataset": {"train": {"huggingFace": HUB, "image": None}}},
    ),
    RuleCase("spec.dataset.evaluation[0]", EITHER_DATASET, sets({"name": "heldout"}), sets(HELDOUT)),
    RuleCase(
        "spec.dataset.evaluation[0].name",
        "`name` must not be train, which is the training set's: choose another",
        sets(HELDOUT | {"name": "train"}),
        sets(HELDOUT | {"name": "trained"}),
    ),
    *(
        RuleCase(
            "spec.dataset.train.image.split",
            "`split` must not be set with one file, of which it cannot choose any: leave it out, or let `path` be a "
            "folder",
            {"dataset": {"train": {"image": {"path": path, "split": "train"}}}},
            {"dataset": {"train": {"image": {"path": "/opt/data.d/jsonl", "split": "train"}}}},
        )
        for path in ("/opt/a.jsonl", "/opt/a.csv.gz", "/opt/a.parquet")
    ),
    RuleCase(
        "spec.dataset.train.volume.split",
        "`split` must not be set with one file, of which it cannot choose any: leave it out, or let `path` be a folder",
        {"dataset": {"train": {"image": None, "volume": {"claimName": "data", "path": "a.json", "split": "train"}}}},
        {"dataset": {"train": {"image": None, "volume": {"claimName": "data", "split": "train"}}}},
    ),
    *(
        RuleCase("spec.dataset.train.configMap.key", KEY, in_a_map(key=broken), in_a_map(key=kept))
        for broken, kept in (
            ("tasks.txt", "tasks.jsonl"),
            ("jsonl", "tasks.json"),
            ("tasks.parquet.gz", "tasks.parquet"),
            ("tasks.csv.zip", "tasks.csv.gz"),
        )
    ),
    RuleCase(
        "spec.dataset.evaluation[0].configMap.key",
        KEY,
        sets({"name": "heldout", "configMap": {"name": "tasks", "key": "tasks"}}),
        sets({"name": "heldout", "configMap": {"name": "tasks"}}),
    ),
    RuleCase(
        "spec.algorithm.evaluateEverySteps",
        "`algorithm.evaluateEverySteps` needs a set in `dataset.evaluation`: name one, or leave it out",
        {"algorithm": {"evaluateEverySteps": 4}},
        sets(HELDOUT) | {"algorithm": {"evaluateEverySteps": 4}},
    ),
    RuleCase(
        "spec.algorithm", EITHER_LENGTH, {"algorithm": {"steps": None}}, {"algorithm": {"steps": None, "epochs": 0.5}}
    ),
    RuleCase("spec.algorithm", EITHER_LENGTH, {"algorithm": {"epochs": 1}}, {}),
    RuleCase(
        "spec.algorithm.groupSize",
        f"`groupSize` {COMPARES}",
        {"algorithm": {"type": "rloo", "groupSize": 1}, "rollout": {"minGroupSize": 2}},
        {"algorithm": {"type": "rloo", "groupSize": 2}, "rollout": {"minGroupSize": 2}},
    ),
    RuleCase(
        "spec.rollout.minGroupSize",
        f"`rollout.minGroupSize` {COMPARES}",
        {"rollout": {"minGroupSize": 1}},
        {"algorithm": ALONE, "rollout": {"minGroupSize": 1}},
    ),
    RuleCase(
        "spec.rollout.minGroupSize",
        "`rollout.minGroupSize` must not be more than `algorithm.groupSize`: no group would ever be trained; lower the "
        "one or raise the other",
        {"rollout": {"minGroupSize": 9}},
        {"rollout": {"minGroupSize": 8}},
    ),
    RuleCase("spec.engine.rayVersion", RAY, {"engine": {"rayVersion": "2.52.9"}}, {"engine": {"rayVersion": "2.53.0"}}),
    RuleCase("spec.engine.rayVersion", RAY, {"engine": {"rayVersion": "1.99.0"}}, {"engine": {"rayVersion": "3.0.0"}}),
]

RESERVED_KEYS = [
    RuleCase(
        f"spec.engine.config.{key}",
        f"`{key}` is reserved: set `spec.{owner}` instead",
        {"engine": {"config": {key: NATURAL.get(key, 1)}}},
        {"engine": {"config": {"weight_decay": 0.1}}},
    )
    for key, owner in RESERVED.items()
]


@pytest.mark.parametrize("case", RULES, ids=str)
def test_a_rule_refuses_what_breaks_it_and_accepts_what_keeps_it(control_plane: ControlPlane, case: RuleCase) -> None:
    judge(control_plane, case)


@pytest.mark.parametrize("case", RESERVED_KEYS, ids=str)
def test_a_key_that_the_api_owns_is_refused_by_its_name(control_plane: ControlPlane, case: RuleCase) -> None:
    judge(control_plane, case)
