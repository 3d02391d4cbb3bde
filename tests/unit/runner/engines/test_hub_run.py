"""A whole run whose model and tasks come from a hub, over two attempts with one cache."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.hub import Hub
from tests.unit.runner.documents import TINY, a_run_document, an_algorithm
from tests.unit.runner.volumes import Volume
from tuning_contract.checkpoint import complete_checkpoints
from tuning_contract.run_document import HubSource, RunDocument, WorkflowSettings
from tuning_runner.dataset import load_dataset

pytestmark = pytest.mark.model
pytest.importorskip("torch")
pytest.importorskip("datasets")
STEPS, FAIL_AFTER = 4, 2
JUDGE = """
from pathlib import Path
from tiny_agent import judge as lucky

async def judge(task, response):
    if Path({path!r}).exists():
        raise RuntimeError("out of luck")
    return await lucky(task, response)
"""


@dataclass(frozen=True)
class Story:
    """What the hub was asked in each attempt, and the volume at the end."""

    volume: Volume
    hub: Hub
    commits: dict[str, str]
    """Of model and tasks when the run began."""
    downloads: tuple[list[str], list[str]]


def a_run_from_the_hub() -> RunDocument:
    run = a_run_document(algorithm=an_algorithm(steps=STEPS, save_every_steps=FAIL_AFTER, batch_size=5, group_size=8))
    held = replace(run.dataset.evaluation[0], path="", hub=HubSource("org/sums", split="test"))
    train = replace(run.dataset, path="", hub=HubSource("org/sums", split="train"), evaluation=(held,))
    return replace(run, model=replace(run.model, path="", hub=HubSource("org/tiny")), dataset=train)


@pytest.fixture(scope="module")
def story(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The first attempt fails after step 2; before the second, both repositories get new commits."""
    root = tmp_path_factory.mktemp("hub")
    model, tasks = root / "models/org/tiny", root / "datasets/org/sums"
    shutil.copytree(tiny_model, model)
    tasks.mkdir(parents=True)
    shutil.copy(TINY / "train.jsonl", tasks / "train.jsonl")
    shutil.copy(TINY / "heldout.jsonl", tasks / "test.jsonl")
    volume, run = Volume(tmp_path_factory.mktemp("volume")), a_run_from_the_hub()
    source = tmp_path_factory.mktemp("source")
    shutil.copy(TINY / "tiny_agent.py", source)
    complete = volume.run.checkpoint(FAIL_AFTER) / "COMPLETE"
    (source / "unlucky.py").write_text(JUDGE.format(path=str(complete)))
    unlucky = replace(run, workflow=WorkflowSettings("tiny_agent:run", "unlucky:judge"))
    with pytest.MonkeyPatch.context() as patch, Hub(root) as hub:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HOME", str(volume.root / ".huggingface"))
        commits = {"model": hub.commit("org/tiny"), "tasks": hub.commit("org/sums", "datasets")}
        code, output = volume.execute(unlucky, attempt=1, source=source)
        assert code == 10, output
        assert volume.result.cause == "WorkflowError", output
        first = [entry.path for entry in hub.downloads]
        for folder in (model, tasks):
            shutil.copytree(folder, folder.with_name(f"{folder.name}@before"))
            (folder / "README.md").write_text("A new commit")
        code, output = volume.execute(run, attempt=2)
        assert code == 0, output
        second = [entry.path for entry in hub.downloads[len(first) :]]
    return Story(volume, hub, commits, (first, second))


def test_the_second_attempt_downloads_nothing(story):
    first, second = story.downloads
    assert sum(path.endswith("/model.safetensors") for path in first) == 1
    assert sum(path.endswith(".jsonl") for path in first) == 2
    assert second == []
    assert f"model org/tiny at {story.commits['model'][:12]}: 6 files, all in the cache" in story.volume.log(2)


def test_the_second_attempt_resumes_with_the_commits_of_the_first(story):
    assert f"resuming after step {FAIL_AFTER}" in story.volume.log(2)
    assert story.hub.commit("org/tiny") != story.commits["model"]
    provenance = json.loads(story.volume.run.provenance.read_text())
    tasks = {"repo": "org/sums", "revision": "main", "commit": story.commits["tasks"]}
    assert provenance["hub"] == {
        "model": {"repo": "org/tiny", "revision": "main", "commit": story.commits["model"]},
        "train": tasks,
        "evaluation/heldout": tasks,
    }
    assert json.loads(story.volume.run.sources.read_text()) == provenance["hub"]


def test_the_fingerprint_names_the_commit_and_no_place_in_a_cache(story):
    identity = f"org/tiny@{story.commits['model']}"
    manifests = [manifest for _, manifest in complete_checkpoints(story.volume.run.checkpoints)]
    assert {manifest.step for manifest in manifests} == {FAIL_AFTER, STEPS}
    for manifest in manifests:
        assert manifest.fingerprint["model"] == identity
        assert ".huggingface" not in json.dumps(dict(manifest.fingerprint))
        assert manifest.dataset_digest == load_dataset(TINY / "train.jsonl").digest


def test_the_final_model_is_whole(story):
    assert story.volume.result.complete
    assert (story.volume.run.final / "model.safetensors").is_file()
