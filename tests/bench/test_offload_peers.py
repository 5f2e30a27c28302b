"""Other engines under a bound of memory: asked what is left, measured, and a reason where they cannot be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench import bounded, offload_peers
from foretoken.bench.offload_peers import Asked, line, measure
from foretoken.bench.side_by_side.peers import PROGRAMS
from foretoken.bench.side_by_side.process import Start
from foretoken.errors import SettingError

BOUND = 1 << 30
# says of itself what it is run within; a token takes 0.01 s, by a clock of its own
FAKE = f"""
import os, sys
sys.path.insert(0, {str(PROGRAMS)!r})
import answering
from answering import Peer, own_output

out = own_output()
peer = Peer()
now = 0.0
answering.perf_counter = lambda: now

def plain(tokens, count):
    global now
    now += 0.01 * count
    return [int(os.environ.get("BOUNDED", "0"))] * count

peer.offer("plain", "as it is", plain)
peer.serve(out)
"""
# bounds nothing, but says so to who asks
WITHIN = """#!/bin/sh
case "$*" in
    *foretoken.bench.bounded*) echo {left} ;;
    *) BOUNDED=1 exec "$@" ;;
esac
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake engine in a folder of programs."""
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setattr(offload_peers, "PROGRAMS", tmp_path)
    monkeypatch.setattr(offload_peers, "PEERS", {"fake": ("transformers", "fake.py")})
    return tmp_path / "fake.py"


def asked(folder: Path, left: int | None, bound: int = BOUND) -> Asked:
    """left: what the command says that it leaves; None: there is no command."""
    within: Sequence[str] = ()
    if left is not None:
        script = folder / "within"
        script.write_text(WITHIN.format(left=left), encoding="utf-8")
        script.chmod(0o755)
        within = (str(script),)
    start = Start(folder, folder / "work", 1, None, 60.0)
    return Asked("fake", [(1, 2), (3,)], 5, within, bound, start)


def test_an_engine_is_measured_within_the_command(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    real = offload_peers.PeerProcess.ask

    def ask(self: Any, *given: Any) -> Any:
        heard.append(real(self, *given))
        return heard[-1]

    monkeypatch.setattr(offload_peers.PeerProcess, "ask", ask)
    row = measure(asked(tmp_path, BOUND))
    assert [tokens for tokens, _ in heard] == [[1] * count for count in (1, 5, 1, 5)], "all of it ran within"
    assert row["peer"] == "fake"
    assert row["bytes_left"] == BOUND
    assert row["tokens_per_second"] == pytest.approx(100), "four tokens in 0.04 s, the first left out"
    assert 1e6 < row["peak_memory"] < 1e9
    assert [each["prompt"] for each in row["prompts"]] == [0, 1]
    assert "tokens/s" in line(row)


@pytest.mark.parametrize(
    ("left", "bound", "why"),
    [
        (2 * BOUND, BOUND, "leaves a program 2,147,483,648 bytes of memory, and the bound is 1,073,741,824"),
        (None, 1 << 20, "give a command that bounds it"),
    ],
)
def test_an_engine_that_is_not_bounded_is_not_measured(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int | None, bound: int, why: str
) -> None:
    monkeypatch.setattr(offload_peers, "PeerProcess", lambda *_: pytest.fail("it must not run"))
    row = measure(asked(tmp_path, left, bound))
    assert why in row["error"]
    assert "not measured: " in line(row)


def test_an_engine_that_is_not_there_is_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload_peers, "default_place", lambda: tmp_path / "nothing")
    monkeypatch.setattr(offload_peers, "PEERS", {"fake": ("llamacpp", "fake.py")})
    assert "peers install llamacpp" in measure(asked(tmp_path, BOUND))["error"]


def test_a_command_that_does_not_run_is_refused() -> None:
    with pytest.raises(SettingError, match=r"within is './nowhere', which does not run a command: .*No such file"):
        bounded.expect_bounded(["./nowhere"], BOUND)


def test_memory_is_locked_until_so_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_locked() -> int:
        return int(bounded._told("self", "status")["VmLck"].split()[0]) * 1024

    monkeypatch.setattr(bounded, "meminfo", lambda: {"MemAvailable": 5 << 20})
    before = is_locked()
    memory = bounded.locked(3 << 20)
    assert is_locked() == before + (2 << 20)
    del memory
    with pytest.raises(SettingError, match=r"5,242,880 bytes of memory are left, and 9,437,184 were to be"):
        bounded.locked(9 << 20)


def test_the_bytes_that_are_left_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bounded"])
    bounded.main()
    assert 1e6 < int(capsys.readouterr().out) < 1e15
    monkeypatch.setattr(sys, "argv", ["bounded", "--leave", "much", "true"])
    with pytest.raises(SystemExit, match=r"leave is 'much', expected an amount such as 1GiB"):
        bounded.main()
