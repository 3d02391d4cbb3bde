"""The table of algorithms and engines, and what `engine.config` may hold."""

import json
from typing import Any

import pytest

from tests.unit.runner.documents import REPOSITORY, a_run_document
from tuning_contract.algorithms import ALGORITHMS, ENGINES, KNOWN_ALGORITHMS, Algorithm
from tuning_contract.engine_config import RESERVED, TRL_OVERRIDES, overrides_from_text
from tuning_contract.fingerprint import differing_fields, fingerprint
from tuning_contract.run_document import EngineSettings
from tuning_contract.version import FEATURES

PAGE = REPOSITORY / "docs/how-to/choose-an-algorithm.md"
OLDEST = "multi_step_grpo"


def refusal(config: Any, lora: bool = False) -> str:
    with pytest.raises(ValueError) as caught:
        overrides_from_text(json.dumps(config), lora=lora)
    return str(caught.value)


def test_an_algorithm_that_can_run_has_all_figures_and_the_others_none() -> None:
    assert set(KNOWN_ALGORITHMS) == {OLDEST, "rloo", "reinforceplusplus", "ppo", "dpo", "sft"}
    assert set(ALGORITHMS) == {OLDEST, "rloo", "reinforceplusplus"}
    for row in KNOWN_ALGORITHMS.values():
        assert isinstance(row, Algorithm) == bool(row.engines)
        assert all(ENGINES[engine].available for engine in row.engines)
        assert row.summary.endswith(".")


def test_an_older_runner_image_is_told_which_algorithm_it_lacks() -> None:
    names = {feature.removeprefix("algorithm:") for feature in FEATURES if feature.startswith("algorithm:")}
    assert names == set(ALGORITHMS) - {OLDEST}


def test_overrides_with_the_right_types_are_taken_as_they_are() -> None:
    config = {"adam_beta2": 0.95, "weight_decay": 0, "target_modules": ["q_proj"], "gradient_checkpointing": True}
    assert overrides_from_text(json.dumps(config), lora=True) == config
    assert overrides_from_text("{}", lora=False) == {}


@pytest.mark.parametrize("key", RESERVED)
def test_a_key_that_a_field_owns_is_refused_with_that_field(key: str) -> None:
    assert refusal({key: 1}) == f"`engine.config.{key}` cannot be set: use `{RESERVED[key]}`"


def test_no_key_is_both_reserved_and_accepted() -> None:
    assert not set(RESERVED) & set(TRL_OVERRIDES)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"adam_beta1": 1}, "`engine.config.adam_beta1` must be a number of at least 0 and less than 1, not 1"),
        ({"adam_beta1": True}, "`engine.config.adam_beta1` must be a number of at least 0 and less than 1, not true"),
        ({"adam_epsilon": 0}, "`engine.config.adam_epsilon` must be a number greater than 0, not 0"),
        ({"weight_decay": "0.1"}, '`engine.config.weight_decay` must be a number of at least 0, not "0.1"'),
        ({"gradient_checkpointing": 1}, "`engine.config.gradient_checkpointing` must be true or false, not 1"),
        (
            {"lr_scheduler_type": "constant"},
            "`engine.config.lr_scheduler_type` must be one of constant_with_warmup, linear, cosine, inverse_sqrt, "
            'not "constant"',
        ),
        (
            {"optim": "sgd", "adam_beta1": 0.8},
            "`engine.config.adam_beta1` means nothing with `optim` sgd: leave it out",
        ),
        ({"use_rslora": True}, "`engine.config.use_rslora` needs `algorithm.lora`: set that too, or leave it out"),
        ([], "`engine.config` must be an object"),
    ],
)
def test_a_wrong_override_is_refused_with_what_to_change(config: Any, message: str) -> None:
    assert refusal(config) == message


@pytest.mark.parametrize("value", [[], [""], ["q_proj", 1], 7, "", None])
def test_modules_are_a_pattern_or_a_list_of_names(value: Any) -> None:
    assert "must be a regular expression or a list of module names" in refusal({"target_modules": value}, lora=True)


def test_a_misspelled_key_is_refused_with_all_that_exist() -> None:
    message = refusal({"adam_beta_1": 0.8})
    assert message.startswith("`engine.config.adam_beta_1` is not known to engine TRL, which takes optim, adam_beta1,")
    assert all(key in message for key in TRL_OVERRIDES)


def test_a_checkpoint_is_continued_with_the_overrides_it_was_trained_with() -> None:
    plain, heavy = (
        fingerprint(a_run_document(engine=EngineSettings("TRL", "2.60.0", config)), "m", "d", "t")
        for config in ("{}", '{"weight_decay": 0.1}')
    )
    assert differing_fields(plain, heavy) == ("engineConfig",)
    older = {name: value for name, value in plain.items() if name != "engineConfig"}
    assert differing_fields(plain, older) == ()


def rows_of(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading of the page, without its header."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    lines = section[section.index("|") :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_shows_the_table_of_algorithms() -> None:
    expected = [
        [
            f"`{row.name}`",
            row.summary,
            "2" if row.group_relative else "1",
            ", ".join(row.engines) or "not yet",
        ]
        for row in KNOWN_ALGORITHMS.values()
    ]
    assert rows_of("The algorithms") == expected


def test_the_page_shows_the_defaults_of_each_algorithm() -> None:
    expected = [
        [
            f"`{row.name}`",
            *(f"{value:g}" for value in (row.clip_range, row.kl_coefficient, row.gradient_clip, row.warmup_steps)),
        ]
        for row in ALGORITHMS.values()
    ]
    assert rows_of("Defaults") == expected


def test_the_page_shows_every_override() -> None:
    expected = [[f"`{key}`", row.meaning] for key, row in TRL_OVERRIDES.items()]
    assert rows_of("Settings of the engine itself") == expected
