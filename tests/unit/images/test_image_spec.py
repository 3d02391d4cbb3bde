"""The keys of images follow what the images are made from, and the Dockerfiles keep the rules for all of them."""

import re
import shutil
from pathlib import Path

import pytest

from tests.cluster.image_spec import (
    PREVIOUS_VERSION,
    PUBLISHED,
    REPOSITORY,
    SPECS,
    copied_sources,
    image_key,
    snapshot,
    source_files,
)

BASE = "base-1"
RUNNER_CODE = "operator/tuning_runner/__init__.py"
CONTRACT_CODE = "operator/tuning_contract/__init__.py"
TINY_BEFORE = f"tiny-{PREVIOUS_VERSION}"
EXAMPLES = {"math-agent", "tiny", TINY_BEFORE}
OPERATORS = {"operator", f"operator-{PREVIOUS_VERSION}"}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what the images are made from."""
    snapshot(tmp_path)
    return tmp_path


def keys_of(root: Path, base: str = BASE) -> dict[str, str]:
    return {name: image_key(name, base, root) for name in SPECS}


def changed_by(root: Path, path: str) -> set[str]:
    """The images whose key changes when the file at `path` gets another line."""
    before = keys_of(root)
    file = root / path
    file.write_text(file.read_text() + "\n")
    after = keys_of(root)
    return {name for name in SPECS if before[name] != after[name]}


def test_a_snapshot_has_the_same_keys_as_the_repository_it_was_made_from(sources: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    snapshot(second, sources)
    assert keys_of(second) == keys_of(sources)


@pytest.mark.parametrize(
    ("path", "images"),
    [
        (RUNNER_CODE, {"runner-trl", *EXAMPLES}),
        (CONTRACT_CODE, {*OPERATORS, "runner-trl", *EXAMPLES}),
        ("operator/tuning_sidecar/__init__.py", OPERATORS),
        ("images/operator/requirements.txt", OPERATORS),
        ("images/runner-trl/requirements.txt", {"runner-trl", "runner-trl-dependencies", *EXAMPLES}),
        ("images/examples/math-agent/math_agent.py", {"math-agent"}),
        ("images/examples/tiny/build_model.py", {"tiny", TINY_BEFORE}),
        ("images/examples/tiny/Dockerfile", {"tiny", TINY_BEFORE}),
    ],
)
def test_a_changed_file_changes_the_keys_of_the_images_that_hold_it(sources: Path, path: str, images: set[str]) -> None:
    assert changed_by(sources, path) == images


def test_another_base_image_changes_every_key(sources: Path) -> None:
    one, two = keys_of(sources, "base-1"), keys_of(sources, "base-2")
    assert all(one[name] != two[name] for name in SPECS)


def test_byte_code_does_not_change_a_key(sources: Path) -> None:
    before = keys_of(sources)
    cache = sources / "operator/tuning_runner/__pycache__"
    cache.mkdir()
    (cache / "__init__.cpython-311.pyc").write_bytes(b"x")
    assert keys_of(sources) == before


def test_a_new_file_and_a_renamed_one_change_the_key(sources: Path) -> None:
    keys = [image_key("operator", BASE, sources)]
    new = sources / "operator/tuning_driver/new.py"
    new.write_text("")
    keys.append(image_key("operator", BASE, sources))
    new.rename(new.with_name("renamed.py"))
    keys.append(image_key("operator", BASE, sources))
    assert len(set(keys)) == 3


def test_a_source_that_does_not_exist_is_an_error(sources: Path) -> None:
    shutil.rmtree(sources / "operator/tuning_driver")
    with pytest.raises(FileNotFoundError, match="tuning_driver"):
        image_key("operator", BASE, sources)


def test_copied_sources_are_those_of_the_context_alone() -> None:
    text = (
        "FROM a AS b\nCOPY one.py two /x/\nFROM c\nCOPY --from=b /m /m\nCOPY --chown=1000 \\\n  three /y\nADD two /z\n"
    )
    assert copied_sources(text) == ["one.py", "two", "three"]


@pytest.mark.parametrize("line", ["COPY *.py /x/", 'COPY ["a", "/x"]'])
def test_a_copy_that_a_key_would_miss_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="plain paths"):
        copied_sources(line)


def test_an_unknown_stage_is_an_error() -> None:
    spec = SPECS["runner-trl-dependencies"]
    broken = type(spec)(spec.name, spec.dockerfile, stage="absent")
    with pytest.raises(ValueError, match="no stage 'absent'"):
        broken.text(REPOSITORY)


def test_source_files_are_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "c/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [file.name for file in source_files(tmp_path)] == ["a.py", "b.py", "d.py"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_dockerfile_takes_its_base_image_and_ends_as_a_numeric_user(name: str) -> None:
    text = SPECS[name].text(REPOSITORY)
    assert re.search(r"^ARG BASE_IMAGE=\S+$", text, re.MULTILINE)
    last = re.split(r"^FROM ", text, flags=re.MULTILINE)[-1]
    users = re.findall(r"^USER (\S+)$", last, re.MULTILINE)
    if SPECS[name].parent is None:
        assert users == ["1000"]
    else:
        assert users == [], "the user of the image below stays"
        assert last.startswith("${BASE_IMAGE}\n")


@pytest.mark.parametrize("file", sorted((REPOSITORY / "images").rglob("requirements.txt")), ids=lambda f: f.parent.name)
def test_every_requirement_is_pinned_by_version(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+(\[[\w,]+\])?==[\w.+!]+", line)] == []


def test_user_code_is_in_the_last_layer_of_the_samples() -> None:
    for name in ("math-agent", "tiny"):
        lines = [line for line in SPECS[name].text(REPOSITORY).splitlines() if line]
        assert lines[-1].startswith("COPY ")
        assert lines[-1].endswith(" /opt/workflow/")
