"""A container registry on loopback: Debian's docker-registry as a process of this machine.

Called by images.py and by the local cluster, whose containerd pulls from it over plain http (the runtimes allow that
for 127.0.0.1). The port is fixed, since it is part of every image reference. The content stays in the image cache
when the process stops.
"""

from __future__ import annotations

import http.client
import os
import signal
import time
from pathlib import Path

from tests.cluster import packages
from tests.cluster.buildah import images_folder, locked, say
from tests.cluster.processes import reap, spawn, started_at

PORT = 5077
ADDRESS = f"127.0.0.1:{PORT}"
_BINARY = "docker-registry"
_START_SECONDS = 15.0
_STOP_SECONDS = 10.0
_MANIFEST_TYPES = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
_SETTINGS = """\
version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {storage}}}
  cache: {{blobdescriptor: inmemory}}
  delete: {{enabled: true}}
http: {{addr: "{address}"}}
"""


def ensure_running() -> str:
    """Start the registry unless it runs, and return its address, `127.0.0.1:PORT`.

    Raises:
        RuntimeError: somebody else has the port, or the registry does not answer within 15 s.
    """
    with locked("registry"):
        if running_pid() is not None and _answers():
            return ADDRESS
        if _answers():
            raise RuntimeError(f"port {PORT} is taken by another registry, whose content we do not know")
        packages.ensure([_BINARY])
        _start()
        return ADDRESS


def stop() -> bool:
    """Stop the registry that `ensure_running` started; return whether there was one."""
    with locked("registry"):
        pid = running_pid()
        if pid is None:
            return False
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while running_pid() is not None:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.05)
        _pid_file().unlink(missing_ok=True)
        say(f"registry: stopped (pid {pid})")
        return True


def running_pid() -> int | None:
    """The process id of our registry, or None; an id that went to another program since does not count."""
    try:
        pid = int(_pid_file().read_text())
        # The process may be a child of this one that ended: such a one has an empty command line.
        return pid if _BINARY.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() else None
    except (OSError, ValueError):
        return None


def has_image(repository: str, tag: str) -> bool:
    """Whether the running registry serves `repository:tag`."""
    return _status(f"/v2/{repository}/manifests/{tag}") == http.client.OK


def _folder() -> Path:
    folder = images_folder() / "registry"
    folder.mkdir(exist_ok=True)
    return folder


def _pid_file() -> Path:
    return _folder() / "registry.pid"


def _start() -> None:
    settings = _folder() / "config.yml"
    settings.write_text(_SETTINGS.format(storage=_folder() / "storage", address=ADDRESS))
    log = _folder() / "registry.log"
    # Its own session, so that the end of a test run or of a shell does not take it along.
    # Its settings come from the file alone: REGISTRY_* variables would override them.
    env = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
    env["OTEL_TRACES_EXPORTER"] = "none"
    pid = spawn(["env", "--chdir=/", _BINARY, "serve", str(settings)], env, log)
    _pid_file().write_text(str(pid))
    deadline = time.monotonic() + _START_SECONDS
    while not _answers():
        reap(pid)
        if started_at(pid) is None or time.monotonic() > deadline:
            raise RuntimeError(f"the registry does not answer on {ADDRESS}; see {log}")
        time.sleep(0.05)
    say(f"registry: {ADDRESS} (pid {pid})")


def _answers() -> bool:
    return _status("/v2/") == http.client.OK


def _status(path: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
    try:
        connection.request("HEAD", path, headers={"Accept": _MANIFEST_TYPES})
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()
