"""A peer's program while it runs: asked, timed, stopped, ended; and what it is given."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from foretoken.bench.side_by_side import measuring
from foretoken.bench.side_by_side.environments import (
    Environment,
)
from foretoken.bench.side_by_side.peers import Peer
from foretoken.bench.side_by_side.process import PeerError, PeerProcess, Start, variables
from tests.bench.fake_peers import BAD, GOOD, READY, peer_of


def test_seconds_are_those_that_pass(tmp_path: Path) -> None:
    def slow(tokens: tuple[int, ...], **_: object) -> SimpleNamespace:
        time.sleep(0.05)
        return SimpleNamespace(tokens=tokens)

    source = GOOD.replace('print("more noise")', "import time\n    time.sleep(0.05)")
    (tmp_path / "known.json").write_text(json.dumps([[[1], [2, 3]]]), encoding="utf-8")
    with PeerProcess(peer_of(tmp_path, source), Start(tmp_path, tmp_path, 1, None, 60.0)) as peer:
        for ask in (measuring._ours(cast(Any, SimpleNamespace(generate=slow))), partial(peer.ask, "plain")):
            began = time.perf_counter()
            _, seconds = ask((1,), 2)
            assert 0.05 <= seconds <= time.perf_counter() - began


@pytest.mark.parametrize("name", list(BAD))
def test_a_peer_that_misbehaves_is_reported_and_ended(name: str, tmp_path: Path) -> None:
    source, why = BAD[name]
    patience = 1.0 if "1 seconds" in why else 60.0  # who says something may be slow to start
    start = Start(tmp_path, tmp_path, 1, None, patience)
    began = time.perf_counter()
    with pytest.raises(PeerError, match=why) as failed, PeerProcess(peer_of(tmp_path, source), start) as peer:
        peer.ask("plain", (1, 2), 2)
    assert failed.value.is_over
    assert time.perf_counter() - began < 15


def test_a_python_that_is_not_there_is_reported(tmp_path: Path) -> None:
    fake = peer_of(tmp_path, "")
    missing = Environment(fake.peer, tmp_path / "no-python", ())
    with pytest.raises(PeerError, match="no-python does not run"):
        PeerProcess(missing, Start(tmp_path, tmp_path, 1, None, 1.0))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc")
def test_between_its_turns_a_peer_and_its_children_stand_still(tmp_path: Path) -> None:
    source = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        + READY.replace('"settings": ""', '"settings": str(child.pid)')
        + "for line in sys.stdin: print(json.dumps({'tokens': [5], 'seconds': 0.5}), flush=True)\n"
    )
    with PeerProcess(peer_of(tmp_path, source), Start(tmp_path, tmp_path, 1, None, 30.0)) as peer:
        pids = [peer._process.pid, int(peer.about["modes"]["plain"]["settings"])]
        for _ in range(2):
            _wait_for(pids, {"T"})
            assert peer.ask("plain", (1,), 1) == ([5], 0.5)
    _wait_for(pids, {"", "Z"})


def _wait_for(pids: Sequence[int], states: set[str]) -> None:
    deadline = time.monotonic() + 60
    while not {_state(pid) for pid in pids} <= states:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _state(pid: int) -> str:
    """What /proc calls the state of a process: T is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def test_a_peer_gets_our_threads_its_libraries_and_no_python_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("FORETOKEN_ISA", "generic")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "first.so").touch()
    peer = Peer("x", (), tmp_path / "x.py", preload=(("lib/first.so",), ("lib/absent.so", "/absent/*.so")))
    found = variables(Environment(peer, tmp_path / "bin" / "python", ()), 2)
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["LD_PRELOAD"] == str(tmp_path / "lib" / "first.so")
    assert not {"PYTHONPATH", "FORETOKEN_ISA"} & set(found)


def test_what_is_made_of_a_checkpoint_is_made_once_until_it_changes(tmp_path: Path) -> None:
    from foretoken.bench.peers.answering import made

    (tmp_path / "checkpoint").mkdir()
    config = tmp_path / "checkpoint" / "config.json"
    config.write_text("{}", encoding="utf-8")
    times: list[Path] = []

    def make(place: Path) -> None:
        times.append(place)
        place.write_text(str(len(times)), encoding="utf-8")

    for _ in range(2):
        assert made(tmp_path / "out", config.parent, make).read_text(encoding="utf-8") == "1"
    config.write_text("{ }", encoding="utf-8")
    assert made(tmp_path / "out", config.parent, make).read_text(encoding="utf-8") == "2"
    assert made(tmp_path / "out", config.parent, make, "otherwise").read_text(encoding="utf-8") == "3"


def test_who_interrupts_does_not_wait_for_a_good_bye(tmp_path: Path) -> None:
    began = time.perf_counter()
    with (
        pytest.raises(KeyboardInterrupt),
        PeerProcess(
            peer_of(tmp_path, f"{READY}\nimport time\ntime.sleep(60)\n"), Start(tmp_path, tmp_path, 1, None, 60.0)
        ),
    ):
        raise KeyboardInterrupt
    assert time.perf_counter() - began < 10
