"""`foretoken chat` on a terminal: Ctrl-C, pasted lines, and lines that are typed while a reply comes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foretoken
from tests.cli.terminal import ON_A_TERMINAL, Terminal
from tests.talks import talking


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("talking") / "model")


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for terminal in started:
        terminal.running.kill()
        terminal.running.wait()
        os.close(terminal.here)


@ON_A_TERMINAL
def test_on_a_terminal_ctrl_c_ends_a_reply_and_ctrl_d_the_conversation(terminals: list[Terminal]) -> None:
    # a reply so long that it can be interrupted
    terminal = Terminal("chat", "--plain", "--draft", "none", "--ignore-eos", "--max-new-tokens", "1500")
    terminals.append(terminal)
    terminal.expect("-- stdlib-7m, draft none; Ctrl-D or exit ends the conversation, /help tells more")
    for _ in range(2):
        terminal.expect("> ")
        terminal.type("def add(a, b):\n")
        terminal.expect("def add(a, b):\r\n")
        terminal.expect_some()
        terminal.type("\x03")
        terminal.expect("-- interrupted; the conversation goes on")
    terminal.expect("> ")
    time.sleep(0.5)  # a signal between the prompt and the waiting behind it is seen at the next key
    terminal.type("\x03")
    terminal.expect("-- Ctrl-D or /exit ends the conversation")
    terminal.expect("> ")
    terminal.type("/stats\n")
    terminal.expect(" cancelled; promise: ")
    terminal.expect("-- the prompt had ")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.running.wait(timeout=30) == 0


@ON_A_TERMINAL
def test_a_conversation_that_fills_the_context_says_so(terminals: list[Terminal]) -> None:
    terminal = Terminal("chat", "--plain", "--model", "stdlib-1m", "--draft", "none", "--ignore-eos")
    terminals.append(terminal)
    terminal.expect("> ")
    terminal.type("x " * 1990 + "\n")
    terminal.expect(
        "-- the context of 2048 tokens is full; send a shorter text, or begin a", seconds=240
    )  # read in PyTorch
    terminal.expect("> ")
    terminal.type("x " * 100 + "\n")
    terminal.expect("shorten the prompt; send a shorter text, or begin a new conversation: /reset")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.running.wait(timeout=30) == 0


@ON_A_TERMINAL
def test_replies_go_into_a_file_without_what_is_for_the_terminal(terminals: list[Terminal], tmp_path: Path) -> None:
    with open(tmp_path / "replies", "wb") as replies:
        terminal = Terminal(
            *("chat", "--plain", "--model", "stdlib-1m", "--max-new-tokens", "4"), stdout=replies.fileno()
        )
        terminals.append(terminal)
        terminal.expect("> ")
        terminal.type("x = 1\n")
        terminal.expect("cut off after 4 tokens")
        terminal.expect("> ")
        terminal.type("/exit\n")
        assert terminal.running.wait(timeout=30) == 0
    text = foretoken.load("stdlib-1m").generate("x = 1", max_new_tokens=4).text
    assert (tmp_path / "replies").read_text(encoding="utf-8") == text + "\n" * (not text.endswith("\n"))


def talking_on(terminals: list[Terminal], folder: Path, *more: str, **settings: Any) -> Terminal:
    """A conversation with such a model, which replies briefly and is waiting for its first message."""
    words = ("chat", "--model", str(folder), "--max-new-tokens", "4", *more)
    terminals.append(Terminal(*words, **settings))
    terminals[-1].expect("/help tells more")
    terminals[-1].expect("> ")
    return terminals[-1]


def saved(terminal: Terminal, path: Path) -> list[str]:
    """What was sent so far."""
    terminal.type(f"/save {path}\n")
    terminal.expect(f"-- saved: {path}")
    terminal.expect("> ")
    return [each["content"] for each in json.loads(path.read_text(encoding="utf-8")) if each["role"] == "user"]


@ON_A_TERMINAL
@pytest.mark.parametrize("term", ["xterm", pytest.param("dumb", marks=pytest.mark.prove)])
def test_what_is_pasted_is_one_message(terminals: list[Terminal], folder: Path, tmp_path: Path, term: str) -> None:
    terminal = talking_on(terminals, folder, term=term)
    brackets = ("\x1b[200~", "\x1b[201~") if term == "xterm" else ("", "")
    text = "def add(a, b):\n    # é\\\n\n    return a + b"
    terminal.type(f"{brackets[0]}{text}{brackets[1]}\n")
    terminal.expect("-- cut off after 4 tokens")
    terminal.expect("> ")
    assert saved(terminal, tmp_path / "one.json") == [text]
    terminal.type("x = 1\n")
    terminal.expect("-- cut off after 4 tokens")
    terminal.expect("> ")
    assert saved(terminal, tmp_path / "two.json") == [text, "x = 1"]
    terminal.type("exit\n")
    assert terminal.running.wait(timeout=30) == 0


@ON_A_TERMINAL
def test_a_backslash_continues_a_line_and_what_is_typed_ahead_are_messages_of_their_own(
    terminals: list[Terminal], folder: Path, tmp_path: Path
) -> None:
    terminal = talking_on(terminals, folder)
    for line in ("if x:\\", "\\", "    y"):
        terminal.type(f"{line}\n")
        terminal.expect(". " if line.endswith("\\") else "-- cut off after 4 tokens")
    terminal.expect("> ")
    terminal.type("a\\\n")
    terminal.expect(". ")
    time.sleep(0.5)  # as above
    terminal.type("\x03")
    terminal.expect("-- Ctrl-D or /exit ends the conversation")
    terminal.expect("> ")
    assert saved(terminal, tmp_path / "one.json") == ["if x:\n\n    y"]
    terminal.type("/system Be\\\n")
    terminal.expect(". ")
    terminal.type("brief.\n")
    terminal.expect("-- a new conversation, with this system message")
    terminal.expect("> ")
    terminal.type("a\\\n")
    terminal.expect(". ")
    terminal.type("\x04")  # ends the message, and the conversation
    terminal.expect("-- cut off after 4 tokens")
    assert terminal.running.wait(timeout=30) == 0


@ON_A_TERMINAL
def test_lines_typed_while_a_reply_comes_are_messages_of_their_own(terminals: list[Terminal], tmp_path: Path) -> None:
    terminal = Terminal("chat", "--plain", "--draft", "none", "--ignore-eos", "--max-new-tokens", "300")
    terminals.append(terminal)
    terminal.expect("> ")
    terminal.type("def add(a, b):\n")
    terminal.expect("def add(a, b):\r\n")
    terminal.expect_some()
    terminal.type("x = 1\nQUIT\n")
    for _ in range(2):
        terminal.expect("-- cut off after 300 tokens", seconds=240)  # in PyTorch
    assert terminal.running.wait(timeout=30) == 0


@ON_A_TERMINAL
def test_an_interrupted_reply_is_generated_again_and_is_an_object_too(terminals: list[Terminal]) -> None:
    more = ("--plain", "--draft", "none", "--ignore-eos", "--max-new-tokens", "1500")
    terminal = Terminal("chat", *more)
    terminals.append(terminal)
    terminal.expect("> ")
    terminal.type("def add(a, b):\n")
    terminal.expect("def add(a, b):\r\n")
    for _ in range(2):
        terminal.expect_some(3)
        begun = terminal.seen[:3]
        terminal.type("\x03")
        terminal.expect("-- interrupted; the conversation goes on")
        terminal.expect("> ")
        terminal.type("/regenerate\n")
        terminal.expect("/regenerate\r\n")
    terminal.expect(begun)  # greedy: the same text, from its beginning
    terminal.type("\x03")
    terminal.expect("-- interrupted; the conversation goes on")
    terminal.expect("> ")
    terminal.type("quit\n")
    assert terminal.running.wait(timeout=30) == 0


@ON_A_TERMINAL
def test_lines_are_read_together_where_replies_go_into_a_file(
    terminals: list[Terminal], folder: Path, tmp_path: Path
) -> None:
    with open(tmp_path / "replies", "wb") as replies:
        terminal = talking_on(terminals, folder, "--json", stdout=replies.fileno())
        terminal.type("x = 1\ny = 2\n")
        terminal.expect("> ")
        assert saved(terminal, tmp_path / "one.json") == ["x = 1\ny = 2"]
        terminal.type("\x04")
        assert terminal.running.wait(timeout=30) == 0
    (line,) = (tmp_path / "replies").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)
