"""kopf as the chassis: it starts the core, and ends with it."""

import json
from pathlib import Path

import pytest
from aiohttp import web

from tests.unit.cluster.server import FakeServer
from tuning_operator.cluster.credentials import Credentials
from tuning_operator.handlers import Chassis


def a_kubeconfig(path: Path, server: str) -> Path:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def without_a_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pod, whose numeric user is in no file."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr("getpass.getuser", nobody)


@pytest.mark.usefixtures("without_a_user_name")
@pytest.mark.parametrize("namespace", ["", "ml"])
async def test_the_core_gets_credentials_and_its_end_is_the_end(
    namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, seen = FakeServer(answers=[web.json_response({}) for _ in range(20)]), []

    async def core(credentials: Credentials) -> None:
        seen.append((credentials.server, credentials.headers()))
        raise ZeroDivisionError

    async with server.serve():
        monkeypatch.setenv("KUBECONFIG", str(a_kubeconfig(tmp_path / "config", server.url)))
        with pytest.raises(ZeroDivisionError):
            await Chassis(core).run(namespace)
    assert seen == [(server.url, {"Authorization": "Bearer t"})]
