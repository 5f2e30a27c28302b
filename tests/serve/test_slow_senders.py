"""A client that sends slowly, or nothing, keeps its connection for a while only; a slow answer is nobody's fault."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlparse

import pytest

from tests.serve.served import PROMPT, Served, serving

pytest.importorskip("uvicorn")

from foretoken.serve.patience import Patience

_SECONDS = 0.4  # that the server waits; a byte earns a hundredth of a second more
_BODY = json.dumps({"prompt": PROMPT, "max_tokens": 4, "temperature": 0}).encode()
_LENGTH = f"Content-Length: {len(_BODY)}"
_TO = "POST /v1/completions HTTP/1.1\r\nHost: localhost"
_HEAD = f"{_TO}\r\nContent-Type: application/json\r\n{_LENGTH}\r\n\r\n".encode()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(patience=Patience(_SECONDS, rate=100)) as its:
        yield its


@pytest.fixture
def connection(served: Served) -> Iterator[socket.socket]:
    place = urlparse(served.url)
    with socket.create_connection((str(place.hostname), place.port), timeout=20) as its:
        yield its
    assert served.complete(max_tokens=2)["choices"][0]["text"]  # others are served as ever


def _all_of(connection: socket.socket) -> bytes:
    """What the server sends until it hangs up."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:  # it hung up before it had read what was sent last
        pass
    return found


def _drip(connection: socket.socket, sent: bytes) -> float:
    """Send a byte each twentieth of a second, until the server hangs up. Returns the seconds that took."""
    began = time.perf_counter()
    for at in range(len(sent)):
        try:
            connection.sendall(sent[at : at + 1])
        except (BrokenPipeError, ConnectionResetError):
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the server took all of it")
    return time.perf_counter() - began


def test_a_connection_on_which_nothing_comes_is_closed(connection: socket.socket) -> None:
    began = time.perf_counter()
    assert _all_of(connection) == b""
    assert _SECONDS * 0.9 < time.perf_counter() - began < _SECONDS + 10


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(connection: socket.socket) -> None:
    assert len(_HEAD) * 0.05 > 4 * _SECONDS
    assert _drip(connection, _HEAD) > _SECONDS * 0.9


def test_the_head_of_a_second_request_is_not_waited_for_either(connection: socket.socket) -> None:
    connection.sendall(_HEAD + _BODY)
    answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200")
    assert _drip(connection, _HEAD) > _SECONDS * 0.9


def test_a_body_that_does_not_come_is_refused_in_a_sentence(connection: socket.socket) -> None:
    connection.sendall(_HEAD + _BODY[:-1])  # all but a byte; the rest has earned more time
    began = time.perf_counter()
    head, _, body = _all_of(connection).partition(b"\r\n\r\n")
    assert time.perf_counter() - began > _SECONDS + 0.009 * len(_BODY)
    assert head.startswith(b"HTTP/1.1 408")
    error = json.loads(body)["error"]
    assert error["type"] == "timeout_error"
    assert error["message"].startswith("the request's body did not come within 0.4 s")


def test_a_slow_body_that_goes_on_is_taken(connection: socket.socket) -> None:
    connection.sendall(_HEAD)
    began = time.perf_counter()
    for at in range(0, len(_BODY), 5):  # 0.03 s for 5 bytes, which earn 0.05 s
        connection.sendall(_BODY[at : at + 5])
        time.sleep(0.03)
    assert time.perf_counter() - began > 1.5 * _SECONDS
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_an_answer_may_take_longer_than_a_request(served: Served) -> None:
    began = time.perf_counter()
    texts = served.stream(max_tokens=1900, ignore_eos=True, draft="none", n=4, temperature=1.0)
    assert texts
    assert time.perf_counter() - began > 2 * _SECONDS, "the text was too short for this test"
