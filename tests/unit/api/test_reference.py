"""The reference page: complete, current, and without a link that leads nowhere."""

import re
from pathlib import Path

import pytest

from tests.specs import SCHEMA, leaves
from tests.unit.api.test_crd import STATUS
from tuning_contract.algorithms import KNOWN_ALGORITHMS
from tuning_contract.engine_config import RESERVED, TRL_OVERRIDES
from tuning_operator.api import generated, reference
from tuning_operator.api.reference_words import FORMS, bounds, kind_of, sentence, shown_default

ROOT = Path(__file__).parents[3]
PAGE = reference.page()


def anchors(page: str) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_is_current() -> None:
    assert list(generated.differences({reference.PAGE: PAGE}, ROOT)) == [], "run `make generate`"


def test_a_stale_page_is_shown_as_a_difference_and_written_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reference.main(["--check"], tmp_path) == 1
    assert "+# TuningRun" in capsys.readouterr().out
    assert reference.main([], tmp_path) == 0
    assert reference.main(["--check"], tmp_path) == 0


def test_a_table_of_several_fields_says_what_the_object_means_at_each() -> None:
    section = PAGE.partition("#### spec.workflow.envFrom[].secretRef\n")[2].partition("\n| Field")[0]
    assert section == (
        "\nSecret whose keys become variables of the Ray containers.\n\nThe same fields:\n\n"
        "- `spec.workflow.envFrom[].configMapRef`: ConfigMap whose keys become variables of the Ray containers.\n"
        "- `spec.imagePullSecrets[]`: Secrets with which the images of all pods of the run are pulled.\n"
    )


def test_the_overrides_say_what_they_need_beside_them() -> None:
    rows = [line.split(" | ") for line in PAGE.partition("| Key | Value | Needs |")[2].splitlines()]
    needs = {row[0].strip("| `"): row[2] for row in rows if len(row) == 4 and row[0].strip("| `") in TRL_OVERRIDES}
    wanted = {key: "`algorithm.lora`" for key, row in TRL_OVERRIDES.items() if row.needs_lora}
    wanted |= {key: "Adam as `optim`" for key, row in TRL_OVERRIDES.items() if row.needs_adam}
    assert needs == dict.fromkeys(TRL_OVERRIDES, "-") | wanted


def test_every_link_on_the_page_leads_to_a_heading_or_a_page() -> None:
    wanted = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert wanted - anchors(PAGE) == set()
    files = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert files
    assert [file for file in files if not (ROOT / reference.PAGE.parent / file).exists()] == []


def test_every_field_rule_override_and_algorithm_is_on_the_page() -> None:
    names = {path.rpartition(".")[2].removesuffix("[]") for path in [*leaves(), *STATUS]}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
    assert {name for name in [*TRL_OVERRIDES, *RESERVED, *KNOWN_ALGORITHMS] if f"`{name}`" not in PAGE} == set()
    messages = [
        rule["message"]
        for rule in SCHEMA["properties"]["workflow"]["properties"]["env"]["items"]["x-kubernetes-validations"]
    ]
    assert [text for text in messages if text not in PAGE] == []


def test_no_cell_breaks_its_table() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    headed = [line for line in rows if line.startswith("| Field |")]
    assert len(headed) > 30
    unescaped = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
    assert set(unescaped) <= {3, 4, 5, 6, 10}


def test_an_object_of_the_same_fields_is_shown_once() -> None:
    assert "#### spec.dataset.train.huggingFace\n" in PAGE
    assert "#### spec.dataset.evaluation[].huggingFace\n" not in PAGE
    assert "The same fields:\n\n- `spec.dataset.evaluation[].huggingFace`\n" in PAGE


def test_a_schema_is_told_in_words() -> None:
    share = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1}
    assert (kind_of(share), bounds(share), shown_default(share)) == ("number", "more than 0, at most 1", "-")
    names = {"type": "array", "items": {"type": "string"}, "maxItems": 3, "minItems": 1, "default": ["a"]}
    assert (kind_of(names), bounds(names), shown_default(names)) == ("list of text", "1 to 3 entries", '`["a"]`')
    assert bounds({"type": "integer", "minimum": 1, "maximum": 9}) == "1 to 9"
    assert bounds({"type": "string", "pattern": next(iter(FORMS)), "maxLength": 5}).endswith(", at most 5 characters")
    assert sentence("Its width. Default: 2. Example: 3.") == "Its width. Example: `3`."
