"""The tiny model of the samples, built once and kept in pytest's cache until its builder changes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.runner.documents import TINY


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
        unfinished.rename(folder)
    return folder
