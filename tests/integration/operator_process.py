"""The operator as a process of its own, with a user and rights of its own, against a real API server.

Used by `test_operator_*`. Its rights are exactly those in `resources`, so a request that lacks one fails the test; its
requests are counted in the server's audit log.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster.api import Api
from tests.cluster.control_plane import ControlPlane
from tests.cluster.paths import CHECKOUT
from tuning_operator.cluster.resources import OWN_RIGHTS, RIGHTS

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles/tuning-operator-test"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
WRITES = ("create", "update", "patch", "delete", "deletecollection")

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found | None], seconds: float = 20.0) -> Found:
    """Look until something is found; fails with what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} within {seconds} s")
        time.sleep(0.02)


class OperatorProcess:
    """One operator; `requests` are those of its user since it was made."""

    def __init__(self, plane: ControlPlane, user: str, **environment: str) -> None:
        """Grant the rights and prepare a kubeconfig; nothing starts."""
        self.plane = plane
        self.user = user
        self.log_path = plane.state / f"{user}.log"
        self._kubeconfig = plane.client_for(user)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        grant(plane.api, user)

    def start(self) -> "OperatorProcess":
        """Start it and wait until it is healthy, which means that its local copies are complete."""
        self._port = _free_port()
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CHECKOUT / "operator"),
            "KUBECONFIG": str(self._kubeconfig),
            "OPERATOR_IMAGE": "agent-tuning/operator:test",
            "RUNNER_IMAGE": "agent-tuning/runner-trl:test",
            "HTTP_PORT": str(self._port),
            "LOG_LEVEL": "debug",
        }
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error::DeprecationWarning:tuning_operator", "-m", "tuning_operator"],
                env=environment | self._environment,
                stdout=log,
                stderr=log,
                cwd=self.plane.state,
            )
        try:
            wait_for("healthy operator", self.is_healthy, 30)
        except AssertionError as error:
            log = self.log[-4000:]
            self.kill()
            raise AssertionError(f"{error}:\n{log}") from None
        return self

    def stop(self) -> int:
        """Ask it to end; returns its exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        code = self._process.wait(20)
        self._process = None
        return code

    def kill(self) -> None:
        """End it without a word."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)
        self._process = None

    def wait(self, seconds: float) -> int | None:
        """Wait until it ends by itself; returns its exit code, None when it did not end."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._process = None
        return code

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it has logged."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def is_healthy(self) -> bool:
        """Whether /healthz says ok."""
        assert self._process is not None
        assert self._process.poll() is None, "the operator ended"
        return self.get("healthz") == "ok"

    def get(self, path: str) -> str:
        """Read from its own HTTP server; empty when it does not answer with 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError):
            return ""

    def resident_mib(self) -> float:
        """Resident memory of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def requests(self, namespace: str) -> Counter[tuple[str, str]]:
        """Its requests about one namespace, by verb and resource (`tuningruns/status`)."""
        found: Counter[tuple[str, str]] = Counter()
        for event in self.plane.audit_events(self.user):
            about = event.get("objectRef") or {}
            if event["stage"] == "ResponseComplete" and about.get("namespace") == namespace:
                found[event["verb"], "/".join(filter(None, (about["resource"], about.get("subresource"))))] += 1
        return found

    def refused(self, namespace: str) -> list[str]:
        """Its requests about one namespace that the server refused, with verb, resource and code."""
        return [
            f"{event['verb']} {event['objectRef']['resource']}: {event['responseStatus']['code']}"
            for event in self.plane.audit_events(self.user)
            if (event.get("objectRef") or {}).get("namespace") == namespace
            and event["stage"] == "ResponseComplete"
            and event["responseStatus"]["code"] >= 400
        ]

    def writes(self, namespace: str) -> Counter[tuple[str, str]]:
        """Its writes in one namespace without Events, which are counted apart."""
        found = self.requests(namespace)
        return Counter({key: count for key, count in found.items() if key[0] in WRITES and key[1] != "events"})

    def reads(self, namespace: str) -> Counter[tuple[str, str]]:
        """Its reads of objects in one namespace."""
        return Counter({key: count for key, count in self.requests(namespace).items() if key[0] not in WRITES})


@contextmanager
def shared_operator(plane: ControlPlane, user: str, **environment: str) -> Iterator[OperatorProcess]:
    """An operator that runs in the block, and must end well after it, with no mistake of its own in its log."""
    process = OperatorProcess(plane, user, **environment).start()
    yield process
    code = process.stop()
    assert code == 0, f"the operator ended with {code}:\n{process.log[-3000:]}"
    assert "unexpected" not in process.log, process.log[-5000:]


def grant(api: Api, user: str) -> None:
    """Give a user the operator's rights, no more."""
    rights = (*RIGHTS, *OWN_RIGHTS)
    rules = [{"apiGroups": [group], "resources": [name], "verbs": list(verbs)} for group, name, verbs in rights]
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    api.apply(
        ROLES,
        json.dumps(kind | {"kind": "ClusterRole", "metadata": {"name": ROLES.rpartition("/")[2]}, "rules": rules}),
    )
    binding: Mapping[str, Any] = kind | {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"test-{user}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLES.rpartition("/")[2]},
        "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    api.apply(f"{BINDINGS}/test-{user}", json.dumps(binding))


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
