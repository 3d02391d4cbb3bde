"""What our images are made from, and the key that follows from it. Called by images.py; builds nothing.

A key is a digest over the Dockerfile, every file that it copies, and the keys of the images below, so the same key
means the same image, and a registry that has it needs neither a build nor a push.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
KEY_LENGTH = 16
PREVIOUS_VERSION = "0.1.0"
"""Of the chart; its code and its chart lie below tests/e2e/releases."""


@dataclass(frozen=True)
class ImageSpec:
    """One image. Paths are relative to the repository."""

    name: str
    dockerfile: Path
    context: Path = Path()
    parent: str | None = None
    """The image that BASE_IMAGE names; None is the debootstrapped base."""
    builder: str | None = None
    """The image that BUILDER_IMAGE names: what the parent is made of, without the code that changes often."""
    stage: str | None = None
    """Build only up to this stage of the Dockerfile; such an image stays on this machine."""
    fixed_times: bool = False
    """Give all files the same time: the layer with the model is then the same blob on every new runner, and is neither
    pushed nor pulled again. Not for images with Python's byte code, which is valid for one time of its source only."""

    for_tests: bool = False
    """Nobody but the end-to-end tests has a use for it."""

    def text(self, root: Path) -> str:
        """The Dockerfile, without the stages after `stage`.

        Raises:
            ValueError: the Dockerfile has no such stage.
        """
        text = (root / self.dockerfile).read_text()
        if self.stage is None:
            return text
        before, *stages = re.split(r"^(?=FROM )", text, flags=re.MULTILINE)
        for number, stage in enumerate(stages, start=1):
            if re.match(rf"FROM \S+ AS {re.escape(self.stage)}\s", stage):
                return "".join([before, *stages[:number]])
        raise ValueError(f"{self.dockerfile} has no stage {self.stage!r}")


def _example(name: str) -> ImageSpec:
    folder = Path("images/examples") / name
    return ImageSpec(
        name, folder / "Dockerfile", folder, parent="runner-trl", builder="runner-trl-dependencies", fixed_times=True
    )


def _previous(name: str) -> ImageSpec:
    """An image with the code of the version before this one, which end-to-end tests upgrade from."""
    folder, dockerfile = Path("tests/e2e/releases") / PREVIOUS_VERSION, Path("tests/e2e/images/previous.Dockerfile")
    return ImageSpec(f"{name}-{PREVIOUS_VERSION}", dockerfile, folder, parent=name, for_tests=True)


_RUNNER = Path("images/runner-trl/Dockerfile")
SPECS = {
    spec.name: spec
    for spec in (
        ImageSpec("operator", Path("images/operator/Dockerfile")),
        ImageSpec("runner-trl-dependencies", _RUNNER, stage="dependencies"),
        ImageSpec("runner-trl", _RUNNER),
        _example("math-agent"),
        _example("tiny"),
        _previous("operator"),
        _previous("tiny"),
    )
}
BUILDABLE = tuple(name for name, spec in SPECS.items() if spec.stage is None)
PUBLISHED = tuple(name for name in BUILDABLE if not SPECS[name].for_tests)


def image_key(name: str, base_key: str, root: Path = REPOSITORY) -> str:
    """The key of image `name` over a base image with `base_key`: 16 hexadecimal digits."""
    spec = SPECS[name]
    text = spec.text(root)
    digest = hashlib.sha256()
    for part in (name, text, str(spec.fixed_times), *_keys_below(spec, base_key, root)):
        digest.update(part.encode() + b"\0")
    for source in copied_sources(text):
        for file in source_files(root / spec.context / source):
            executable = bool(file.stat().st_mode & 0o100)
            digest.update(f"{file.relative_to(root)}\0{executable}\0".encode() + _digest(file))
    return digest.hexdigest()[:KEY_LENGTH]


def copied_sources(dockerfile: str) -> list[str]:
    """The paths in the build context that the Dockerfile copies, in order, each once.

    Raises:
        ValueError: a source with a wildcard, or in the JSON form: neither is used here, and a key would miss it.
    """
    found: dict[str, None] = {}
    for line in re.sub(r"\\\n", " ", dockerfile).splitlines():
        words = line.split()
        if not words or words[0].upper() not in ("COPY", "ADD"):
            continue
        if any(word.startswith("--from=") for word in words):
            continue
        paths = [word for word in words[1:] if not word.startswith("--")][:-1]
        if any(set(path) & set('*?["') for path in paths):
            raise ValueError(f"only plain paths can be copied: {line}")
        found.update(dict.fromkeys(paths))
    return list(found)


def source_files(path: Path) -> Iterator[Path]:
    """The files at or below `path` in a fixed order, without the byte code that Python leaves there.

    Raises:
        FileNotFoundError: there is nothing at `path`.
    """
    if not path.exists():
        raise FileNotFoundError(f"a Dockerfile copies {path}, which does not exist")
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc":
            yield file


def snapshot(target: Path, root: Path = REPOSITORY) -> None:
    """Copy what the images are made from to `target`, laid out as in the repository.

    A key and an image are both made from the copy: an editor that saves between the two would otherwise put a content
    under the key of another. Times are kept, since buildah's layer cache compares them.
    """
    for spec in SPECS.values():
        files = [spec.dockerfile, ignore_file(spec)]
        for path in [*files, *(spec.context / source for source in copied_sources(spec.text(root)))]:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            if (root / path).is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(root / path, target / path, ignore=ignore, dirs_exist_ok=True)
            else:
                shutil.copy2(root / path, target / path)


def ignore_file(spec: ImageSpec) -> Path:
    """The file beside the Dockerfile that says what is never copied, relative to the repository."""
    return spec.dockerfile.with_name(spec.dockerfile.name + ".dockerignore")


def _keys_below(spec: ImageSpec, base_key: str, root: Path) -> list[str]:
    below = [name for name in (spec.parent, spec.builder) if name is not None]
    return [image_key(name, base_key, root) for name in below] or [base_key]


def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()
