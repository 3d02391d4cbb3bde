"""docs/concepts/life-cycle.md says what the operator does: its diagram and tables are made from the operator's own."""

import re
from pathlib import Path

import pytest

from tests.builders import a_run
from tuning_contract.causes import Cause
from tuning_operator.api.conditions import Phase
from tuning_operator.engine import life_cycle_page
from tuning_operator.engine.causes import CAUSES, LONGEST_BACKOFF, UNCOUNTED_LIMIT
from tuning_operator.engine.policies.stopping import MARGIN
from tuning_operator.engine.transitions import TRANSITIONS, is_allowed

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / life_cycle_page.PAGE).read_text()


def test_the_page_is_current() -> None:
    assert life_cycle_page.main(["--check"], ROOT) == 0, "is it meant? then run: make generate"


def test_a_page_that_was_changed_by_hand_is_told(tmp_path: Path) -> None:
    page = tmp_path / life_cycle_page.PAGE
    page.parent.mkdir(parents=True)
    page.write_text(TEXT.replace("| `NodeLost` |", "| `NodeGone` |"))
    assert life_cycle_page.main(["--check"], tmp_path) == 1
    assert life_cycle_page.main([], tmp_path) == 0
    assert page.read_text() == life_cycle_page.page(TEXT)


def test_a_page_without_its_marks_is_no_page() -> None:
    with pytest.raises(ValueError, match="phases"):
        life_cycle_page.page("# The life of a run\n")


def test_the_diagram_shows_every_phase_and_only_what_may_happen() -> None:
    arrows = re.findall(r"^    (\w+) --> (\w+): ([^:;]+)$", TEXT, re.MULTILINE)
    assert len(arrows) == len(life_cycle_page.DRAWN)
    assert all(is_allowed(Phase(one), Phase(other)) for one, other, _ in arrows)
    assert {name for one, other, _ in arrows for name in (one, other)} == set(Phase)


def test_the_table_has_every_transition() -> None:
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (.+) \|$", TEXT, re.MULTILINE)
    assert {(row.before, row.after, row.why) for row in TRANSITIONS} <= set(rows)


def test_every_cause_is_explained() -> None:
    assert set(life_cycle_page.MEANINGS) == set(CAUSES) == set(Cause)
    assert all(f"| `{cause}` |" in TEXT for cause in Cause)


def test_every_rule_of_the_life_cycle_is_on_the_page() -> None:
    assert re.findall(r"^\| (\d+) \| ", TEXT, re.MULTILINE) == [str(number) for number in range(1, 14)]


def test_the_figures_in_the_words_of_both_pages_are_those_of_the_code() -> None:
    how_to = (ROOT / "docs/how-to/stop-resume-and-retry.md").read_text()
    spec = a_run().spec
    minutes = int(LONGEST_BACKOFF.total_seconds() // 60)
    for text in (
        f"`maxAttempts`, {spec.retry.max_attempts} by default",
        f"ends the run after {UNCOUNTED_LIMIT} without a new checkpoint",
        f"`backoffSeconds`, {spec.retry.backoff_seconds} by default",
        f"up to {minutes} minutes",
        f"| `startSeconds` | {spec.deadlines.start_seconds} |",
        f"| `stopGraceSeconds` | {spec.deadlines.stop_grace_seconds} |",
        f"and {int(MARGIN.total_seconds())} seconds more",
    ):
        assert text in how_to
    for text in (
        f"`retry.maxAttempts` ({spec.retry.max_attempts})",
        f"the others after {UNCOUNTED_LIMIT}",
        f"`retry.backoffSeconds` ({spec.retry.backoff_seconds})",
        f"at most {minutes} minutes",
        f"and {int(MARGIN.total_seconds())} seconds more",
    ):
        assert text in TEXT
