"""What `foretoken chat` reads: messages that are typed or pasted on a terminal, or lines of a pipe or a file."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from foretoken.cli.common import say
from foretoken.common.files import MOST_READ
from foretoken.errors import PromptError

_PROMPT, _MORE = "> ", ". "  # before a message, and before each further line of it
_PASTED = 0.03  # seconds in which a line must follow another to be pasted with it


@dataclass(frozen=True)
class Line:
    """A message. pasted: in several lines at once, so that nothing in it is meant as a command."""

    text: str
    pasted: bool = False


def typed() -> Iterator[Line]:
    """Messages from a terminal: a line each. Lines that are pasted together are one message, and a backslash at the end
    of a line continues it. Ctrl-C at the prompt ends nothing: it may have come too late to end a reply."""
    import readline  # makes `input` edit lines

    if os.environ.get("TERM", "dumb") != "dumb":
        readline.parse_and_bind("set enable-bracketed-paste on")  # a paste is one line, with breaks in it
    lines: list[str] = []  # of a message that goes on
    pasted = ended = False
    while not ended:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            pasted, ended = _read(lines)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            say("Ctrl-D or /exit ends the conversation")
            lines.clear()
            continue
        except UnicodeDecodeError as error:
            say(f"what was typed is not UTF-8 (byte {error.start}); type text")
            lines.clear()
            continue
        finally:
            signal.signal(signal.SIGINT, before)
        if lines:
            yield Line("\n".join(lines).rstrip("\n"), pasted)
            lines.clear()


def _read(lines: list[str]) -> tuple[bool, bool]:
    """Read the lines of a message; whether some were pasted together, and whether nothing comes after it."""
    pasted = False
    ahead = _waiting(0.0)  # typed while a reply came: each line is a message of its own
    while True:
        try:
            line = _line(_MORE if lines else _PROMPT)
        except EOFError:
            print(file=sys.stderr)
            return pasted, True
        # some terminals tell line breaks within a paste by other characters
        line = line.replace("\r\n", "\n").replace("\r", "\n")
        continued = line.endswith("\\")
        follows = not ahead and _waiting(_PASTED)  # by a terminal that does not tell of pastes
        pasted |= follows or "\n" in line
        lines.append(line.removesuffix("\\") if continued and not follows else line)
        if not continued and not follows:
            return pasted, False


def _waiting(seconds: float) -> bool:
    """Whether there is a line to read, or comes within so many seconds."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _line(prompt: str) -> str:
    """A line; where replies go into a file, the prompt does not."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def piped(file: Path | None) -> Iterator[Line]:
    """Lines from a file, which is opened at once, or without one from standard input."""
    if file is None:
        if sys.stdin is None:
            raise PromptError("there is nothing to read; give lines on standard input, or name a --prompt-file")
        return _lines(sys.stdin.buffer)
    try:
        return _lines(open(file, "rb"), owned=True)
    except OSError as error:
        raise PromptError(f"{file} cannot be read ({error.strerror}); name a file of text") from None


def _lines(data: BinaryIO, owned: bool = False) -> Iterator[Line]:
    """owned: it is closed at its end."""
    try:
        yield from _decoded(data)
    except OSError as error:
        raise PromptError(f"the lines cannot be read ({error.strerror}); name a file of text") from None
    finally:
        if owned:
            data.close()


def _decoded(data: BinaryIO) -> Iterator[Line]:
    for number, line in enumerate(iter(lambda: data.readline(MOST_READ), b""), 1):
        if len(line) == MOST_READ:
            raise PromptError(f"line {number} is longer than {MOST_READ >> 20} MB; expected text")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PromptError(f"line {number} is not UTF-8 (byte {error.start}); expected text") from None
        yield Line(text.removesuffix("\n").removesuffix("\r"))
