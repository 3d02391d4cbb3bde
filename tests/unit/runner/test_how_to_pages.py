"""The how-to pages: their code runs, their runs are valid, their links lead somewhere."""

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders import a_run, a_spec, merged
from tests.unit.api.test_crd import SCHEMA
from tests.unit.api.test_samples import unknown_fields
from tests.unit.runner.documents import REPOSITORY
from tests.unit.runner.episodes.scripted import CharacterRenderer, ScriptedPolicy, a_bench
from tuning_contract.outcomes import Outcome
from tuning_operator.desired import fragments
from tuning_runner.dataset import load_dataset
from tuning_runner.dataset_files import EVALUATION_SPLITS, TRAINING_SPLITS
from tuning_runner.dataset_formats import name_endings
from tuning_runner.episodes import exceptions
from tuning_runner.episodes.contract import EnvironmentFailure

PAGES = REPOSITORY / "docs" / "how-to"
WORKFLOW, DATASET, MODEL = (
    PAGES / f"{name}.md" for name in ("write-a-workflow", "bring-a-dataset", "talk-to-the-tuned-model")
)
ALGORITHM, STOP, CONTINUE = (
    PAGES / f"{name}.md" for name in ("choose-an-algorithm", "stop-resume-and-retry", "continue-from-another-run")
)
DOCUMENTS = (*sorted((REPOSITORY / "docs").glob("*/*.md")), REPOSITORY / "README.md")
LINKING = [page for page in DOCUMENTS if "](" in page.read_text()]
TASK = {"question": "3", "answer": "3"}


def blocks(page: Path, language: str) -> list[str]:
    """The examples of a page in one language, without the indentation of a list."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
    return ["\n".join(line.removeprefix(indent) for line in text.splitlines()) + "\n" for indent, text in found]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python examples of the workflow page as files on PYTHONPATH, as a ConfigMap's keys would be."""
    for text in blocks(WORKFLOW, "python"):
        name = text.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{REPOSITORY / 'operator'}:{REPOSITORY}")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("module", ["sums", "other"])
async def test_a_workflow_of_the_page_is_scored_by_its_judge(module: str) -> None:
    async with a_bench("run", "judge", module=module, seconds=60.0) as bench:
        right, wrong = await bench.run([TASK, TASK | {"answer": "4"}])
    assert (right.record.outcome, right.record.reward, wrong.record.reward) == (Outcome.COMPLETED, 1.0, 0.0)
    assert right.response == "3"
    assert right.record.metrics.get("characters", 1.0) == 1.0


@pytest.mark.usefixtures("modules")
async def test_the_agent_with_agentscope_is_scored_by_its_judge() -> None:
    policy = ScriptedPolicy(lambda prompt, _: " 3\n" if "1 + 2" in prompt else "4")
    async with a_bench("run", "judge", module="adder", policy=policy, seconds=60.0) as bench:
        right, wrong = await bench.run([{"question": text, "answer": "3"} for text in ("1 + 2", "1 + 1")])
    assert (right.record.outcome, right.record.reward) == (Outcome.COMPLETED, 1.0), right.record.error
    assert (wrong.record.outcome, wrong.record.reward) == (Outcome.COMPLETED, 0.0), wrong.record.error


@pytest.mark.usefixtures("modules")
async def test_the_agent_with_a_tool_in_plain_text_calls_it() -> None:
    policy = ScriptedPolicy(lambda prompt, _: "3" if "The sum is 3." in prompt else "add(1, 2)")
    async with a_bench("run", "judge", module="caller", policy=policy, seconds=60.0) as bench:
        (result,) = await bench.run([{"question": "1 + 2", "answer": "3"}])
    assert (result.record.outcome, result.record.reward) == (Outcome.COMPLETED, 1.0), result.record.error
    assert (len(result.turns), result.record.metrics["called"]) == (2, 1.0)


@pytest.mark.usefixtures("modules")
async def test_an_agent_that_hands_tools_to_the_model_is_refused_by_the_code_that_the_page_names(
    tmp_path: Path,
) -> None:
    (adder,) = (text for text in blocks(WORKFLOW, "python") if text.startswith("# adder.py"))
    tool = "from agentscope.tool import Toolkit\ndef add(a: int, b: int):\n    'Add.'\nTOOLS = Toolkit()\n"
    tool += "TOOLS.register_tool_function(add)\n"
    changed = adder.replace("memory=", "toolkit=TOOLS, memory=")
    assert changed != adder
    (tmp_path / "with_tools.py").write_text(tool + changed)
    async with a_bench("run", "judge", module="with_tools", seconds=60.0) as bench:
        (result,) = await bench.run([TASK])
    assert result.record.reward is None
    assert "tools_without_parser" in str(result.record.error)
    assert "`tools_without_parser`" in WORKFLOW.read_text()


@pytest.mark.model
def test_the_page_says_that_the_engine_has_no_parser_while_it_has_none(tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    from tuning_runner.engines.trl.renderer import TokenizerRenderer

    renderer = TokenizerRenderer(AutoTokenizer.from_pretrained(tiny_model), frozenset())
    assert renderer.parses_tool_calls is CharacterRenderer().parses_tool_calls is False
    assert "no parser for tool calls in this version" in WORKFLOW.read_text()


@pytest.mark.usefixtures("modules")
async def test_a_tool_that_says_that_its_service_is_down_spoils_no_reward() -> None:
    async with a_bench("run", None, module="tool") as bench:
        (result,) = await bench.run([TASK])
    assert (result.record.outcome, result.record.reward) == (Outcome.ENVIRONMENT_ERROR, None)


class TooManyRequestsError(Exception):
    """An HTTP client's error, as most of them look."""

    status_code = 429


@pytest.mark.parametrize(
    ("error", "place", "outcome"),
    [
        (EnvironmentFailure("down"), exceptions.ENVIRONMENT, Outcome.ENVIRONMENT_ERROR),
        (ConnectionError("refused"), exceptions.SERVICE, Outcome.ENVIRONMENT_ERROR),
        (TimeoutError("slow"), exceptions.SERVICE, Outcome.ENVIRONMENT_ERROR),
        (TooManyRequestsError("busy"), exceptions.SERVICE, Outcome.ENVIRONMENT_ERROR),
        (ValueError("wrong"), exceptions.OWN, Outcome.AGENT_ERROR),
    ],
)
def test_an_exception_means_what_the_table_of_the_page_says(error: Exception, place: str, outcome: Outcome) -> None:
    assert exceptions.category(error) == place
    name = "429" if isinstance(error, TooManyRequestsError) else type(error).__name__
    rows = [
        line for line in WORKFLOW.read_text().splitlines() if line.startswith("| by the workflow: ") and name in line
    ]
    assert len(rows) == 1
    assert outcome in rows[0].split("|")[2]


@pytest.mark.parametrize("page", [WORKFLOW, DATASET, MODEL, ALGORITHM, STOP, CONTINUE], ids=lambda page: page.stem)
def test_every_run_of_a_page_is_valid(page: Path) -> None:
    examples = [document for text in blocks(page, "yaml") if "kind" not in (document := yaml.safe_load(text))]
    assert examples
    for example in examples:
        assert unknown_fields(example, SCHEMA["properties"]["spec"], "spec") == []
        a_run(**_in_place(example))


def _in_place(example: dict[str, Any]) -> dict[str, Any]:
    """The example in place of what the smallest run has, since sources are unions."""
    changes = {
        name: {key: None for key in a_spec()[name]} | value for name, value in example.items() if name in a_spec()
    }
    if "workflow" in example:
        changes["workflow"] = {"entrypoint": "a:b"} | example["workflow"]
    if "train" in example.get("dataset", {}):
        changes["dataset"]["train"] = {"image": None} | example["dataset"]["train"]
    return merged({name: value for name, value in example.items() if name not in changes}, changes)


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_every_file_that_a_page_links_to_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert links
    assert [link for link in links if not link.startswith("https:") and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_every_heading_that_a_page_links_to_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    missing = [(file, name) for file, name in links if name not in headings(page.parent / file if file else page)]
    assert missing == []


def headings(page: Path) -> set[str]:
    """Headings of a page as the ends of addresses."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^-_a-z0-9 ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_row_of_the_page_and_all_formats_are_read(tmp_path: Path) -> None:
    (row,) = (json.loads(text) for text in blocks(DATASET, "json"))
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n\n")
    (tmp_path / "test.csv").write_text('question,answer\n"What is 1 + 2?",3\n')
    for splits in (TRAINING_SPLITS, EVALUATION_SPLITS):
        assert load_dataset(tmp_path, ("answer",), usual_splits=splits).rows == (row,)
    endings = re.findall(r"^\| `(\.\w+)` \|", DATASET.read_text(), re.MULTILINE)
    assert endings == re.findall(r"\.\w+", name_endings().partition("(")[0])
    text = DATASET.read_text()
    assert all(f"`{split}`" in text for split in (*TRAINING_SPLITS, *EVALUATION_SPLITS))


def test_the_image_of_the_page_puts_its_code_where_the_runner_image_looks_for_it() -> None:
    (text,) = blocks(WORKFLOW, "dockerfile")
    (folder,) = re.findall(r"^COPY sums.py (\S+)/$", text, re.MULTILINE)
    looked_into = re.search(r"printf '([^']+)' >\S*\.pth", (REPOSITORY / "images/runner-trl/install.sh").read_text())
    assert looked_into
    assert folder in looked_into[1].split("\\n")
    assert "ENV" not in text  # `workflow.source` would hide it.


def test_the_pod_of_the_page_may_run_where_restricted_is_enforced() -> None:
    text = MODEL.read_text()
    manifest = re.search(r"<<EOF\n(.*?)^EOF$", text, re.DOTALL | re.MULTILINE)
    assert manifest
    pod = yaml.safe_load(manifest[1])
    assert pod["spec"]["securityContext"] == fragments.pod_security()
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"] == fragments.container_security(read_only_root=False)
    (volume,) = pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == "$CLAIM"
    assert set(re.findall(r"\$(\w+)", manifest[1])) <= set(re.findall(r"^(\w+)=", text, re.MULTILINE))


@pytest.mark.model
def test_the_program_of_the_page_talks_to_a_model_in_the_form_of_final(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "talk.py"
    program.write_text(blocks(MODEL, "python")[0])
    monkeypatch.setattr(sys, "argv", [str(program), str(tiny_model), "What is 1 + 2?"])
    runpy.run_path(str(program), run_name="__main__")
    assert re.fullmatch(r"\S{1,32}", capsys.readouterr().out.strip())
