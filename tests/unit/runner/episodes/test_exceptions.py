"""Telling broken services from the user's own faults, by the exception that came out of the user's code."""

import socket
import urllib.error
from email.message import Message

import aiohttp
import httpx
import pytest

from tuning_runner.episodes import EnvironmentFailure
from tuning_runner.episodes.exceptions import ENVIRONMENT, OWN, SERVICE, category, describe

REQUEST = httpx.Request("POST", "http://tool")


def raised_from(error: Exception, cause: Exception) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


def http_status(status: int) -> Exception:
    return httpx.HTTPStatusError("answered", request=REQUEST, response=httpx.Response(status, request=REQUEST))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EnvironmentFailure("gone"), ENVIRONMENT),
        (raised_from(RuntimeError("x"), EnvironmentFailure("gone")), ENVIRONMENT),
        (ConnectionResetError(), SERVICE),
        (TimeoutError(), SERVICE),
        (socket.gaierror(-2, "unknown name"), SERVICE),
        (httpx.ConnectError("refused"), SERVICE),
        (httpx.ReadTimeout("slow"), SERVICE),
        (http_status(429), SERVICE),
        (http_status(503), SERVICE),
        (http_status(404), OWN),
        (aiohttp.ServerDisconnectedError(), SERVICE),
        (urllib.error.URLError(ConnectionRefusedError(111, "refused")), SERVICE),
        (urllib.error.URLError("unknown url type: htp"), OWN),
        (urllib.error.HTTPError("http://tool", 502, "bad gateway", Message(), None), SERVICE),
        (urllib.error.HTTPError("http://tool", 400, "bad request", Message(), None), OWN),
        (ExceptionGroup("both", [ValueError(), ConnectionError()]), SERVICE),
        (raised_from(ValueError("no answer"), httpx.ConnectError("refused")), SERVICE),
        (ValueError("bad"), OWN),
        (FileNotFoundError("no file"), OWN),
        (KeyError("x"), OWN),
        (SystemExit(500), OWN),
    ],
)
def test_an_exception_says_whose_fault_it_is(error: BaseException, expected: str) -> None:
    assert category(error) == expected


def test_openais_errors_are_known_by_their_names() -> None:
    openai = pytest.importorskip("openai")
    assert category(openai.APIConnectionError(request=REQUEST)) == SERVICE
    assert category(openai.APITimeoutError(request=REQUEST)) == SERVICE
    for status, expected in ((500, SERVICE), (429, SERVICE), (400, OWN)):
        response = httpx.Response(status, request=REQUEST)
        assert category(openai.APIStatusError("x", response=response, body=None)) == expected


def test_a_failure_that_was_handled_before_another_was_raised_is_not_its_cause() -> None:
    def handles() -> None:
        try:
            raise ConnectionError
        except ConnectionError:
            raise ValueError("own")  # noqa: B904 - what users write

    with pytest.raises(ValueError, match="own") as raised:
        handles()
    assert category(raised.value) == OWN


def test_a_description_starts_with_the_exception_and_is_bounded() -> None:
    described = describe(ValueError("x" * 10_000))
    assert described["text"].startswith("ValueError: xxx")
    assert len(described["text"]) <= 4000


def test_an_exception_that_cannot_be_printed_is_described_all_the_same() -> None:
    class Silent(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    assert "Silent" in describe(Silent())["text"]
