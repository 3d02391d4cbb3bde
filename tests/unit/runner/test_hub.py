"""Models and tasks from a hub: what is downloaded, what is not downloaded again, and what each refusal says."""

import contextlib
import datetime
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.hub import Hub
from tests.unit.runner.documents import REPOSITORY, TINY, a_run_document, an_algorithm
from tuning_contract.run_document import HubSource, RunDocument
from tuning_runner.dataset import load_dataset

pytest.importorskip("datasets")
TOKEN = "hf_right"
MODEL_FILES = {
    "config.json": '{"model_type": "llama"}',
    "generation_config.json": '{"of": "the model"}',
    "tokenizer.json": '{"of": "the tokenizer"}',
    "tokenizer_config.json": '{"for": "the tokenizer"}',
    "chat_template.jinja": "{{ messages }}",
    "model.safetensors": "weights " * 1000,
}
SUPERFLUOUS_FILES = {
    ".gitattributes": "*.safetensors filter=lfs",
    "README.md": "# A model",
    "pytorch_model.bin": "the same weights",
    "consolidated.safetensors": "the same weights",
    "model-q4.gguf": "the same weights",
    "onnx/model.onnx": "the same weights",
    "onnx/config.json": "{}",
}


@dataclass
class Scene:
    """A hub with its client: a cache that all tests of this module share, each with repositories of its own."""

    hub: Hub
    process: subprocess.Popen
    root: Path
    runs: int = 0

    def repository(self, kind: str, name: str, files: dict[str, str | bytes]) -> Path:
        folder = self.hub.root / kind / "org" / name
        for path, content in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    def push(self, folder: Path, files: dict[str, str]) -> None:
        """Change `main`; the commit of before stays, as in a real repository."""
        shutil.copytree(folder, folder.with_name(f"{folder.name}@before"))
        for path, content in files.items():
            (folder / path).write_text(content)

    def a_run(self) -> Path:
        """The folder of a new run."""
        self.runs += 1
        return self.root / "runs" / str(self.runs)

    def load(self, what: str, source: HubSource, directory: Path | None = None, **environment: str) -> dict[str, Any]:
        order = {
            "what": what,
            "run": a_run_of(source).to_text(),
            "directory": str(directory or self.a_run()),
            "environment": {"TOKEN_OF_A_TEST": "", **environment},
        }
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the client is gone"
        return json.loads(answer)

    def requests_of(self, name: str) -> list[str]:
        return [f"{entry.method} {entry.path}" for entry in self.hub.requests if f"/org/{name}/" in entry.path]

    def downloads_of(self, name: str) -> list[str]:
        return sorted(
            re.sub(".*/resolve/[^/]+/", "", entry.path)
            for entry in self.hub.downloads
            if f"/org/{name}/" in entry.path and entry.status < 300
        )


def a_run_of(source: HubSource) -> RunDocument:
    run = a_run_document(algorithm=an_algorithm(batch_size=1))
    held = replace(run.dataset.evaluation[0], path="", hub=source)
    dataset = replace(run.dataset, path="", hub=source, hidden_fields=(), evaluation=(held,))
    return replace(run, model=replace(run.model, path="", hub=source), dataset=dataset)


@contextlib.contextmanager
def a_client(endpoint: str, root: Path) -> Iterator[subprocess.Popen]:
    """A process of the runner that knows one hub and one cache."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "PYTHONPATH": f"{REPOSITORY / 'operator'}:{REPOSITORY}",
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(root / "cache"),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.runner.hub_client"],
        env=environment,
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("hub")
    names = ("gated", "gated-rows")
    with Hub(root / "hub", gated={f"org/{name}": TOKEN for name in names}, private={"org/private": TOKEN}) as hub:
        for kind in ("models", "datasets"):
            (hub.root / kind / "org").mkdir(parents=True)
        with a_client(hub.url, root) as process:
            yield Scene(hub, process, root)


@pytest.fixture
def down(scene: Scene) -> Iterator[Hub]:
    """The hub, out of order."""
    scene.hub.is_down = True
    yield scene.hub
    scene.hub.is_down = False


def test_of_a_model_only_the_files_that_transformers_reads_are_downloaded(scene):
    scene.repository("models", "whole", MODEL_FILES | SUPERFLUOUS_FILES)
    answer = scene.load("model", HubSource("org/whole"))
    assert scene.downloads_of("whole") == sorted(MODEL_FILES)
    folder = Path(answer["folder"])
    assert {file.name for file in folder.iterdir()} == set(MODEL_FILES)
    assert (folder / "model.safetensors").read_text() == MODEL_FILES["model.safetensors"]
    commit = scene.hub.commit("org/whole")
    assert answer["identity"] == f"org/whole@{commit}"
    assert answer["found"] == {"model": {"repo": "org/whole", "revision": "main", "commit": commit}}
    assert re.fullmatch(rf"model org/whole at {commit[:12]}: 6 files, 0\.0 MiB downloaded in .* s", answer["said"][-1])


def test_weights_in_the_old_form_are_taken_when_there_are_no_others(scene):
    files = {name: text for name, text in MODEL_FILES.items() if name != "model.safetensors"}
    scene.repository("models", "old", files | {"pytorch_model.bin": "weights", "model.gguf": "the same"})
    scene.load("model", HubSource("org/old"))
    assert scene.downloads_of("old") == sorted([*files, "pytorch_model.bin"])


def test_a_later_attempt_asks_nothing_and_keeps_the_commit_although_main_has_moved(scene):
    folder = scene.repository("models", "moved", MODEL_FILES)
    directory = scene.a_run()
    first = scene.load("model", HubSource("org/moved"), directory)
    scene.push(folder, {"tokenizer.json": '{"new": true}'})
    asked = len(scene.requests_of("moved"))
    second = scene.load("model", HubSource("org/moved"), directory)
    assert len(scene.requests_of("moved")) == asked
    assert second["identity"] == first["identity"] != f"org/moved@{scene.hub.commit('org/moved')}"
    assert second["said"] == [f"model org/moved at {first['identity'][-40:][:12]}: 6 files, all in the cache"]
    other = scene.load("model", HubSource("org/moved"))
    assert other["identity"] == f"org/moved@{scene.hub.commit('org/moved')}"
    assert scene.downloads_of("moved").count("model.safetensors") == 1, "the same weights were downloaded again"


def test_a_list_of_commits_that_cannot_be_read_is_made_anew(scene):
    scene.repository("models", "noted", MODEL_FILES)
    directory = scene.a_run()
    directory.mkdir(parents=True)
    for text in ("{", "[]", '{"model": {"repo": "org/noted"}}', '{"model": "org/noted"}'):
        (directory / "sources.json").write_text(text)
        answer = scene.load("model", HubSource("org/noted"), directory)
        assert json.loads((directory / "sources.json").read_text()) == answer["found"]


def test_a_tag_and_a_commit_name_a_model_as_well(scene):
    scene.repository("models", "tagged", MODEL_FILES)
    scene.repository("models", "tagged@v1", MODEL_FILES | {"config.json": '{"model_type": "gpt2"}'})
    commit = scene.hub.commit("org/tagged", revision="v1")
    for revision in ("v1", commit):
        answer = scene.load("model", HubSource("org/tagged", revision))
        assert answer["identity"] == f"org/tagged@{commit}"
        assert "gpt2" in (Path(answer["folder"]) / "config.json").read_text()


def test_the_progress_of_a_long_download_is_told(scene):
    scene.repository("models", "long", MODEL_FILES | {"model.safetensors": os.urandom(1 << 20) * 30})
    scene.hub.bytes_per_second = 20 << 20
    try:
        said = scene.load("model", HubSource("org/long"))["said"]
    finally:
        scene.hub.bytes_per_second = None
    assert said[0].endswith("6 files, downloading 30.0 MiB")
    told = [float(found[1]) for line in said if (found := re.search(r"files, ([\d.]+) of 30\.0 MiB", line))]
    assert told, said
    assert sorted(told) == told
    assert 0 < told[-1] <= 30


def test_without_the_hub_a_new_run_takes_what_the_cache_has(scene, down):
    down.is_down = False
    scene.repository("models", "cached", MODEL_FILES)
    first = scene.load("model", HubSource("org/cached"))
    down.is_down = True
    assert scene.load("model", HubSource("org/cached"))["identity"] == first["identity"]


@pytest.mark.parametrize(("what", "name"), [("model", "nowhere"), ("train", "nowhere-rows")])
def test_without_the_hub_and_without_a_cache_the_failure_may_be_tried_again(scene, down, what, name):
    answer = scene.load(what, HubSource(f"org/{name}", split="train"))
    assert answer["cause"] == "HubUnreachable"
    assert f"the hub {down.url} cannot be reached for org/{name}" in answer["message"]
    assert "503" in answer["message"]


def test_a_hub_that_nobody_answers_for_is_unreachable(scene):
    with Hub(scene.hub.root) as gone:
        pass
    empty = scene.root / "alone"
    empty.mkdir()
    with a_client(gone.url, empty) as process:
        alone = replace(scene, hub=gone, process=process)
        for what, name in (("model", "whole"), ("train", "rows")):
            answer = alone.load(what, HubSource(f"org/{name}", "a" * 40, split="train"))
            assert answer["cause"] == "HubUnreachable", answer
            assert re.search(
                rf"the hub {gone.url} cannot be reached for org/{name}.*pods may reach it", answer["message"]
            )


def test_a_hub_that_fails_after_the_look_up_may_be_tried_again(scene, down):
    commit = "a" * 40
    answer = scene.load("model", HubSource("org/unlisted", commit))
    assert answer["cause"] == "HubUnreachable", answer


@dataclass(frozen=True)
class Refused:
    """A source that the user must change."""

    message: str
    repo: str = "org/rows"
    revision: str = "main"
    split: str | None = "train"
    subset: str | None = None
    token: str | None = None


MODEL_REFUSALS = {
    "unknown": Refused(
        r"the hub shows a reader without a token no model org/missing: check `model\.huggingFace\.repo`, and "
        r"`model\.huggingFace\.tokenSecretRef` if it is private",
        "org/missing",
    ),
    "private": Refused(r"shows the token of `model\.huggingFace\.tokenSecretRef` no model", "org/private", token="x"),
    "revision": Refused(
        r"`model\.huggingFace\.revision` v9 is no branch, tag or commit of org/there", "org/there", "v9"
    ),
    "gated": Refused(r"org/gated of the hub is gated: accept its terms .* and set `.*tokenSecretRef`", "org/gated"),
    "gated with a wrong token": Refused(
        r"gated: ask for access on its page, with the account of", "org/gated", token="x"
    ),
    "name": Refused(r"`model\.huggingFace\.repo` org/a/b is no name of a repository", "org/a/b"),
    "no model": Refused(r"org/sheet has no config\.json, so it is no model of transformers \(notes\.md\)", "org/sheet"),
    "no weights": Refused(r"org/quantized has no weights in \.safetensors or \.bin files", "org/quantized"),
    "empty token": Refused(r"the Secret's key that `model\.huggingFace\.tokenSecretRef` names is empty", token=" \n"),
}


@pytest.fixture(scope="module")
def models(scene: Scene) -> None:
    for name in ("there", "gated", "private"):
        scene.repository("models", name, MODEL_FILES)
    scene.repository("models", "sheet", {"notes.md": "no model"})
    scene.repository("models", "quantized", {"config.json": "{}", "model-q4.gguf": "weights"})


def refuse(scene: Scene, what: str, case: Refused, cause: str) -> None:
    variable = "TOKEN_OF_A_TEST" if case.token is not None else None
    source = HubSource(case.repo, case.revision, case.subset, case.split, variable)
    answer = scene.load(what, source, **({"TOKEN_OF_A_TEST": case.token} if case.token is not None else {}))
    assert answer.get("cause") == cause, answer
    assert re.search(case.message, answer["message"]), answer["message"]
    assert "Traceback" not in answer["message"]


@pytest.mark.parametrize("case", MODEL_REFUSALS)
def test_a_model_that_cannot_be_had_says_what_to_change(scene, models, case):
    refuse(scene, "model", MODEL_REFUSALS[case], "ConfigInvalid")


@pytest.mark.parametrize("name", ["gated", "private"])
def test_the_token_of_the_secret_opens_a_repository(scene, models, name):
    source = HubSource(f"org/{name}", token_variable="TOKEN_OF_A_TEST")
    answer = scene.load("model", source, TOKEN_OF_A_TEST=f"{TOKEN}\n")
    assert answer["identity"].startswith(f"org/{name}@"), answer


def test_a_model_without_room_for_it_is_refused_before_the_download(tmp_path):
    from tuning_contract.causes import Cause
    from tuning_runner.episodes.errors import RunError
    from tuning_runner.hub import _require_room

    with pytest.raises(
        RunError, match=r"MiB left, but model x needs 1099511627776 MiB more: enlarge its volume"
    ) as caught:
        _require_room(tmp_path / "hub", 1 << 60, "model x")
    assert caught.value.cause is Cause.STORAGE_FAILED


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


CARD = """---
configs:
- {config_name: main, data_files: [{split: train, path: main/train*}, {split: test, path: main/test*}]}
- {config_name: socratic, data_files: [{split: train, path: socratic/train*}]}
---
"""


@pytest.fixture(scope="module")
def tasks(scene: Scene) -> None:
    scene.repository("datasets", "rows", {"train.jsonl": (TINY / "train.jsonl").read_text()})
    for name in ("gated-rows", "private"):
        scene.repository("datasets", name, {"train.jsonl": lines([{"q": "1"}])})
    subsets = {"main/train.csv": "q\na\n", "main/test.csv": "q\nb\n", "socratic/train.csv": "q\nc\n"}
    scene.repository("datasets", "subsets", {"README.md": CARD, **subsets})
    scene.repository("datasets", "broken", {"train.jsonl": '{"q": 1}\n{"q": \n'})
    scene.repository("datasets", "empty", {"README.md": "nothing yet"})
    scene.repository("datasets", "script", {"script.py": "import os"})
    date = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)
    albums = a_table([{"picture": PICTURE}], {"feature": {"picture": IMAGE}, "_type": "List"})
    scene.repository("datasets", "dates", {"train.parquet": a_table(date, TIMESTAMP)})
    scene.repository("datasets", "pictures", {"train.parquet": a_table(PICTURE, IMAGE)})
    scene.repository("datasets", "albums", {"train.parquet": albums})


TIMESTAMP = {"dtype": "timestamp[us, tz=UTC]", "_type": "Value"}
IMAGE = {"_type": "Image"}
PICTURE = {"bytes": b"png", "path": "a.png"}


def a_table(value: Any, feature: dict[str, Any]) -> bytes:
    """A Parquet file with one row, whose column `x` is of this feature."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"q": {"dtype": "string", "_type": "Value"}, "x": feature}
    table = pyarrow.Table.from_pylist([{"q": "1", "x": value}])
    content = io.BytesIO()
    metadata = {"huggingface": json.dumps({"info": {"features": columns}})}
    parquet.write_table(table.replace_schema_metadata(metadata), content)
    return content.getvalue()


DATASET_REFUSALS = {
    "unknown": Refused(r"no dataset org/missing: check `dataset\.train\.huggingFace\.repo`", "org/missing"),
    "private": Refused(r"no dataset org/private: check", "org/private"),
    "gated": Refused(r"dataset org/gated-rows of the hub is gated: accept its terms", "org/gated-rows"),
    "revision": Refused(r"`dataset\.train\.huggingFace\.revision` v9 is no branch, tag or commit", revision="v9"),
    "split": Refused(r"`dataset\.train\.huggingFace\.split` dev is no split of org/rows; it has: train", split="dev"),
    "no split": Refused(r"`dataset\.train\.huggingFace\.split` is missing", split=None),
    "no subset": Refused(
        r"`dataset\.train\.huggingFace\.subset` is missing, but there are several .*; it has: main, socratic",
        "org/subsets",
    ),
    "subset": Refused(
        r"`dataset\.train\.huggingFace\.subset` extra is no subset of org/subsets; it has: main, socratic",
        "org/subsets",
        subset="extra",
    ),
    "split of a subset": Refused(
        r"split` test is no split of org/subsets \(subset socratic\); it has: train",
        "org/subsets",
        subset="socratic",
        split="test",
    ),
    "broken file": Refused(r"dataset org/broken of the hub cannot be read; check `dataset\.train", "org/broken"),
    "no files": Refused(r"dataset org/empty of the hub cannot be read; check", "org/empty"),
    "script": Refused(r"Dataset scripts are no longer supported", "org/script"),
    "date": Refused(r"row 0 of org/dates, split train has a value of type datetime in the column `x`", "org/dates"),
    "pictures in a list": Refused(r"column `x` of dataset org/albums holds values of type Image", "org/albums"),
    "picture": Refused(r"the column `x` of dataset org/pictures holds values of type Image", "org/pictures"),
}


@pytest.mark.parametrize("case", DATASET_REFUSALS)
def test_tasks_that_cannot_be_had_say_what_to_change(scene, tasks, case):
    refuse(scene, "train", DATASET_REFUSALS[case], "DatasetInvalid")


def test_the_field_of_an_evaluation_set_is_named_with_the_set(scene, tasks):
    answer = scene.load("heldout", HubSource("org/rows", split="dev"))
    assert answer["message"].startswith("`dataset.evaluation[heldout].huggingFace.split` dev is no split of org/rows")


def test_the_rows_of_the_hub_have_the_digest_of_the_same_file(scene, tasks):
    answer = scene.load("train", HubSource("org/rows", split="train"))
    file = load_dataset(TINY / "train.jsonl")
    assert (answer["rows"], answer["digest"]) == (list(file.rows), file.digest)
    assert answer["origin"] == "org/rows, split train"
    commit = scene.hub.commit("org/rows", "datasets")
    assert answer["found"] == {"train": {"repo": "org/rows", "revision": "main", "commit": commit}}


def test_training_and_test_split_are_of_one_commit_although_main_moves_between_them(scene):
    files = {"train.jsonl": lines([{"q": "1"}]), "test.jsonl": lines([{"q": "2"}])}
    folder = scene.repository("datasets", "between", files)
    directory = scene.a_run()
    before = scene.load("train", HubSource("org/between", split="train"), directory)["found"]["train"]
    scene.push(folder, {"test.jsonl": lines([{"q": "1"}])})
    answer = scene.load("heldout", HubSource("org/between", split="test"), directory)
    assert answer["rows"] == [{"q": "2"}]
    assert answer["found"] == {"evaluation/heldout": before}


def test_a_subset_a_split_and_a_part_of_a_split_are_chosen(scene, tasks):
    assert scene.load("train", HubSource("org/subsets", subset="main", split="test"))["rows"] == [{"q": "b"}]
    assert scene.load("train", HubSource("org/subsets", subset="socratic", split="train"))["rows"] == [{"q": "c"}]
    assert len(scene.load("train", HubSource("org/rows", split="train[:3]"))["rows"]) == 3


def test_a_later_attempt_downloads_no_tasks_and_keeps_their_commit(scene):
    folder = scene.repository("datasets", "kept", {"train.jsonl": lines([{"q": "old"}])})
    directory = scene.a_run()
    source = HubSource("org/kept", split="train")
    assert scene.load("train", source, directory)["rows"] == [{"q": "old"}]
    scene.push(folder, {"train.jsonl": lines([{"q": "new"}])})
    assert scene.load("train", source, directory)["rows"] == [{"q": "old"}]
    assert scene.downloads_of("kept") == ["train.jsonl"]
    assert scene.load("train", source)["rows"] == [{"q": "new"}]


def test_without_the_hub_tasks_come_from_the_cache_if_it_has_their_commit(scene, down):
    down.is_down = False
    folder = scene.repository("datasets", "offline", {"train.jsonl": lines([{"q": "old"}])})
    source = HubSource("org/offline", split="train")
    early = scene.a_run()
    scene.load("train", source, early)
    down.is_down = True
    assert scene.load("train", source)["rows"] == [{"q": "old"}]
    down.is_down = False
    scene.push(folder, {"train.jsonl": lines([{"q": "new"}])})
    assert scene.load("train", source)["rows"] == [{"q": "new"}]
    down.is_down = True
    answer = scene.load("train", source, early)
    assert answer.get("cause") == "HubUnreachable", answer
    assert "the cache has another commit of it" in answer["message"]
