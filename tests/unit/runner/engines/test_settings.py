"""What TRL and PEFT are told: each override changes it, and does what it says to a real model."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.unit.runner.documents import a_run_document, an_algorithm  # noqa: E402
from tuning_contract.algorithms import ALGORITHMS  # noqa: E402
from tuning_contract.causes import Cause  # noqa: E402
from tuning_contract.engine_config import RESERVED, TRL_OVERRIDES  # noqa: E402
from tuning_contract.run_document import EngineSettings, LoraSettings, RunDocument  # noqa: E402
from tuning_runner.engines.trl.learner import Learner  # noqa: E402
from tuning_runner.engines.trl.model import load_model, load_tokenizer  # noqa: E402
from tuning_runner.engines.trl.settings import (  # noqa: E402
    adapter_settings,
    overrides,
    require_fit,
    trainer_settings,
)
from tuning_runner.episodes.errors import RunError  # noqa: E402

pytestmark = pytest.mark.model
LORA = LoraSettings(4, 8)
EXAMPLES: dict[str, Any] = {
    "optim": "sgd",
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-6,
    "weight_decay": 0.1,
    "lr_scheduler_type": "cosine",
    "epsilon_high": 0.28,
    "gradient_checkpointing": True,
    "target_modules": ["q_proj", "v_proj"],
    "lora_dropout": 0.05,
    "use_rslora": True,
}


def a_run(model: Path = Path("/nowhere"), config: Any = None, **algorithm: Any) -> RunDocument:
    engine = EngineSettings("TRL", "2.60.0", json.dumps(config or {}))
    return a_run_document(model, engine=engine, algorithm=an_algorithm(**algorithm))


def a_learner(model: Path, scratch: Path, config: Any = None, **algorithm: Any) -> Learner:
    run = a_run(model, config, **algorithm)
    loaded = load_model(run.model, load_tokenizer(run.model))
    require_fit(run, loaded.model)
    return Learner(loaded, run, 10, scratch)


def rendered(run: RunDocument, scratch: Path) -> dict[str, Any]:
    """Everything that TRL and PEFT are told."""
    adapter = adapter_settings(run)
    return trainer_settings(run, 10, scratch).to_dict() | ({} if adapter is None else adapter.to_dict())


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("key", TRL_OVERRIDES)
def test_each_override_changes_what_trl_or_peft_is_told_and_nothing_else(tmp_path, key):
    needs_lora = TRL_OVERRIDES[key].needs_lora
    before = rendered(a_run(lora=LORA if needs_lora else None), tmp_path)
    after = rendered(a_run(config={key: EXAMPLES[key]}, lora=LORA if needs_lora else None), tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed - {"activation_checkpointing", "gradient_checkpointing"} <= {key}
    assert changed
    told = after["activation_checkpointing" if key == "gradient_checkpointing" else key]
    assert (set(told) if isinstance(told, set) else told) in (EXAMPLES[key], set(map(str, _list(EXAMPLES[key]))))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_every_default_that_the_page_promises_is_set_and_not_left_to_trl(tmp_path):
    told = rendered(a_run(lora=LORA), tmp_path)
    assert told["optim"] == "adamw_torch_fused"
    assert (told["adam_beta1"], told["adam_beta2"], told["adam_epsilon"]) == (0.9, 0.999, 1e-8)
    assert (told["weight_decay"], told["lr_scheduler_type"], told["epsilon_high"]) == (0, "constant_with_warmup", None)
    assert not told["activation_checkpointing"]
    assert (told["target_modules"], told["lora_dropout"], told["use_rslora"]) == ("all-linear", 0, False)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("group_size", [1, 4])
def test_every_algorithm_of_the_table_has_settings(tmp_path, name, group_size):
    assert trainer_settings(a_run(type=name, group_size=group_size), 10, tmp_path).loss_type == "dapo"


@pytest.mark.parametrize("key", ["beta", "num_iterations"])
def test_a_key_that_does_not_exist_or_is_a_fields_own_is_a_wrong_configuration(key):
    with pytest.raises(RunError, match=f"`engine.config.{key}`") as caught:
        overrides(a_run(config={key: 0.1}))
    assert caught.value.cause is Cause.CONFIG_INVALID
    assert (key in RESERVED) == ("`algorithm.klCoefficient`" in str(caught.value))


def test_the_optimizer_gets_its_overrides(tiny_model, tmp_path):
    config = {key: EXAMPLES[key] for key in ("adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay")}
    optimizer = a_learner(tiny_model, tmp_path, config)._trainer.optimizer
    assert all((*g["betas"], g["eps"]) == (0.8, 0.95, 1e-6) for g in optimizer.param_groups)
    assert 0.1 in {group["weight_decay"] for group in optimizer.param_groups}
    assert "betas" not in a_learner(tiny_model, tmp_path, {"optim": "sgd"})._trainer.optimizer.param_groups[0]


@pytest.mark.parametrize(
    ("course", "expected"),
    [("linear", [1, 0.9, 0.8]), ("cosine", [1, 0.97553, 0.90451]), ("constant_with_warmup", [1, 1, 1])],
)
def test_the_learning_rate_takes_its_course(tiny_model, tmp_path, course, expected):
    learner = a_learner(tiny_model, tmp_path, {"lr_scheduler_type": course}, learning_rate=1e-3)
    rates = [learner.update([]).learning_rate for _ in expected]
    assert rates == pytest.approx([1e-3 * factor for factor in expected], rel=1e-4)


def test_adapters_sit_on_the_named_modules_with_their_dropout_and_scale(tiny_model, tmp_path):
    config = {"target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.05, "use_rslora": True}
    model = a_learner(tiny_model, tmp_path, config, lora=LORA).model
    adapted = {name.rpartition(".")[2]: part for name, part in model.named_modules() if hasattr(part, "lora_A")}
    assert set(adapted) == {"q_proj", "v_proj"}
    assert adapted["q_proj"].lora_dropout["default"].p == 0.05
    assert adapted["q_proj"].scaling["default"] == pytest.approx(8 / 4**0.5)
    everywhere = a_learner(tiny_model, tmp_path, lora=LORA)
    pattern = a_learner(tiny_model, tmp_path, {"target_modules": r".*\.1\..*q_proj"}, lora=LORA)
    assert pattern.trainable_parameters < sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert everywhere.trainable_parameters > sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (["q_proj", "w_proj"], "must name linear modules of the model (down_proj, gate_proj, k_proj, o_proj, "),
        (["q_proj", "w_proj"], "'w_proj' matches none of them"),
        ("lm_head", "'lm_head' matches none of them"),
        (r".*layers\.0.*", "'.*layers\\\\.0.*' also matches 'model.layers.0'"),
        ("*proj", "'*proj' is no regular expression: nothing to repeat at position 0"),
    ],
)
def test_modules_that_the_model_does_not_have_fail_before_training(tiny_model, modules, message):
    run = a_run(tiny_model, {"target_modules": modules}, lora=LORA)
    model = load_model(run.model, load_tokenizer(run.model)).model
    with pytest.raises(RunError) as caught:
        require_fit(run, model)
    assert caught.value.cause is Cause.CONFIG_INVALID
    assert message in str(caught.value)
