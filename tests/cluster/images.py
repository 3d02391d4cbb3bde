"""Builds our container images and pushes them to the local registry: `python -m tests.cluster.images build`.

Called by `make images`, the demo and the fixtures of the local cluster. An image whose inputs did not change is found
in the registry by its key and costs one request. What the images are is in image_spec.py, how buildah is run in buildah.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tests.cluster import registry
from tests.cluster.base_image import base_key, ensure_base_image
from tests.cluster.buildah import Buildah, build_time_mounts, images_folder, locked, say, timed
from tests.cluster.image_spec import PUBLISHED, REPOSITORY, SPECS, image_key

_NAMESPACE = "agent-tuning"


class ImageBuilder:
    """Makes the images of one checkout; use it under the lock `build`."""

    def __init__(self, address: str, root: Path = REPOSITORY) -> None:
        self._address = address
        self._root = root

    @cached_property
    def _buildah(self) -> Buildah:
        return Buildah.ready()

    def _key(self, name: str) -> str:
        return image_key(name, base_key(), self._root)

    def publish(self, name: str) -> str:
        """Return the reference of image `name` in the registry, built and pushed if it is not there."""
        tag = self._key(name)
        reference = f"{self._address}/{_NAMESPACE}/{name}:{tag}"
        if registry.has_image(f"{_NAMESPACE}/{name}", tag):
            say(f"{name}: unchanged ({tag})")
            return reference
        image = self._local(name)
        with timed(f"{name}: push"):
            self._buildah.push(image, reference, _log(f"{name}-push"))
        return reference

    def _local(self, name: str) -> str:
        """The image in buildah's storage, built with all that it stands on if it is not there."""
        image = f"localhost/{_NAMESPACE}/{name}:{self._key(name)}"
        if self._buildah.has(image):
            return image
        spec = SPECS[name]
        options = ["-f", str(self._root / spec.dockerfile)]
        options += ["--ignorefile", str(self._root / spec.dockerfile) + ".dockerignore"]
        parent = self._local(spec.parent) if spec.parent else ensure_base_image(self._buildah)
        options += ["--build-arg", f"BASE_IMAGE={parent}"]
        if spec.builder:
            options += ["--build-arg", f"BUILDER_IMAGE={self._local(spec.builder)}"]
        if spec.stage:
            options += ["--target", spec.stage]
        options += build_time_mounts(self._buildah.folder)
        say(f"{name}: build")
        with timed(f"{name}: build"):
            self._buildah.build(image, self._root / spec.context, options, _log(name))
        self._drop_older(name, image)
        return image

    def _drop_older(self, name: str, keep: str) -> None:
        """Remove earlier builds of the image; the registry still has them, and the shared layers stay."""
        command = ["buildah", "images", "--json"]
        listed = subprocess.run(command, env=self._buildah.environment, check=True, capture_output=True, text=True)
        for entry in json.loads(listed.stdout or "[]"):
            for other in entry.get("names") or []:
                if other.startswith(f"localhost/{_NAMESPACE}/{name}:") and other != keep:
                    self._buildah.remove(other)


def build(names: Sequence[str] = PUBLISHED) -> dict[str, str]:
    """Build and push what changed of the images `names`; return their references in the registry by name.

    Raises:
        RuntimeError: a tool is missing and cannot be installed, or a build failed (the message has its last lines).
    """
    address = registry.ensure_running()
    with locked("build"):
        builder = ImageBuilder(address)
        return {name: builder.publish(name) for name in names}


def _log(name: str) -> Path:
    return images_folder() / "logs" / f"{name}.log"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("build", help="build and push what changed, print the references")
    command.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PUBLISHED)}; default: all")
    command.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - set(PUBLISHED))
    if unknown:
        parser.error(f"no such image: {', '.join(unknown)} (there are {', '.join(PUBLISHED)})")
    with timed("all"):
        references = build(chosen.names or PUBLISHED)
    if chosen.output == "json":
        print(json.dumps(references, indent=2))
    else:
        print("\n".join(f"{name}  {reference}" for name, reference in references.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
