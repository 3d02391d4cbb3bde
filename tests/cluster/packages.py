"""Debian packages that the cluster needs: says what is missing and installs it.

Called by the profiles before they start. Services that the packages bring are never started: the cluster starts the
programs itself, with its own configuration.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.errors import ClusterError, UnavailableError
from tests.cluster.report import step

CONTROL_PLANE_PACKAGES = ("etcd-server", "openssl")
NODE_PACKAGES = (
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "e2fsprogs",
    "ebtables",
    "ethtool",
    "iproute2",
    "ipset",
    "iptables",
    "mount",
    "nftables",
    "prometheus",
    "runc",
    "socat",
    "util-linux",
)
POLICY = Path("/usr/sbin/policy-rc.d")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing(packages: Sequence[str]) -> list[str]:
    """Return those of the packages that are not installed, in the given order."""
    if not shutil.which("dpkg-query"):
        raise UnavailableError(
            "dpkg-query is missing: the local cluster takes etcd and containerd from Debian packages"
        )
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\n", *packages]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout
    installed = {line.split()[1] for line in answer.splitlines() if line.startswith("installed ")}
    return [package for package in packages if package not in installed]


def ensure(packages: Sequence[str]) -> None:
    """Install what is missing of the packages.

    Raises:
        UnavailableError: A package is missing and this user may not install it.
    """
    absent = missing(packages)
    if not absent:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise UnavailableError(f"Debian packages are missing and only root can install them: {' '.join(absent)}")
    with step(f"install {len(absent)} Debian packages: {' '.join(absent)}", announce=True), services_stay_off():
        update()
        run_apt("install", "--yes", "--no-install-recommends", *absent)


def update() -> None:
    """Read the package lists again; they are empty or outdated on a fresh machine."""
    run_apt("update")


def run_apt(*arguments: str, cwd: Path | None = None) -> None:
    """Run apt-get without questions; the end of its output is the error's message."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", PATH=SYSTEM_PATH)
    command = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=cwd, timeout=900
    )
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")


@contextmanager
def services_stay_off() -> Iterator[None]:
    """Forbid package scripts to start services for the time of an installation."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
