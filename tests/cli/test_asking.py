r"""What is asked on the command line: token ids, escapes, a pipe beside an argument, and JSON while it comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foretoken
from tests.cli.conftest import Cli

SHORT = ("-m", "stdlib-1m", "-n", 6)


def test_token_ids_are_the_prompt(cli: Cli) -> None:
    plain = cli("generate", "def add(", *SHORT)
    ids = foretoken.load("stdlib-1m").tokens_of("def add(")
    for written in (",".join(map(str, ids)), " ".join(map(str, ids)), str(list(ids))):
        ran = cli("generate", "--token-ids", written, *SHORT)
        assert ran.code == 0
        assert ran.out == plain.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--token-ids", "1,x"), "--token-ids is '1,x', expected whole numbers such as 1,2,3"),
        (("--token-ids", ""), "--token-ids is '', expected whole numbers"),
        (("--token-ids", "99999"), "the prompt holds token 99999; the model has tokens 0 to"),
        (("--token-ids", "1", "x"), "the prompt came as an argument and with --token-ids; give one of them"),
        (("--token-ids", "1", "--chat"), "--chat and --token-ids were both given; a chat template needs text"),
        (("x", "--stream"), "--stream is for --json and one completion"),
    ],
)
def test_what_cannot_be_asked_is_one_line(cli: Cli, args: tuple[str, ...], message: str) -> None:
    ran = cli("generate", *args, *SHORT)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_escapes_are_read_when_asked_for_and_else_hinted_at(cli: Cli) -> None:
    hint = r"\n was taken as a backslash and an n; with -e, \n is a line break, \t a tab and \\ a backslash"
    real = cli("generate", "x = 1\n\ty", *SHORT, "--stop", "\n\n\n")
    assert hint not in real.err
    read = cli("generate", r"x = 1\n\ty", *SHORT, "-e", "--stop", r"\n\n\n")
    assert read.out == real.out
    assert hint not in read.err
    literal = cli("generate", r"x = 1\n\ty", *SHORT)
    assert literal.out != real.out
    assert literal.err.count(hint) == 1
    assert hint in cli("generate", "x", *SHORT, "--stop", r"\n").err
    assert r"-- \t was taken as a backslash and a t;" in cli("generate", r"x\t", *SHORT).err
    assert hint not in cli("generate", r"x\n", *SHORT, "--json").err
    assert "the prompt from standard input is empty" in cli("generate", "--draft", "none", stdin=b"\n").err
    assert cli("generate", r"a\\n", *SHORT, "-e").out == cli("generate", r"a\n", *SHORT).out


def test_a_conversation_reads_escapes_in_stop_strings_too(cli: Cli) -> None:
    def chat(*args: str) -> tuple[str, str]:
        ran = cli("chat", "--plain", *SHORT, *args, stdin=b"def add(one, other):\n")
        assert ran.code == 0
        return ran.out, ran.err

    hint = r"\n was taken as a backslash and an n; with -e"
    out, err = chat("--stop", r"\n")
    assert hint in err
    assert out.count("\n") > 1
    out, err = chat("--stop", r"\n", "-e")
    assert hint not in err
    assert out.count("\n") == 1
    assert hint not in chat("--stop", r"\n", "--json")[1]


def test_json_comes_a_token_a_line_and_then_whole(cli: Cli) -> None:
    ran = cli("generate", "def add(", *SHORT, "--json", "--stream")
    *pieces, whole = map(json.loads, ran.out.splitlines())
    assert [piece["token"] for piece in pieces] == whole["tokens"]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert [piece["origin"] for piece in pieces] == whole["origins"]


def run(*args: str, stdin: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foretoken", "generate", *args, "-m", "stdlib-1m", "-n", "2"]
    return subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)


def test_a_prompt_beside_text_on_standard_input_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_text("def add(", encoding="utf-8")
    with file.open() as text:
        refused = run("x", stdin=text)
    assert refused.returncode == 2
    assert "a prompt came as an argument, and text on standard input too; give one of them" in refused.stderr
    reader, writer = os.pipe()
    os.write(writer, b"def add(")
    os.close(writer)
    assert run("x", stdin=reader).returncode == 2
    os.close(reader)


@pytest.mark.parametrize("name", ["empty", pytest.param(os.devnull, marks=pytest.mark.prove)])
def test_standard_input_without_text_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").touch()
    with open(tmp_path / name, encoding="utf-8") as text:
        assert run("x", stdin=text).returncode == 0


def test_standard_input_in_which_nobody_writes_is_none() -> None:
    reader, writer = os.pipe()
    assert run("x", stdin=reader).returncode == 0, "somebody might write, and has not"
    os.close(writer)
    assert run("x", stdin=reader).returncode == 0, "nobody will"
    os.close(reader)


def test_a_batch_of_one_is_its_prompt() -> None:
    model = foretoken.load("stdlib-1m")
    ids = model.tokens_of("def add(")
    expected = model.generate(ids, max_new_tokens=4).tokens
    for batch in (torch.tensor([ids]), np.array([ids]), torch.tensor(ids)):
        assert model.generate(batch, max_new_tokens=4).tokens == expected  # type: ignore[arg-type]
    with pytest.raises(foretoken.PromptError, match="expected text"):
        model.generate(torch.tensor([ids, ids]), max_new_tokens=4)  # type: ignore[arg-type]
