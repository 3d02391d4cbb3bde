"""The base image of the local cluster: Debian bookworm with Python, made by debootstrap.

Called by images.py, which passes it to every Dockerfile as BASE_IMAGE; no registry that serves
`python:3.12-slim-bookworm` is needed then. For this machine only: its sources.list names the mirror that
this machine uses, so the image is never published.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster import packages
from tests.cluster.buildah import Buildah, images_folder, run_logged, say, timed

_SUITE = "bookworm"
_PACKAGES = ("ca-certificates", "python3-minimal", "python3-venv", "python3-pip")
_RECIPE = 1  # raise it when the steps below change what is in the image
_DOCKERFILE = """\
FROM scratch
ADD base.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python3"]
"""
# What a container does not read; apt makes its lists anew.
_NOT_NEEDED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/info")


def base_key() -> str:
    """A digest of everything the base image is made from."""
    inputs = {"suite": _SUITE, "packages": _PACKAGES, "recipe": _RECIPE, "dockerfile": _DOCKERFILE}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]


def ensure_base_image(buildah: Buildah) -> str:
    """Make the base image if it is not there yet (about two minutes) and return its local name."""
    image = f"localhost/agent-tuning/base:{base_key()}"
    if buildah.has(image):
        return image
    archive = images_folder() / "base" / f"{base_key()}.tar"
    if not archive.exists():
        packages.ensure(["debootstrap"])
        with timed(f"base: debootstrap {_SUITE}"):
            _bootstrap(archive)
    with timed("base: build"), tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        context = Path(folder)
        (context / "base.tar").hardlink_to(archive)
        (context / "Dockerfile").write_text(_DOCKERFILE)
        buildah.build(image, context, ["-f", str(context / "Dockerfile")], images_folder() / "logs" / "base.log")
    return image


def debian_mirror(sources: Path = Path("/etc/apt")) -> str | None:
    """The mirror that this machine's own apt uses for Debian; None: debootstrap has a default of its own."""
    for file in [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]:
        text = file.read_text() if file.is_file() else ""
        # One-line style (`deb [options] URI suite ...`) and the newer field style (`URIs: URI`).
        for found in re.findall(r"^(?:deb(?:\s+\[[^]]*\])?|URIs:)\s+(\S+)", text, flags=re.MULTILINE):
            if found.rstrip("/").endswith("/debian"):
                return str(found)
    return None


def _bootstrap(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        root = Path(folder) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
        log = images_folder() / "logs" / "debootstrap.log"
        mirror = [found] if (found := debian_mirror()) else []
        run_logged([*command, _SUITE, str(root), *mirror], log, echo="I: Installing core")
        for path in _NOT_NEEDED:
            for entry in (root / path).glob("*"):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        unfinished = archive.with_suffix(".unfinished")
        subprocess.run(["tar", "-C", str(root), "--exclude=./dev/*", "-cf", str(unfinished), "."], check=True)
        unfinished.rename(archive)
        say(f"base: {archive.stat().st_size / 1e6:.0f} MB")
