"""Where a server listens: the place is taken before the model is loaded."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

pytest.importorskip("fastapi")

from foretoken.common.place import listen
from foretoken.errors import SettingError
from foretoken.serve.server import reserved


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_place_is_taken_and_nobody_is_heard_there_yet(host: str) -> None:
    with reserved(host, 0) as place:
        port = place.getsockname()[1]
        with pytest.raises(SettingError, match=f"nothing can listen at {host}:{port} \\(address already in use\\)"):
            reserved(host, port)
        with socket.socket() as caller, pytest.raises(ConnectionRefusedError):
            caller.connect(("127.0.0.1", port))
    reserved(host, port).close()


def test_connections_of_an_ended_server_do_not_keep_the_port_from_the_next_one() -> None:
    """Who ends a connection first keeps its address for a minute. A server does so with clients that keep theirs."""
    with reserved("127.0.0.1", 0) as place:
        listen(place)
        host, port = place.getsockname()
        with socket.create_connection((host, port)):
            ours, _ = place.accept()
            ours.close()
            place.close()
            reserved(host, port).close()


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("nowhere.invalid", 0), ("a" * 64 + ".invalid", 0)])
def test_a_place_that_is_none_of_this_machine_is_refused(host: str, port: int) -> None:
    with pytest.raises(SettingError, match="give another --port or --host"):
        reserved(host, port)


def test_a_port_in_use_is_found_before_the_model_is_looked_for() -> None:
    with reserved("127.0.0.1", 0) as place:
        port = str(place.getsockname()[1])
        command = [sys.executable, "-m", "foretoken", "serve", "/no/such/model", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"foretoken: nothing can listen at 127.0.0.1:{port} (address already in use)")
