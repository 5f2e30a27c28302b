"""`foretoken host`, and `generate` and `chat` with --remote."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foretoken.remote.host import Host
from tests.cli.conftest import Cli
from tests.remote.served import PROMPT, host, serving, truth

__all__ = ["host"]


def test_a_text_is_the_one_that_the_host_s_model_writes(cli: Cli, host: Host) -> None:
    done = cli("generate", PROMPT, "--remote", host.url, "--max-new-tokens", "20")
    assert done.code == 0, done.err
    assert done.out.rstrip("\n") == truth(max_new_tokens=20).text.rstrip("\n")
    assert "stdlib-1m on ws://" in done.err
    assert "drafts here: lookup" in done.err
    assert " on the host, " in done.err


def test_json_statistics_and_conversations_work_over_a_network(cli: Cli, host: Host) -> None:
    done = cli("generate", PROMPT, "--remote", host.url, "-n", "20", "--json", "--stats", "--temperature", "0.8")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["draft"], len(told["tokens"]), told["promise"]) == ("lookup", 20, "exact")
    done = cli("chat", "--remote", host.url, "--plain", "--max-new-tokens", "8", stdin=b"def f(x):\nclass A:\n")
    assert done.code == 0, done.err
    assert done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--remote", "http://x"), "remote is 'http://x', expected ws://HOST:PORT or wss://HOST:PORT"),
        (("--remote", "ws://127.0.0.1:9"), "the host ws://127.0.0.1:9 cannot be reached"),
        (("--remote", "ws://127.0.0.1:9", "-m", "stdlib-1m"), "the host has the model: leave --model out"),
        (("--remote", "ws://127.0.0.1:9", "--audit"), "--audit needs the model's logits, which do not travel"),
        (("--remote", "ws://127.0.0.1:9", "--logprobs", "1"), "--logprobs needs the model's logits"),
        (("--remote", "ws://127.0.0.1:9", "--draft", "mxfp4"), "needs the model's own weights"),
        (("--token-file", "x"), "--token-file, --ca and --offline are for a model on a host; give"),
        (("--offline", "keep"), "--token-file, --ca and --offline are for a model on a host; give --remote"),
        (("--remote", "ws://127.0.0.1:9", "--offline", "keep"), "is no model that could go on by itself"),
        (("--remote", "ws://127.0.0.1:9", "--token-file", "nowhere"), "the token file nowhere cannot be read"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli("generate", "x", *arguments)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_port_in_use_is_found_before_the_model_is_looked_for(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("host", "/no/such/model", "--listen", f"127.0.0.1:{port}")
    assert done.code == 2
    assert f"the host cannot listen on 127.0.0.1:{port}" in done.err
    done = cli("host", "/no/such/model", "--tls", "nowhere", "nowhere")
    assert "or a PEM certificate and its key" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "0.0.0.0:0"), "where others can come in; give --token-file, or listen on 127.0.0.1"),
        (("--listen", "nowhere"), "listen is 'nowhere', expected HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), "expected HOST:PORT"),
        (("--listen", "0.0.0.0:0", "--token-file", "TOKEN"), "would listen on 0.0.0.0 without encryption"),
        (("--tls", "nowhere", "nowhere"), "name another port, or a PEM certificate and its key"),
    ],
)
def test_a_host_is_not_open_by_mistake(cli: Cli, arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret", encoding="utf-8")
    done = cli("host", "stdlib-1m", *(str(token) if each == "TOKEN" else each for each in arguments))
    assert done.code == 2
    assert message in done.err


@pytest.fixture
def running() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command `foretoken host`, and where it listens."""
    command = [sys.executable, "-m", "foretoken", "host", "stdlib-1m", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "listens at" in line)
            found = re.search(r"listens at (\S+);", line)
            assert found is not None
            yield found[1], process
        finally:
            if process.poll() is None:
                process.kill()


def test_the_host_is_a_command_that_ctrl_c_ends(cli: Cli, running: tuple[str, subprocess.Popen[str]]) -> None:
    url, process = running
    done = cli("generate", PROMPT, "--remote", url, "--max-new-tokens", "8")
    assert done.code == 0, done.err
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait(20) == 0
    assert re.search(r"ended after \d+ passes, which checked \d+ draft tokens", said)


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a host is that goes away in the sixth round."""
    from foretoken.remote.client import RemoteVerifier

    with serving() as host:
        asked, url = RemoteVerifier.submit, host.url
        rounds = 0

        def submit(self: RemoteVerifier, *args: object) -> int:
            nonlocal rounds
            rounds += 1
            if rounds == 6:
                object.__setattr__(self.link.address, "patience", 0.1)
                host.close()
            return asked(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(RemoteVerifier, "submit", submit)
        yield url


def test_a_host_that_is_gone_is_told_and_the_text_so_far_stands(cli: Cli, leaving: str) -> None:
    done = cli("generate", PROMPT, "--remote", leaving, "--draft", "none", "--max-new-tokens", "20", "--ignore-eos")
    assert done.code == 1
    assert "cut off: the host is gone, and the text is what it had checked" in done.err
    assert truth(max_new_tokens=20, ignore_eos=True).text.startswith(done.out.rstrip("\n"))
    assert done.out.strip()


def test_what_is_written_without_the_host_is_told_and_marked(cli: Cli, leaving: str) -> None:
    asked = ("--remote", leaving, "--draft", "stdlib-1m:tokens=1", "--offline", "keep", "-n", "20", "--ignore-eos")
    done = cli("generate", PROMPT, *asked, "--json", "--stream", "--pace", "fixed")
    assert done.code == 1
    *pieces, whole = map(json.loads, done.out.splitlines())
    assert whole["finish_reason"] == "disconnected"
    assert whole["promise"] == "none"
    assert sum(piece.get("unverified", False) for piece in pieces) == whole["unverified"] > 3
