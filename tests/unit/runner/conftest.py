"""The tiny model of the samples, built once and kept in pytest's cache until its builder changes, and a hub."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub import Hub
from tests.unit.runner.documents import TINY
from tests.unit.runner.hub_scene import TOKEN, Scene, a_client


@pytest.fixture(scope="session")
def tiny_model(request: pytest.FixtureRequest) -> Path:
    """Folder of a model of 141,000 parameters that answers a fifth of small sums right."""
    builder = TINY / "build_model.py"
    digest = hashlib.sha256(builder.read_bytes()).hexdigest()[:12]
    folder = request.config.cache.mkdir("tiny-model") / digest
    if not (folder / "config.json").is_file():
        unfinished = folder.with_name(f"{digest}.{os.getpid()}")
        command = [sys.executable, str(builder), "--out", str(unfinished)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        try:
            unfinished.rename(folder)
        except OSError:  # another process of these tests was faster
            shutil.rmtree(unfinished)
    return folder


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A hub with nothing in it, and a client with an empty cache."""
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
