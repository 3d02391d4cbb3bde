"""Loads the programs of the sample images, which are no package of this repository, by their path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

IMAGES = Path(__file__).resolve().parents[3] / "images"


def load(path: str) -> ModuleType:
    """The module at `path` below images/."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), IMAGES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
