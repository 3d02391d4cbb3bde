"""Builds our container images and pushes them to the local registry: `python -m tests.cluster.images build`.

Called by `make images`, the demo and the fixtures of the local cluster. An image whose inputs did not change is found
in the registry by its key and costs one request. What the images are is in image_spec.py, how buildah is run in
buildah.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tests.cluster import registry
from tests.cluster.base_image import base_key, ensure_base_image
from tests.cluster.buildah import Buildah, build_time_mounts, images_folder, locked, say, timed
from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.image_spec import BUILDABLE, PUBLISHED, SPECS, ImageSpec, ignore_file, image_key, snapshot

_NAMESPACE = "agent-tuning"
UNAVAILABLE = 5
"""Exit code where the machine cannot build images, as in the cluster's own command line."""


class ImageBuilder:
    """Makes the images of one snapshot of the sources, `root`; use it under the lock `build`."""

    def __init__(self, address: str, root: Path) -> None:
        self._address = address
        self._root = root
        self._built: set[str] = set()

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
        image = self._name(name)
        if self._buildah.has(image):
            return image
        spec = SPECS[name]
        options = ["-f", str(self._root / spec.dockerfile)]
        options += ["--ignorefile", str(self._root / ignore_file(spec))]
        parent = self._local(spec.parent) if spec.parent else ensure_base_image(self._buildah)
        options += ["--build-arg", f"BASE_IMAGE={parent}"]
        options += self._options(spec)
        say(f"{name}: build")
        with timed(f"{name}: build"):
            self._buildah.build(image, self._root / spec.context, options, _log(name))
        self._built.add(name)
        return image

    def _options(self, spec: ImageSpec) -> list[str]:
        options = build_time_mounts(self._buildah.folder)
        if spec.builder:
            options += ["--build-arg", f"BUILDER_IMAGE={self._local(spec.builder)}"]
        if spec.fixed_times:
            options += ["--timestamp", "0"]
        if spec.stage:
            options += ["--target", spec.stage]
        return options

    def drop_older(self) -> None:
        """Remove earlier builds of what was built now from buildah's storage.

        The registry still has them, and layers in use stay, so that the next build finds them. From the last image
        to the first, since an image goes away only after those that stand on it.
        """
        images = self._buildah.images() if self._built else []
        for name in reversed(SPECS):
            for image in images:
                if name in self._built and image.startswith(self._name(name, "")) and image != self._name(name):
                    self._buildah.remove(image)

    def _name(self, name: str, tag: str | None = None) -> str:
        return f"localhost/{_NAMESPACE}/{name}:{self._key(name) if tag is None else tag}"


def build(names: Sequence[str] = PUBLISHED) -> dict[str, str]:
    """Build and push what changed of the images `names`; return their references in the registry by name.

    Raises:
        UnavailableError: a tool is missing and cannot be installed here.
        RuntimeError: a build failed; the message has its last lines.
    """
    address = registry.ensure_running()
    with locked("build"), tempfile.TemporaryDirectory() as folder:
        snapshot(Path(folder))
        builder = ImageBuilder(address, Path(folder))
        references = {name: builder.publish(name) for name in names}
        builder.drop_older()
        return references


def _log(name: str) -> Path:
    return images_folder() / "logs" / f"{name}.log"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("build", help="build and push what changed, print the references")
    command.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BUILDABLE)}; default: {', '.join(PUBLISHED)}"
    )
    command.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - set(BUILDABLE))
    if unknown:
        parser.error(f"no such image: {', '.join(unknown)} (there are {', '.join(BUILDABLE)})")
    try:
        with timed("all"):
            references = build(chosen.names or PUBLISHED)
    except UnavailableError as error:
        say(str(error))
        return UNAVAILABLE
    except (RuntimeError, ClusterError) as error:
        say(str(error))
        return 1
    if chosen.output == "json":
        print(json.dumps(references, indent=2))
    else:
        print("\n".join(f"{name}  {reference}" for name, reference in references.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
