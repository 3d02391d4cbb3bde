"""The proxy in front of a real API server: what it passes on, what it lets go wrong, what it counts and holds."""

import http.client
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.faults.gate import Moment
from tests.faults.proxy import FaultProxy, Upstream
from tests.faults.requests import Exchange, Fault, Request, counted, parse
from tests.faults.rules import Chances

pytestmark = pytest.mark.control_plane

MAPS = "/api/v1/namespaces/default/configmaps"

Connect = Callable[..., "Client"]


class Client:
    """One kept connection to the proxy, as the operator has them."""

    def __init__(self, url: str, seconds: float = 20) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=seconds)
        self._answer: http.client.HTTPResponse | None = None

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._connection.close()

    def send(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
        self._answer = self._connection.getresponse()
        return self._answer

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        answer = self.send(method, path, body)
        return answer.status, json.loads(answer.read())

    def make(self, name: str) -> int:
        return self.ask("POST", MAPS, {"metadata": {"name": name}})[0]


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    identity = control_plane.authority.client("fault-proxy", "fault-proxy", ["system:masters"])
    upstream = Upstream(control_plane.server, control_plane.authority.certificate, identity)
    with FaultProxy(upstream) as found:
        yield found


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Connect]:
    made: list[Client] = []

    def connect(**options: Any) -> Client:
        made.append(Client(proxy.url, **options))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def name(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[str]:
    """Of a ConfigMap that is gone after the test."""
    found = request.node.name.replace("_", "-").replace("[", "-").replace("]", "").replace(" ", "-")[:60].lower()
    yield found
    if exists(control_plane, found):
        control_plane.api.request("DELETE", f"{MAPS}/{found}")


def exists(plane: ControlPlane, name: str) -> bool:
    return plane.api.found(f"{MAPS}/{name}") is not None


def test_without_a_rule_all_goes_through_and_is_counted(proxy: FaultProxy, client: Client, name: str) -> None:
    assert client.make(name) == 201
    assert client.make(name) == 409
    assert client.ask("GET", f"{MAPS}/{name}")[1]["metadata"]["name"] == name
    found = client.ask("GET", f"{MAPS}?fieldSelector=metadata.name%3D{name}&limit=1")[1]
    assert [item["metadata"]["name"] for item in found["items"]] == [name]
    assert client.ask("DELETE", f"{MAPS}/{name}")[0] == 200
    kinds = ("create", 201), ("create", 409), ("get", 200), ("list", 200), ("delete", 200)
    assert counted(proxy.exchanges) == Counter((verb, "configmaps", status) for verb, status in kinds)


@pytest.mark.parametrize(("fault", "code"), [(Fault.SERVER_ERROR, 500), (Fault.TOO_MANY, 429)])
def test_an_error_is_answered_without_the_server(
    proxy: FaultProxy, client: Client, control_plane: ControlPlane, name: str, fault: Fault, code: int
) -> None:
    proxy.rule = Chances({fault: 1.0})
    answer = client.send("POST", MAPS, {"metadata": {"name": name}})
    assert (answer.status, answer.headers["Retry-After"]) == (code, "1" if code == 429 else None)
    assert json.loads(answer.read())["code"] == code
    assert proxy.exchanges == [Exchange(Request("create", "configmaps", "default", name), 0, fault)]
    assert not exists(control_plane, name)


def test_a_list_can_be_gone_and_nothing_else_can(proxy: FaultProxy, client: Client, name: str) -> None:
    proxy.rule = Chances({Fault.LIST_GONE: 1.0})
    assert client.make(name) == 201
    assert client.ask("GET", f"{MAPS}/{name}")[0] == 200
    status, body = client.ask("GET", MAPS)
    assert (status, body["reason"]) == (410, "Expired")


@pytest.mark.parametrize(("fault", "happened"), [(Fault.RESET_BEFORE, False), (Fault.RESET_AFTER, True)])
def test_a_reset_breaks_the_connection_before_or_after_the_write(
    proxy: FaultProxy, client: Client, control_plane: ControlPlane, name: str, fault: Fault, happened: bool
) -> None:
    proxy.rule = Chances({fault: 1.0})
    with pytest.raises(ConnectionResetError):
        client.make(name)
    assert exists(control_plane, name) is happened
    assert [(item.status, item.fault) for item in proxy.exchanges] == [(201 if happened else 0, fault)]


def watch(client: Client, name: str) -> http.client.HTTPResponse:
    """From now on: a server that has just started refuses a watch without a version for a while."""
    now = client.ask("GET", f"{MAPS}?limit=1")[1]["metadata"]["resourceVersion"]
    query = f"watch=true&fieldSelector=metadata.name%3D{name}&resourceVersion={now}"
    answer = client.send("GET", f"{MAPS}?{query}")
    assert answer.status == 200
    return answer


def test_a_watch_is_streamed_event_by_event(
    proxy: FaultProxy, client: Client, control_plane: ControlPlane, name: str
) -> None:
    answer = watch(client, name)
    for value in ("one", "two"):
        control_plane.api.apply(
            f"{MAPS}/{name}",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}},
        )
        assert json.loads(answer.readline())["object"]["data"] == {"a": value}
    assert counted(proxy.exchanges) == {("list", "configmaps", 200): 1, ("watch", "configmaps", 200): 1}


def test_a_dropped_watch_loses_the_event_and_the_connection(proxy: FaultProxy, connect: Connect, name: str) -> None:
    answer = watch(connect(), name)
    proxy.rule = Chances({Fault.WATCH_DROPPED: 1.0})
    assert connect().make(name) == 201
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        answer.read()
    assert Counter(item.fault for item in proxy.exchanges if item.request.verb == "watch") == {
        None: 1,
        Fault.WATCH_DROPPED: 1,
    }


def test_a_watch_that_is_gone_says_so_and_ends(proxy: FaultProxy, connect: Connect, name: str) -> None:
    answer = watch(connect(), name)
    proxy.rule = Chances({Fault.WATCH_GONE: 1.0})
    assert connect().make(name) == 201
    event = json.loads(answer.read())
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


@pytest.mark.parametrize("moment", Moment)
def test_a_held_write_has_or_has_not_happened_and_is_never_answered(
    proxy: FaultProxy, connect: Connect, control_plane: ControlPlane, name: str, moment: Moment
) -> None:
    proxy.gate.hold(("default", name), {1: moment})
    client, impatient = connect(), connect(seconds=1)
    assert client.make(name) == 201
    with pytest.raises(TimeoutError):
        impatient.ask("DELETE", f"{MAPS}/{name}")
    assert proxy.gate.held == {("default", name): Request("delete", "configmaps", "default", name)}
    assert exists(control_plane, name) is (moment is Moment.BEFORE)
    # Its client dies, another one comes: the write that is held must not happen then.
    impatient.close()
    proxy.gate.forget_held()
    time.sleep(0.2)
    assert exists(control_plane, name) is (moment is Moment.BEFORE)
    assert client.ask("DELETE", f"{MAPS}/{name}")[0] == (200 if moment is Moment.BEFORE else 404)
    assert proxy.gate.held == {}


def test_the_same_seed_draws_the_same_faults() -> None:
    request = Request("create", "jobs", "ml", "math-agent-3f9a1c-1")

    def drawn(seed: int) -> list[Fault | None]:
        chances = Chances({Fault.SERVER_ERROR: 0.1, Fault.RESET_AFTER: 0.1}, seed)
        return [chances.of_request(request) for _ in range(500)]

    assert drawn(1) == drawn(1) != drawn(2)
    counts = Counter(drawn(1))
    assert 25 < counts[Fault.SERVER_ERROR] < 80
    assert 25 < counts[Fault.RESET_AFTER] < 80
    assert set(counts) == {None, Fault.SERVER_ERROR, Fault.RESET_AFTER}


@pytest.mark.parametrize(
    ("method", "target", "expected", "run"),
    [
        ("GET", "/apis/ray.io/v1/rayclusters?limit=50", Request("list", "rayclusters"), ""),
        ("GET", "/api/v1/pods?watch=true&resourceVersion=1", Request("watch", "pods"), ""),
        (
            "PATCH",
            "/apis/agenttuning.io/v1alpha1/namespaces/ml/tuningruns/math-agent/status",
            Request("patch", "tuningruns/status", "ml", "math-agent"),
            "math-agent",
        ),
        (
            "DELETE",
            "/apis/ray.io/v1/namespaces/ml/rayclusters/math-agent-3f9a1c-2",
            Request("delete", "rayclusters", "ml", "math-agent-3f9a1c-2"),
            "math-agent",
        ),
        (
            "POST",
            "/api/v1/namespaces/ml/configmaps",
            Request("create", "configmaps", "ml", "math-agent-3f9a1c"),
            "math-agent",
        ),
        ("GET", "/openapi/v3/apis/ray.io/v1", Request("get", "/openapi/v3/apis/ray.io/v1"), None),
    ],
)
def test_a_path_says_what_a_request_is_about(method: str, target: str, expected: Request, run: str | None) -> None:
    found = parse(method, target, b'{"metadata": {"name": "math-agent-3f9a1c"}}')
    assert found == expected
    assert run is None or found.run == run
