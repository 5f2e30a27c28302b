"""`foretoken batch`: what a user gets, and what is left when it ends in the middle."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foretoken.errors import NumericsError
from foretoken.loop.engine import Engine
from foretoken.protocol.types import Verdict
from tests.cli.conftest import Cli
from tests.tiny import one_thread as one_thread

pytest.importorskip("pydantic")

from foretoken.serve.batch_output import File

MODEL = ("--model", "stdlib-1m", "--draft", "lookup")
PROMPTS = [f"def test_{at}(self):\n    self.assertEqual({at}, {at})\n\n\ndef" for at in range(40)]
# the server's packages are not needed, but for pydantic
WITHOUT_A_SERVER = """
import sys
for name in ("fastapi", "starlette", "uvicorn", "prometheus_client"):
    sys.modules[name] = None
from foretoken.__main__ import main
main()
"""


def write(place: Path, count: int = 8, **more: Any) -> Path:
    place.write_text("".join(json.dumps({"prompt": each, **more}) + "\n" for each in PROMPTS[:count]), encoding="utf-8")
    return place


def answers(place: Path) -> dict[str, Any]:
    found = [json.loads(line) for line in place.read_bytes().splitlines()]
    by_name = {each["custom_id"]: each["response"] for each in found}
    assert len(by_name) == len(found), "a line was answered twice"
    return by_name


def text_of(response: Any) -> str:
    assert response["status_code"] == 200, response
    text: str = response["body"]["choices"][0]["text"]
    return text


def expect_plain(cli: Cli, found: dict[str, Any], count: int, length: int) -> None:
    assert found.keys() == {f"line-{at}" for at in range(1, count + 1)}
    for at in (1, count // 2, count):
        words = ("generate", PROMPTS[at - 1], "--model", "stdlib-1m", "--draft", "none", "-n", length, "--json")
        assert text_of(found[f"line-{at}"]) == json.loads(cli(*words).out)["text"]


def test_answers_are_those_of_generate_and_a_summary_follows(cli: Cli, tmp_path: Path) -> None:
    requests, place = write(tmp_path / "in.jsonl"), tmp_path / "new" / "out.jsonl"
    ran = cli("batch", requests, place, *MODEL, "-n", 20)
    assert (ran.code, ran.out) == (0, "")
    expect_plain(cli, answers(place), 8, 20)
    assert "-- 8 of 8 lines, " in ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("-- 8 of 8 lines done, 160 tokens, ")
    assert " tokens/s, " in last
    assert last.endswith(" draft tokens accepted")


def test_what_is_there_is_not_asked_again(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, place = write(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    assert cli("batch", requests, place, *MODEL, "-n", 4).code == 0
    before = place.read_bytes()
    write(requests, 5)
    more = cli("batch", requests, place, *MODEL, "-n", 4)
    assert "5 of 5 lines done (3 before), 8 tokens" in more.err
    whole = place.read_bytes()
    assert whole.startswith(before)
    expect_plain(cli, answers(place), 5, 4)
    with monkeypatch.context() as patch:  # no model is loaded for nothing
        patch.setattr("foretoken.cli.common.load", None)
        again = cli("batch", requests, place, *MODEL, "-n", 4)
        another = cli("batch", requests, place, "--model", "nowhere", "-n", 4)
    assert (again.code, again.err) == (0, "-- 5 of 5 lines done (5 before)\n")
    assert another.code == 2
    assert "has answers of stdlib-1m, and this model is nowhere; name another file" in another.err
    assert place.read_bytes() == whole
    other = cli("batch", requests, place, *MODEL, "-n", 5)
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "the request or the options have changed since; change them back" in other.err
    renamed = cli("batch", write(requests, 6), place, *MODEL, "-n", 4, "--served-model-name", "mine")
    assert renamed.code == 2
    assert "has answers of stdlib-1m, and this model is mine; name another file" in renamed.err
    assert place.read_bytes() == whole


def test_streams_serve_as_files(cli: Cli) -> None:
    lines = [{"prompt": PROMPTS[0], "max_tokens": 3, "user": "me", "best": 1}, {"prompt": "x", "model": "mine"}]
    stdin = b"\n".join(json.dumps(each).encode() for each in lines)  # without a break at the end
    ran = cli("batch", "-", "-", *MODEL, "-n", 2, "--served-model-name", "mine", stdin=stdin)
    assert ran.code == 0
    found = {each["custom_id"]: each["response"] for each in map(json.loads, ran.out.splitlines())}
    tokens = {name: each["body"]["usage"]["completion_tokens"] for name, each in found.items()}
    assert tokens == {"line-1": 3, "line-2": 2}
    assert {each["body"]["model"] for each in found.values()} == {"mine"}
    assert ran.err.endswith("-- fields that nobody knows changed nothing: best\n")


def test_faults_of_the_machine_are_told_and_tried_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, place = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given = [{"prompt": "x", "max_tokens": 5}, {"prompt": "x", "max_tokens": 6}, {"prompt": "x", "seed": "s"}]
    requests.write_text("\n".join(map(json.dumps, given)), encoding="utf-8")
    step = Engine.step

    def failing(self: Engine) -> list[Verdict]:
        return [
            Verdict(v.sequence, v.round, v.position, (), (), (), error=NumericsError("a NaN came"))
            if v.sequence in self._live and self._live[v.sequence].request.max_new_tokens == 6
            else v
            for v in step(self)
        ]

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", failing)
        ran = cli("batch", requests, place, *MODEL)
    assert ran.code == 1
    assert "2 of 3 lines done, 1 refused, 1 failed, " in ran.err
    assert ran.err.endswith("-- the same command tries again what failed\n")
    assert {name: each["status_code"] for name, each in answers(place).items()} == {
        "line-1": 200,
        "line-2": 500,
        "line-3": 400,
    }
    again = cli("batch", requests, place, *MODEL)
    assert again.code == 1  # for what was refused before
    assert "3 of 3 lines done (2 before), 1 refused, 6 tokens" in again.err
    assert answers(place)["line-2"]["status_code"] == 200
    once_more = cli("batch", requests, place, *MODEL)
    assert once_more.code == 1
    assert "3 of 3 lines done (3 before), 1 refused\n" in once_more.err
    assert f"why requests were refused is in {place}" in once_more.err


def test_ctrl_c_says_how_to_go_on(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests, place = write(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    written, write_one = 0, File.write

    def interrupted(self: File, line: str) -> None:
        nonlocal written
        write_one(self, line)
        written += 1
        if written == 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(File, "write", interrupted)
        ran = cli("batch", requests, place, *MODEL, "-n", 30, "--at-once", 2)
    assert ran.code
    line = next(line for line in ran.err.splitlines() if "interrupted" in line)
    assert line.startswith(f"-- interrupted; {written} of 20 lines done, ")
    assert line.endswith(f"; the same command goes on from {place}")
    assert 5 <= len(answers(place)) == written < 12
    assert cli("batch", requests, place, *MODEL, "-n", 30).code == 0
    expect_plain(cli, answers(place), 20, 30)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL to send")
def test_what_a_killed_run_has_written_is_kept(cli: Cli, tmp_path: Path) -> None:
    requests, place = write(tmp_path / "in.jsonl", 24, ignore_eos=True), tmp_path / "out.jsonl"
    words = ("batch", str(requests), str(place), *MODEL, "-n", "100")
    command = [sys.executable, "-c", WITHOUT_A_SERVER, *words, "--at-once", "1", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        until = time.monotonic() + 60
        while not place.exists() or place.read_bytes().count(b"\n") < 3:
            assert running.poll() is None, running.stderr.read() if running.stderr else ""
            assert time.monotonic() < until
            time.sleep(0.01)
        running.send_signal(signal.SIGSTOP)
        locked = cli(*words)
        running.kill()
    assert (locked.code, "another run is writing" in locked.err) == (2, True)
    kept = place.read_bytes()
    kept = kept[: kept.rindex(b"\n") + 1]
    assert 3 <= kept.count(b"\n") < 24
    place.write_bytes(kept + kept[:200])  # as if it had been killed in the middle of a line
    assert cli(*words).code == 0
    assert place.read_bytes().startswith(kept)
    found = answers(place)
    assert len(found) == 24
    plain = cli("generate", PROMPTS[23], "--model", "stdlib-1m", "--draft", "none", "-n", 100, "--ignore-eos", "--json")
    assert text_of(found["line-24"]) == json.loads(plain.out)["text"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere.jsonl", "out.jsonl"), "nowhere.jsonl cannot be read (No such file or directory); name a file"),
        (("in.jsonl", "in.jsonl"), "the requests and the answers are both in.jsonl; name another file"),
        (("in.jsonl", "."), ". is a folder; expected the name of a file for the answers"),
        (("twice.jsonl", "out.jsonl"), "lines 1 and 2 of twice.jsonl have the same custom_id ('a')"),
        (("in.jsonl", "out.jsonl", "--remote", "ws://127.0.0.1:9", "--model", "x"), "--model and --remote were both"),
        (("in.jsonl", "out.jsonl", "--at-once", "0"), "--at-once"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_loaded(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", 1)
    (tmp_path / "twice.jsonl").write_text('{"custom_id": "a", "prompt": "x"}\n' * 2, encoding="utf-8")
    ran = cli("batch", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err


def test_a_package_that_is_missing_is_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "foretoken.serve.answering", None)  # typer needs pydantic itself
    ran = cli("batch", write(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl")
    assert ran.code == 2
    said = r"a batch needs \S+, which is not installed; install it with: pip install 'foretoken\[serve\]'\n$"
    assert re.search(said, ran.err)
