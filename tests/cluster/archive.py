"""Writes small container images around static programs, without any image tool.

Called by `full` and `addons` for the images that the cluster itself needs (pause, busybox, CoreDNS, KubeRay). Images
of the product are built by `images`.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class StaticImage:
    """An image that holds only the given files.

    Attributes:
        reference: Its name, like `localhost/pause:dev`.
        files: Path in the image -> file on this machine.
        entrypoint: The command; the first part is a path in the image.
        links: Path in the image -> target of the symbolic link.
        user: The numeric user that runs it.
    """

    reference: str
    files: Mapping[str, Path]
    entrypoint: Sequence[str]
    links: Mapping[str, str] = field(default_factory=dict)
    user: str = "0"

    def write(self, archive: Path) -> None:
        """Write it as a docker-archive, which containerd imports; the same input gives the same bytes."""
        layer = self._layer()
        layer_name = hashlib.sha256(layer).hexdigest()
        config = json.dumps(
            {
                "architecture": ARCHITECTURES.get(os.uname().machine, os.uname().machine),
                "os": "linux",
                "config": {
                    "Entrypoint": list(self.entrypoint),
                    "Env": ["PATH=/usr/bin:/bin"],
                    "User": self.user,
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_name}"]},
                "history": [{"created": "1970-01-01T00:00:00Z"}],
                "created": "1970-01-01T00:00:00Z",
            }
        ).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        layer_path = f"{layer_name}/layer.tar"
        manifest = [{"Config": config_name, "RepoTags": [self.reference], "Layers": [layer_path]}]
        with tarfile.open(archive, "w") as out:
            _add(out, config_name, config)
            _add(out, layer_path, layer)
            _add(out, "manifest.json", json.dumps(manifest).encode())

    def _layer(self) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as out:
            folders = {"tmp"} | {str(p) for name in [*self.files, *self.links] for p in Path(name).parents}
            for folder in sorted(folders - {"/", "."}):
                entry = tarfile.TarInfo(folder.lstrip("/"))
                entry.type = tarfile.DIRTYPE
                entry.mode = 0o1777 if folder == "tmp" else 0o755
                out.addfile(entry)
            for name, source in sorted(self.files.items()):
                _add(out, name.lstrip("/"), source.read_bytes(), 0o755)
            for name, target in sorted(self.links.items()):
                entry = tarfile.TarInfo(name.lstrip("/"))
                entry.type = tarfile.SYMTYPE
                entry.linkname = target
                out.addfile(entry)
        return buffer.getvalue()


def _add(out: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    out.addfile(entry, io.BytesIO(content))
