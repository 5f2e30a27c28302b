"""Peers side by side: fake programs that speak as peers do, well and badly, and what is said of them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench.records import read
from foretoken.bench.side_by_side import measuring, table
from foretoken.bench.side_by_side.environments import (
    Environment,
    environment,
)
from foretoken.bench.side_by_side.peers import PEERS, PROGRAMS, Peer
from foretoken.bench.side_by_side.process import PeerError, PeerProcess, Start, variables
from foretoken.bench.side_by_side.rows import OURS, PLAIN, Sample, Way, row
from foretoken.build import load
from foretoken.errors import DraftSpecError, InputError, SettingError
from foretoken.settings import LoadSettings
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]  # a fixture

PROMPTS = (tuple(range(40, 60)), tuple(range(300, 330)))
NEW = 6

# says what a file tells it to: our own tokens, so that a fake can be right without a model; and `print`s beside
GOOD = f"""
import sys
sys.path.insert(0, {str(PROGRAMS)!r})
import json
import time
from pathlib import Path
from answering import Peer, Started, made, own_output

out = own_output()
print("noise on standard output")
started = Started.from_command_line()
known = {{tuple(prompt): tokens for prompt, tokens in json.loads(Path(__file__).with_name("known.json").read_text())}}
peer = Peer({{"fake": "1.0"}})
made(started.work / "copy", started.checkpoint, lambda place: place.write_text("made"))

def plain(tokens, count):
    print("more noise")
    time.sleep(0.005 * count)  # or the prompt would seem to take all of the time
    return known[tuple(tokens)][:count]

def late(tokens, count):
    right = plain(tokens, count)
    return right[:3] + [right[3] + 1] + right[4:] if count > 3 and len(tokens) == 30 else right

def broken(tokens, count):
    raise ValueError("no such kernel")

def absent():
    raise SystemExit("not on this machine")

peer.offer("plain", "as it is", plain)
peer.offer("right", "drafts", plain, "plain")
peer.offer("late", "drafts badly", late, "plain")
peer.offer("broken", "", broken, "plain")
peer.offer("short", "", lambda tokens, count: [1], "plain")
peer.try_to_offer("absent", "", absent, "plain")
peer.serve(out)
"""
READY = 'import json, sys\nprint(json.dumps({"modes": {"plain": {"of": None, "settings": ""}}}), flush=True)\n'
BAD = {
    "dies": ("import sys\nprint('no memory', file=sys.stderr)\nsys.exit(3)", "ended with exit code 3: no memory"),
    "is killed": ("import os\nos.kill(os.getpid(), 9)", "was ended by SIGKILL"),
    "says garbage": ("print('hello')", "said 'hello', which is no JSON object"),
    "says too little": ("print('{}')", "expected its modes"),
    "is silent": ("import time\ntime.sleep(60)", "said nothing for 1 seconds"),
    "dies when asked": (READY + "sys.stdin.readline(); sys.exit(4)", "ended with exit code 4"),
    "hangs when asked": (READY + "import time\nsys.stdin.readline(); time.sleep(60)", "said nothing for 1 seconds"),
    "answers garbage": (READY + "sys.stdin.readline(); print(7, flush=True)", "said '7', which is no JSON object"),
    "answers too much": (
        READY + "for line in sys.stdin: print(json.dumps({'tokens': [1, 2, 3], 'seconds': 1.0}), flush=True)",
        "tokens and the seconds",
    ),
}


def peer_of(folder: Path, source: str, name: str = "fake") -> Environment:
    program = folder / f"{name}.py"
    program.write_text(source, encoding="utf-8")
    modes = ("plain", "right", "late", "broken", "short", "absent")
    return Environment(Peer(name, modes, program), Path(sys.executable), ())


@pytest.fixture(scope="module")
def ours() -> list[tuple[int, ...]]:
    model = load("stdlib-1m", draft="none")
    return [model.generate(tokens, max_new_tokens=8, ignore_eos=True).tokens for tokens in PROMPTS]


@pytest.fixture
def asking(tmp_path: Path, ours: list[tuple[int, ...]]) -> dict[str, Any]:
    """What a measurement is asked with, but for peers."""
    lines = [json.dumps({"id": f"p{number}", "prompt_tokens": tokens}) for number, tokens in enumerate(PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "known.json").write_text(json.dumps(list(zip(PROMPTS, ours, strict=True))), encoding="utf-8")
    return {
        "model": "stdlib-1m",
        "drafts": ["lookup"],
        "work": tmp_path,
        "prompts": str(tmp_path / "prompts.jsonl"),
        "max_new_tokens": NEW,
        "repeats": 2,
        "timeout": 60.0,
    }


def test_every_mode_has_a_row_and_what_fails_says_why(asking: dict[str, Any], tmp_path: Path) -> None:
    kept: list[dict[str, Any]] = []
    asked = measuring.Asked(peers=[peer_of(tmp_path, GOOD), peer_of(tmp_path, BAD["dies"][0], "bad")], **asking)
    record = measuring.measure(asked, keep=lambda so_far: kept.append(json.loads(json.dumps(so_far))))
    rows = {(row["engine"], row["mode"]): row for row in record["rows"]}
    assert list(rows) == [
        (OURS, PLAIN),
        (OURS, "lookup"),
        *(("fake", mode) for mode in ("plain", "right", "late", "broken", "short", "absent")),
        ("bad", "plain"),
    ]
    assert len(kept[0]["rows"]) == 8  # after the first peer
    assert rows["fake", "broken"]["why"] == "ValueError: no such kernel"
    assert rows["fake", "short"]["why"] == "1 tokens came; expected 8"
    assert rows["fake", "absent"]["why"] == "SystemExit: not on this machine"
    assert rows["bad", "plain"]["why"] == record["peers"]["bad"]["error"] == "ended with exit code 3: no memory"
    for key in ((OURS, "lookup"), ("fake", "right")):
        assert (rows[key]["identical_to_own_plain"], rows[key]["equal_to_own_plain"]) == (True, 2)
    for key in ((OURS, PLAIN), ("fake", PLAIN)):
        assert rows[key]["identical_to_own_plain"] is rows[key]["times_own_plain"] is None
    assert rows["fake", "plain"]["equal_to_ours"] == 2
    assert rows["fake", "plain"]["like_ours"] == NEW
    late = rows["fake", "late"]
    assert (late["identical_to_own_plain"], late["equal_to_own_plain"], late["equal_to_ours"]) == (False, 1, 1)
    assert late["like_ours"] == 4.5  # 6 and 3
    right = record["rows"][0]
    assert late["first_difference"]["prompt"] == "p1"
    assert late["first_difference"]["position"] == 3
    assert late["first_difference"]["token"] == late["first_difference"]["plain_token"] + 1
    assert right["times_our_plain"] == 1.0
    assert right["times_our_plain_interval"] == [1.0, 1.0]
    assert record["peers"]["fake"]["versions"] == {"fake": "1.0"}
    (tmp_path / "record.json").write_text(json.dumps(record), encoding="utf-8")
    assert read(tmp_path / "record.json") == json.loads(json.dumps(record))
    text = table(json.loads(json.dumps(record)))
    assert "bad plain did not run: ended with exit code 3: no memory" in text
    assert "fake late leaves its own plain decoding in 1 of 2 prompts, first in p1 at token 4." in text
    assert text.count("NO, 1 of 2") == 1
    for broken in ({"rows": [{}]}, {"rows": 3}, {"suite": None}, {"peers": {"x": []}}):
        with pytest.raises(InputError, match="the record of peers is not as `bench peers run` writes it"):
            table({**json.loads(json.dumps(record)), **broken})
    assert (tmp_path / "copy").read_text(encoding="utf-8") == "made"


def test_turns_alternate_and_only_plain_decoding_is_asked_for_one_token(
    asking: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int, int]] = []  # who, length of the prompt, new tokens
    ask = PeerProcess.ask

    def asked_peer(self: PeerProcess, mode: str, tokens: tuple[int, ...], count: int) -> tuple[list[int], float]:
        events.append((mode, len(tokens), count))
        return ask(self, mode, tokens, count)

    def asked_us(model: Any) -> measuring.Generate:
        def generate(tokens: tuple[int, ...], count: int) -> tuple[Sequence[int], float]:
            events.append((f"our {model.draft}", len(tokens), count))
            return model.generate(tokens, max_new_tokens=count, ignore_eos=True).tokens, 0.01 * count

        return generate

    monkeypatch.setattr(PeerProcess, "ask", asked_peer)
    monkeypatch.setattr(measuring, "_ours", asked_us)
    asked = measuring.Asked(peers=[peer_of(tmp_path, GOOD)], modes=["right"], **asking)
    record = measuring.measure(asked)
    warm_up, turns = events[:4], events[4:]
    assert [who for who, _, _ in warm_up] == ["our none", "our lookup", "plain", "right"]
    ours = [("our none", 1), ("our none", NEW), ("our lookup", NEW)]
    theirs = [("plain", 1), ("plain", NEW), ("right", NEW)]
    assert turns == [
        (who, length, count)
        for order in ([*ours, *theirs], [*theirs, *ours])  # in every second repeat the other way round
        for length in map(len, PROMPTS)
        for who, count in order
    ]
    rows = record["rows"]
    assert rows[0]["ms_per_token"] == 10.0  # the six tokens' 60 ms without the prompt's 10, by five tokens
    assert rows[0]["ms_per_token_with_prompt"] == 10.0
    assert rows[0]["prompt_ms"] == 10.0


@pytest.mark.parametrize("name", list(BAD))
def test_a_peer_that_misbehaves_is_reported_and_ended(name: str, asking: dict[str, Any], tmp_path: Path) -> None:
    source, why = BAD[name]
    start = Start(tmp_path, tmp_path, 1, None, 1.0)
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
    deadline = time.monotonic() + 10
    while not {_state(pid) for pid in pids} <= states:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _state(pid: int) -> str:
    """What /proc calls the state of a process: T is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def test_a_row_is_what_its_samples_say() -> None:
    def sample(engine: str, mode: str, prompt: str, repeat: int, seconds: float, last: int = 3) -> Sample:
        return Sample(engine, mode, "x", prompt, repeat, (1, 2, last), seconds, 0.5)

    samples = [
        *(sample(OURS, PLAIN, prompt, repeat, 2.5) for prompt in "ab" for repeat in (0, 1)),  # a second a token
        *(sample("x", PLAIN, "a", repeat, 4.5) for repeat in (0, 1)),
        *(sample("x", PLAIN, "b", repeat, 8.5) for repeat in (0, 1)),
        *(sample("x", "fast", "a", repeat, seconds) for repeat, seconds in enumerate((1.5, 2.5))),
        *(sample("x", "fast", "b", repeat, 1.5, last=9 + repeat) for repeat in (0, 1)),
    ]
    found = row(Way("x", "fast", "", PLAIN), samples)
    assert found.ms_per_token == pytest.approx(1e3 * (0.75 + 0.5) / 2)
    assert found.times_our_plain == pytest.approx((1.5 + 2.0) / 2)
    assert found.times_own_plain == pytest.approx((3.0 + 8.0) / 2)  # a: 4 and 2 times; b: 8
    assert found.times_own_plain_interval is not None
    assert found.times_own_plain_interval == pytest.approx((3.0, 8.0))
    assert (found.equal_to_own_plain, found.identical_to_own_plain, found.repeatable) == (1, False, False)
    assert found.first_difference == {"prompt": "b", "repeat": 0, "position": 2, "token": 9, "plain_token": 3}
    assert (found.our_best, found.our_best_times) == (PLAIN, 0.625)  # a: 0.5 and 1 times; b: 0.5
    assert found.like_ours == 2.5
    assert row(Way("x", PLAIN, ""), samples).times_our_plain == pytest.approx((0.5 + 0.25) / 2)
    disturbed = [replace(s, prompt_seconds=9.0) if s.repeat == 2 else s for s in (*samples, *_again(samples))]
    assert row(Way("x", "fast", "", PLAIN), disturbed).ms_per_token == found.ms_per_token
    assert found.disturbed == 0
    assert row(Way("x", "fast", "", PLAIN), [replace(s, prompt_seconds=2.0) for s in samples]).disturbed == 3


def _again(samples: Sequence[Sample]) -> list[Sample]:
    return [replace(s, repeat=2) for s in samples if s.repeat == 0] + [
        replace(s, repeat=3) for s in samples if s.repeat
    ]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"max_new_tokens": 1}, SettingError, "max_new_tokens is 1, expected 2 or more"),
        ({"repeats": 0}, SettingError, "repeats is 0, expected 1 or more"),
        ({"timeout": 0.0}, SettingError, "timeout is 0, expected seconds, more than 0"),
        ({"max_new_tokens": 5000}, SettingError, "prompt p0 has 20 tokens, and with 5000 new ones the model has room"),
        ({"drafts": ["lokup"]}, DraftSpecError, "lokup"),
        ({"prompts": "nothing.jsonl"}, InputError, "there is no file 'nothing.jsonl'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_peer_starts(
    changes: dict[str, Any], error: type[Exception], message: str, asking: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        measuring.measure(measuring.Asked(peers=[peer_of(tmp_path, "")], **{**asking, **changes}))
    assert not (tmp_path / "fake.log").exists()


def test_transformers_says_what_we_say(asking: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    source = load("stdlib-1m", draft="none").folder
    for file in source.iterdir():
        os.symlink(file, folder / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").unlink()
    config["dtype"] = "float32"  # in which nothing comes near to a tie
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    given = {**asking, "model": str(folder), "repeats": 1, "peer_draft": "stdlib-1m"}
    found = environment("transformers", tmp_path)
    asked = measuring.Asked(peers=[found], loading=LoadSettings(dtype="float32", threads=1), **given)
    rows = {(row["engine"], row["mode"]): row for row in measuring.measure(asked)["rows"]}
    assert set(rows) == {(OURS, PLAIN), (OURS, "lookup"), *(("transformers", m) for m in (PLAIN, "lookup", "assisted"))}
    for mode in (PLAIN, "lookup", "assisted"):
        assert rows["transformers", mode]["why"] is None
        assert rows["transformers", mode]["equal_to_ours"] == 2
    assert rows["transformers", "assisted"]["identical_to_own_plain"] is True


def test_a_peer_gets_our_threads_its_libraries_and_no_python_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("FORETOKEN_LEVEL", "generic")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "first.so").touch()
    peer = Peer("x", (), tmp_path / "x.py", preload=(("lib/first.so",), ("lib/absent.so", "/absent/*.so")))
    found = variables(Environment(peer, tmp_path / "bin" / "python", ()), 2)
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["LD_PRELOAD"] == str(tmp_path / "lib" / "first.so")
    assert not {"PYTHONPATH", "FORETOKEN_LEVEL"} & set(found)


def test_the_command_measures_writes_and_shows(
    cli: Cli, asking: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEERS, "fake", peer_of(tmp_path, GOOD).peer)
    given = ["--model", "stdlib-1m", "--prompts", asking["prompts"], "--draft", "lookup", "--max-new-tokens", NEW]
    ran = cli("bench", "peers", "run", "--peer", "fake", "--repeats", 1, *given, "--json", tmp_path / "r.json")
    assert ran.code == 0, ran.err
    assert "fake" in ran.out
    assert "starting fake" in ran.err
    assert read(tmp_path / "r.json")["suite"]["prompts"] == 2
    listed = cli("bench", "peers", "list", "--into", tmp_path)
    assert "fake          in Foretoken's own environment" in listed.out
    assert "vllm          not installed" in listed.out
    report = cli("bench", "report", tmp_path / "r.json", "--out", tmp_path / "report.md")
    assert report.code == 0, report.err
    for arguments, message in (
        (["run", "--peer", "vlm"], "there is no peer 'vlm'; did you mean 'vllm'"),
        (["run", "--peer", "vllm", "--into", tmp_path], "peer 'vllm' is not there"),
        (["run", "--work", tmp_path / "no"], "there is no folder"),
        (["install", "vlm"], "there is no peer 'vlm'"),
    ):
        refused = cli("bench", "peers", *arguments)
        assert refused.code == 2
        assert message in refused.err


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
