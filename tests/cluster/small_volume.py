"""A volume that is soon full: a file with a file system of a few MiB, mounted where the kubelet sees it.

Called by tests of full volumes. The mount is made in the node's mount namespace, so that nobody else sees it, and goes
with it, loop device included, whatever becomes of the test.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.errors import ClusterError
from tests.cluster.full import FullCluster
from tests.cluster.node import HOLDER

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class SmallVolume:
    """A mounted file system of the node."""

    name: str
    mebibytes: int
    folder: Path
    """Where it is mounted, in the node's mount namespace."""
    seen: Path
    """The same folder, as this process reaches it."""

    def manifests(self, namespace: str) -> list[dict[str, Any]]:
        """A PersistentVolume for it, and a claim in a namespace that is bound to it; both have its name."""
        size = {"storage": f"{self.mebibytes}Mi"}
        both: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = both | {
            "capacity": size,
            "hostPath": {"path": str(self.folder)},
            "claimRef": {"namespace": namespace, "name": self.name},
        }
        claim = both | {"resources": {"requests": size}, "volumeName": self.name}
        metadata: dict[str, Any] = {"name": self.name}
        return [
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": volume},
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim},
        ]

    def fill(self) -> None:
        """Take all the space that is left."""
        with (self.seen / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                os.sync()

    def free(self) -> None:
        """Give back what `fill` took."""
        (self.seen / "filler").unlink(missing_ok=True)


@contextmanager
def small_volume(cluster: FullCluster, name: str, mebibytes: int) -> Iterator[SmallVolume]:
    """Mount a file system of so many MiB, writable for everybody, for as long as the block."""
    volume = mount(cluster, name, mebibytes)
    try:
        yield volume
    finally:
        unmount(cluster, volume)


def mount(cluster: FullCluster, name: str, mebibytes: int) -> SmallVolume:
    """Mount a file system of so many MiB, writable for everybody, until `unmount` or the end of the cluster."""
    folder = cluster.state / "small-volumes" / name
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".img").open("wb") as file:
        file.truncate(mebibytes * MEBIBYTE)
    # Without a journal and reserved blocks, nearly all of it is there to be used.
    _run(["mkfs.ext2", "-q", "-m", "0", "-F", file.name])
    holder = _holder(cluster)
    _run([*_inside(holder), "mount", "-o", "loop", file.name, str(folder)])
    seen = Path(f"/proc/{holder}/root", folder.relative_to("/"))
    seen.chmod(0o777)
    return SmallVolume(name, mebibytes, folder, seen)


def unmount(cluster: FullCluster, volume: SmallVolume) -> None:
    """Take it away, with all that is on it."""
    # Lazily: a pod that is about to go may still have it.
    _run([*_inside(_holder(cluster)), "umount", "--lazy", str(volume.folder)])
    volume.folder.with_suffix(".img").unlink()
    volume.folder.rmdir()


def _holder(cluster: FullCluster) -> int:
    pid = cluster.processes.pid(HOLDER)
    if pid is None:
        raise ClusterError("the cluster does not run, so that nothing can be mounted for it")
    return pid


def _inside(holder: int) -> list[str]:
    return ["nsenter", f"--mount=/proc/{holder}/ns/mnt", "--"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
