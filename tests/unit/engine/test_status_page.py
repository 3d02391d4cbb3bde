"""docs/how-to/read-the-status.md explains every word that a status may have."""

import re
from collections.abc import Iterable
from pathlib import Path

from tuning_contract.causes import Cause
from tuning_operator.api import crd
from tuning_operator.api.conditions import REASONS_OF_REJECTION, ConditionType, Phase, Reason
from tuning_operator.api.v1alpha1_status import TuningRunStatus
from tuning_operator.engine.policies import acceptance_checks

PAGE = (Path(__file__).parents[3] / "docs/how-to/read-the-status.md").read_text()


def section(title: str) -> str:
    """The text below a heading, until the next one."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[str]:
    """The words in code of the first column of the section's table."""
    return re.findall(r"^\| `([^`]+)` \|", section(title), re.MULTILINE)


def words(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"`([^`\n]+)`", text)}


def test_every_reason_of_a_rejection_has_its_row_with_what_to_do() -> None:
    assert rows("Accepted") == [str(reason) for reason in REASONS_OF_REJECTION]
    cells = [line.split("|") for line in section("Accepted").splitlines() if line.startswith("| `")]
    assert all(len(cell) == 5 and len(cell[2]) > 20 and len(cell[3]) > 10 for cell in cells)


def test_every_reason_that_a_check_can_give_is_one_of_a_rejection() -> None:
    folder = Path(acceptance_checks.__file__).parent
    sources = [path.read_text() for path in (*folder.glob("*.py"), folder.parent / "acceptance.py")]
    given = {Reason[name] for text in sources for name in re.findall(r"Reason\.([A-Z_]+)", text)}
    assert given - {Reason.FORBIDDEN} == set(REASONS_OF_REJECTION)


def test_every_phase_condition_and_column_has_its_row() -> None:
    assert set(rows("Phases")) == {str(phase) for phase in Phase}
    assert rows("Conditions") == [str(kind) for kind in ConditionType]
    assert rows("Columns") == [column["name"].upper() for column in crd.columns()]


def test_every_reason_and_every_cause_is_explained() -> None:
    known = words(PAGE.split("```"))
    assert {str(reason) for reason in Reason} - known == set()
    assert words([section("Why a run failed")]) >= {str(cause) for cause in Cause}


def test_every_field_of_the_status_is_explained() -> None:
    fields = {field.alias or name for name, field in TuningRunStatus.model_fields.items()}
    elsewhere = {"phase", "reason", "message", "conditions", "observedGeneration"}
    assert set(rows("The rest of the status")) == fields - elsewhere
