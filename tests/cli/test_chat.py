"""`foretoken chat`, through a pipe and on a terminal."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretoken
from tests.cli.conftest import Cli
from tests.talks import talking, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("talking") / "model")


def test_lines_of_a_pipe_are_turns_and_the_output_is_the_replies(cli: Cli, folder: Path) -> None:
    said = ["def add(a, b):", "class Stack:", "é"]
    ran = cli("chat", "--model", folder, "--max-new-tokens", 12, stdin="\r\n\n".join(said).encode())
    assert ran.code == 0
    chat = foretoken.load(folder).chat()
    replies = []
    for text in said:
        for _ in (stream := chat.send(text, max_new_tokens=12)):
            pass
        replies.append(stream.completion.text)
    assert ran.out == "".join(reply if reply.endswith("\n") else f"{reply}\n" for reply in replies)
    assert ran.err == "-- cut off after 12 tokens: --max-new-tokens\n" * 3


def test_the_system_message_and_the_sampling_reach_the_model(cli: Cli, folder: Path) -> None:
    sampled = ("--temperature", 0.9, "--seed", 5, "--max-new-tokens", 9, "--stop", "\n")
    ran = cli("chat", "--model", folder, "--system", "Speak Python.", *sampled, stdin=b"import\n/stats")
    prompt = written([{"role": "system", "content": "Speak Python."}, {"role": "user", "content": "import"}])
    done = foretoken.load(folder).generate(prompt, temperature=0.9, seed=5, max_new_tokens=9, stop="\n")
    assert ran.out == f"{done.text}\n"
    assert "; seed 5\n" in ran.err
    assert f"-- the prompt had {done.prompt_tokens} tokens, 0 of them kept from earlier turns\n" in ran.err


def test_commands_are_obeyed_through_a_pipe_too(cli: Cli, folder: Path) -> None:
    lines = b"/stats\nx = 1\ny = 2\n/stats\n/reset\n/stats\nx = 1\n/stats\n/nonsense\n/help\n//x\n/exit\nnever said\n"
    ran = cli("chat", "--model", folder, "--max-new-tokens", 5, stdin=lines)
    assert ran.code == 0
    kept = [int(kept) for kept in re.findall(r"(\d+) of them kept", ran.err)]
    assert len(kept) == 2
    assert kept[0] > 5 > kept[1] == 0
    assert ran.err.count("-- there is no whole reply to tell of\n") == 2
    assert "-- a new talk\n" in ran.err
    assert "-- there is no command '/nonsense'\n" in ran.err
    assert "-- /exit   end, as Ctrl-D does\n" in ran.err
    assert ran.err.count("cut off") == 4, "a line that begins with two slashes is said, and nothing after /exit"


def test_a_plain_talk_goes_on_with_the_text(cli: Cli) -> None:
    ran = cli(
        *("chat", "--plain", "--model", "stdlib-1m", "--max-new-tokens", 12, "--stop", "\n\n"),
        stdin=b"def add(a, b):\ndef sub(a, b):\n",
    )
    model = foretoken.load("stdlib-1m")
    text, shown = "", ""
    for said in ("def add(a, b):", "\ndef sub(a, b):"):
        text += said
        reply = model.generate(text, max_new_tokens=12, stop="\n\n").text
        text, shown = text + reply, f"{shown}{reply}\n"
    assert ran.out == shown


@pytest.mark.parametrize(
    ("args", "stdin", "message"),
    [
        ((), b"hello", "stdlib-7m has no chat template: it was not taught to talk in turns; use --plain (plain=True)"),
        (("--plain", "--system", "x"), b"hello", "a plain talk has no system message"),
        (("--plain",), b"\xff", "line 1 is not UTF-8 (byte 0); expected text"),
        (("--plain",), b"x " * 3000, "the model's context holds 2048 with what follows; shorten the prompt"),
        (("--plain", "--logit-bias", "99999=1"), b"x", "logit_bias names token 99999; the model has tokens 0 to 4095"),
        (("--plain", "--n", "2"), b"x", "No such option: --n"),
        (("--plain", "--regex", "("), b"x", "regex"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(
    cli: Cli, args: tuple[str, ...], stdin: bytes, message: str
) -> None:
    ran = cli("chat", *args, stdin=stdin)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_a_context_that_is_full_is_told(cli: Cli) -> None:
    ran = cli("chat", "--plain", "--model", "stdlib-1m", "--ignore-eos", "--max-new-tokens", 300, stdin=b"x " * 1990)
    assert ran.code == 0
    assert ran.err == "-- the context of 2048 tokens is full; /reset begins a new talk\n"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *args: str, stdout: int | None = None) -> None:
        import fcntl
        import pty
        import termios

        self.here, there = pty.openpty()
        self.seen = ""
        self.running = subprocess.Popen(
            [sys.executable, "-m", "foretoken", *args],
            stdin=there,
            stdout=there if stdout is None else stdout,
            stderr=there,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        os.close(there)

    def expect(self, text: str, seconds: float = 60.0) -> None:
        """Wait until a text comes, after what was seen before."""
        until = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.here], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{text!r} did not come; there came {self.seen!r}"
            self.seen += os.read(self.here, 65536).decode()
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    def type(self, text: str) -> None:
        os.write(self.here, text.encode())


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for terminal in started:
        terminal.running.kill()
        terminal.running.wait()
        os.close(terminal.here)


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals to make")
def test_on_a_terminal_ctrl_c_ends_a_reply_and_ctrl_d_the_talk(terminals: list[Terminal]) -> None:
    # a reply so long that it can be interrupted
    terminal = Terminal("chat", "--plain", "--draft", "none", "--ignore-eos", "--max-new-tokens", "1500")
    terminals.append(terminal)
    terminal.expect("-- stdlib-7m, draft none; Ctrl-D ends the talk, /help tells more")
    for _ in range(2):
        terminal.expect("> ")
        terminal.type("def add(a, b):\n")
        terminal.expect("def add(a, b):\r\n")
        while not terminal.seen:
            terminal.seen += os.read(terminal.here, 100).decode()
        terminal.type("\x03")
        terminal.expect("-- interrupted; the talk goes on")
    terminal.expect("> ")
    time.sleep(0.5)  # a signal between the prompt and the waiting behind it is seen at the next key
    terminal.type("\x03")
    terminal.expect("-- Ctrl-D or /exit ends the talk")
    terminal.expect("> ")
    terminal.type("/stats\n")
    terminal.expect("-- there is no whole reply to tell of")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.running.wait(timeout=30) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals to make")
def test_a_talk_that_fills_the_context_says_so(terminals: list[Terminal]) -> None:
    terminal = Terminal("chat", "--plain", "--model", "stdlib-1m", "--draft", "none", "--ignore-eos")
    terminals.append(terminal)
    terminal.expect("> ")
    terminal.type("x " * 1990 + "\n")
    terminal.expect("-- the context of 2048 tokens is full; /reset begins a new talk", seconds=240)  # read in PyTorch
    terminal.expect("> ")
    terminal.type("x " * 100 + "\n")
    terminal.expect("shorten the prompt; /reset begins a new talk")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.running.wait(timeout=30) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals to make")
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
