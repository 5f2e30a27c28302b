"""The slow network is as slow as its profile says, and changes no byte."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from foretoken.api.remote import connect
from foretoken.remote.host import Host
from foretoken.remote.network import PROFILES, Profile
from foretoken.remote.relay import Relay
from tests.remote.served import PROMPT, host, truth

__all__ = ["host"]


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    near, _ = server.accept()
                    with near:
                        while data := near.recv(1 << 16):
                            near.sendall(data)
            except OSError:
                pass

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def sent(port: int, data: bytes) -> tuple[bytes, float]:
    with socket.create_connection(("127.0.0.1", port)) as near:
        near.sendall(b"x")
        assert near.recv(1) == b"x", "the connection is there"
        began, back = time.monotonic(), b""
        threading.Thread(target=near.sendall, args=(data,), daemon=True).start()
        while len(back) < len(data):
            back += near.recv(1 << 16)
        return back, time.monotonic() - began


def test_no_byte_changes_and_delays_and_rate_are_kept(echo: int) -> None:
    data = random.Random(0).randbytes(100_000)
    relay = Relay("127.0.0.1", echo, Profile(0.01, 0.005, 0.01, 1e6, 0.01), seed=3)
    back, seconds = sent(relay.port, data)
    assert back == data
    assert relay.bytes >= 2 * len(data)
    # the rate of each direction, which both run at once, and the delays of both
    assert seconds >= 0.1 + 0.02
    relay.close()


def test_a_round_trip_takes_as_long_as_the_profile_says(echo: int) -> None:
    relay = Relay("127.0.0.1", echo, PROFILES["base"])
    times = [sent(relay.port, b"a")[1] for _ in range(10)]
    assert min(times) >= 0.009
    assert min(times) < 0.1
    relay.close()


def test_a_text_over_a_mobile_network_is_the_model_s(host: Host) -> None:
    port = int(host.url.rpartition(":")[2])
    relay = Relay("127.0.0.1", port, PROFILES["4g"])
    model = connect(f"ws://127.0.0.1:{relay.port}", draft="lookup")
    stream = model.stream(PROMPT, max_new_tokens=24, ignore_eos=True)
    for _ in range(4):
        next(stream)
    relay.cut()
    for _ in stream:
        pass
    assert stream.completion.tokens == truth(max_new_tokens=24, ignore_eos=True).tokens
    relay.close()
