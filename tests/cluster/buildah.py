"""Buildah and the folder of the image cache: what base_image.py and images.py run their tools with.

Nothing here knows which images there are. All state (layers, registry, base system) lies in one folder outside
the checkout, so that every clone of the repository shares it; buildah gets a private storage.conf and policy, so that
the images of the machine's own container tools are never touched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path

from tests.cluster import packages, paths

# Buildah's mounts; in /run, since they do not outlive the machine's start.
_RUN_ROOT = Path("/run/agent-tuning/buildah")
_HOST_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_SETTINGS = Path("/etc/pip.conf")
_LINES_OF_A_FAILURE = 40


def images_folder() -> Path:
    """The cache of everything about images: `$XDG_CACHE_HOME/agent-tuning/images`, made when it is missing."""
    root = paths.cache_root() / "images"
    root.mkdir(parents=True, exist_ok=True)
    return root


def say(text: str) -> None:
    """Print a line of progress; to stderr, since stdout is for results."""
    print(f"[images] {text}", file=sys.stderr, flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how many seconds the block took."""
    start = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - start:.1f} s")


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name` of the image cache; a second process waits."""
    with (images_folder() / f"{name}.lock").open("w") as handle:
        flock(handle, LOCK_EX)
        yield


def run_logged(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, echo: str = r"(\[\d+/\d+\] )?STEP "
) -> None:
    """Run `command`, write what it prints to `log`, and echo the lines that match `echo` as progress.

    Raises:
        RuntimeError: the command failed; the message has the last lines of its output.
    """
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: list[str] = []
    with (
        log.open("w", buffering=1) as sink,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=env
        ) as process,
    ):
        for line in process.stdout or ():
            sink.write(line)
            tail = [*tail[1 - _LINES_OF_A_FAILURE :], line]
            if re.match(echo, line):
                say(f"  {time.monotonic() - start:6.1f} s  {line.strip()[:150]}")
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])} ... failed ({process.returncode}); log: {log}\n{''.join(tail)}")


@dataclass(frozen=True)
class Buildah:
    """Buildah with its own storage below `folder`."""

    folder: Path

    @staticmethod
    def ready() -> Buildah:
        """Install buildah when it is missing and write its settings."""
        packages.ensure(["buildah"])
        tool = Buildah(images_folder() / "buildah")
        tool.folder.mkdir(exist_ok=True)
        _RUN_ROOT.mkdir(parents=True, exist_ok=True)
        tool._settings.write_text(
            f'[storage]\ndriver = "overlay"\nrunroot = "{_RUN_ROOT}"\ngraphroot = "{tool.folder / "storage"}"\n'
        )
        # Nothing is pulled from anywhere: every image is made here, and signed by nobody.
        tool._policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        return tool

    @property
    def _settings(self) -> Path:
        return self.folder / "storage.conf"

    @property
    def _policy(self) -> Path:
        return self.folder / "policy.json"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which buildah finds the private storage."""
        return {**os.environ, "CONTAINERS_STORAGE_CONF": str(self._settings)}

    def has(self, image: str) -> bool:
        """Whether `image` is in the local storage."""
        command = ["buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", image]
        return subprocess.run(command, env=self.environment, capture_output=True).returncode == 0

    def images(self) -> list[str]:
        """The names in the local storage."""
        command = ["buildah", "images", "--json"]
        listed = subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True)
        return [name for entry in json.loads(listed.stdout or "null") or [] for name in entry.get("names") or []]

    def build(self, image: str, context: Path, options: Sequence[str], log: Path) -> None:
        """Build `image` from `context` with its layers cached; `options` say which Dockerfile and arguments."""
        command = ["buildah", "build", "--signature-policy", str(self._policy), "--isolation", "chroot", "--layers"]
        run_logged([*command, "--pull-never", *options, "-t", image, str(context)], log, self.environment)

    def push(self, image: str, target: str, log: Path) -> None:
        """Push to a registry that speaks plain http; a layer that it has already is not sent."""
        command = ["buildah", "push", "--signature-policy", str(self._policy), "--tls-verify=false"]
        # zstd at its fastest: gzip takes most of the time of the whole pipeline.
        command += ["--compression-format", "zstd", "--compression-level", "1", "--format", "oci"]
        run_logged([*command, image, f"docker://{target}"], log, self.environment)

    def remove(self, image: str) -> None:
        """Drop a tag of the local storage, and its layers when nothing else uses them; missing is fine."""
        subprocess.run(["buildah", "rmi", image], env=self.environment, capture_output=True)


def build_time_mounts(folder: Path) -> list[str]:
    """Buildah options that lend the host's package client to RUN steps; nothing of it stays in the image.

    Shared are the host's trusted certificates and, where the host has uv, uv itself with its download cache
    (about 3 GB that a new image does not fetch again). They are mounted on folders and files that a Debian base has
    anyway, so no empty mount point is left behind. Without uv the Dockerfiles use pip, which gets the host's settings.
    """
    options: list[str] = []
    if _HOST_CERTIFICATES.exists():
        options += ["--volume", f"{_HOST_CERTIFICATES}:{_HOST_CERTIFICATES}:ro"]
    uv = find_uv()
    if uv is None:
        return options + (["--volume", f"{_PIP_SETTINGS}:{_PIP_SETTINGS}:ro"] if _PIP_SETTINGS.exists() else [])
    cache = subprocess.run([str(uv), "cache", "dir"], check=True, capture_output=True, text=True).stdout.strip()
    Path(cache).mkdir(parents=True, exist_ok=True)
    tools = folder / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    # /usr/local/sbin is empty in Debian and first on root's path: the wrapper there is found as plain `uv`.
    wrapper = tools / "uv"
    wrapper.write_text(
        "#!/bin/sh\n"
        f"export SSL_CERT_FILE={_HOST_CERTIFICATES} UV_CACHE_DIR=/mnt UV_LINK_MODE=copy UV_NO_PROGRESS=1\n"
        'exec /usr/local/sbin/uv.bin "$@"\n'
    )
    wrapper.chmod(0o755)
    if not (tools / "uv.bin").exists() or (tools / "uv.bin").stat().st_size != uv.stat().st_size:
        shutil.copy2(uv, tools / "uv.bin")
    return [*options, "--volume", f"{tools}:/usr/local/sbin:ro", "--volume", f"{cache}:/mnt"]


def find_uv() -> Path | None:
    """The real uv binary (a version manager's shim would not run inside an image), or None."""
    made = [str(path) for path in sorted(paths.cache_root().glob("uv-*/bin/python"))]  # by `make setup`
    for python in dict.fromkeys((sys.executable, *made, "python3")):
        command = [python, "-c", "import uv; print(uv.find_uv_bin())"]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode == 0:
            return Path(found.stdout.strip())
    found_on_path = shutil.which("uv")
    if found_on_path is None or Path(found_on_path).read_bytes()[:4] != b"\x7fELF":
        return None
    return Path(found_on_path)
