"""Models from a hub: what is downloaded, what is not downloaded again, and what each refusal says."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hub import Hub
from tests.unit.runner.hub_scene import TOKEN, Refused, Scene, a_client, refuse
from tuning_contract.run_document import HubSource

pytest.importorskip("datasets")
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
