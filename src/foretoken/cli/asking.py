"""What `foretoken generate` is asked: a prompt from the command line, a file or a pipe, as text or as token ids."""

from __future__ import annotations

import os
import re
import select
import stat
import sys
from dataclasses import replace
from io import BufferedReader
from pathlib import Path

from foretoken.common.files import read_bytes, read_stream
from foretoken.errors import PromptError, quoted
from foretoken.settings.generate import GenerateSettings

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0"}


def read_prompt(prompt: str | None, file: Path | None, ids: str | None) -> str | tuple[int, ...]:
    """The prompt, from the one place where it was given. ids: token ids, with commas or spaces between."""
    places = {"an argument": prompt, "--prompt-file": file, "--token-ids": ids}
    given = [name for name, one in places.items() if one is not None]
    if len(given) > 1:
        raise PromptError(f"the prompt came as {' and with '.join(given)}; give one of them")
    if given and _is_piped():
        raise PromptError(
            f"a prompt came as {given[0]}, and text on standard input too; give one of them (in a loop over lines: "
            "< /dev/null)"
        )
    if ids is not None:
        return _tokens(ids)
    if prompt is not None:
        return prompt
    if file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise PromptError("there is no prompt; give it as an argument, with --prompt-file, or on standard input")
    place = "standard input" if file is None else file
    try:
        data = read_stream(sys.stdin.buffer) if file is None else read_bytes(file)
        # some editors begin a file with a mark of its encoding, which nobody has written
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise PromptError(f"{place} cannot be read ({error.strerror}); name a file of text") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"the prompt is not UTF-8 (byte {error.start}); expected text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise PromptError(f"the prompt from {place} is empty; expected text")
    return text


def unescaped(text: str) -> str:
    r"""A text in which \n, \t, \r, \0 and \\ stand for what they stand for in most languages; others stay."""
    return re.sub(r"\\([ntr0\\])", lambda found: _ESCAPES[found[1]], text)


def with_escapes(generating: GenerateSettings) -> GenerateSettings:
    """The same settings with stop strings in which escapes were read."""
    return replace(generating, stop=tuple(map(unescaped, generating.stops)))


def escape_in(*texts: str) -> str | None:
    r"""The first \n or \t in some texts, as a backslash and a letter: a line break or a tab was meant, perhaps."""
    found = re.search(r"\\[nt]", "\0".join(texts))
    return None if found is None else found[0]


def taken_as_typed(escape: str) -> str:
    """A hint for somebody who typed an escape without -e."""
    letter = "an n" if escape[1] == "n" else "a t"
    return rf"{escape} was taken as a backslash and {letter}; with -e, \n is a line break, \t a tab and \\ a backslash"


def _tokens(ids: str) -> tuple[int, ...]:
    found = re.fullmatch(r"\s*\[?\s*([0-9]{1,10}(?:[\s,]+[0-9]{1,10})*)\s*\]?\s*", ids)
    if found is None:
        raise PromptError(f"--token-ids is {quoted(ids, 60)}, expected whole numbers such as 1,2,3")
    return tuple(map(int, re.split(r"[\s,]+", found[1])))


def _is_piped() -> bool:
    """Whether a file, or something that a program has written, waits on standard input. Not whether one may still
    write: nobody should wait for that."""
    try:
        descriptor = sys.stdin.fileno()
        kind = os.fstat(descriptor)
        if stat.S_ISREG(kind.st_mode):
            return os.lseek(descriptor, 0, os.SEEK_CUR) < kind.st_size
        waits = stat.S_ISFIFO(kind.st_mode) and bool(select.select([descriptor], [], [], 0)[0])
        return waits and isinstance(sys.stdin.buffer, BufferedReader) and bool(sys.stdin.buffer.peek(1))
    except (AttributeError, OSError, ValueError):  # there is no standard input, or it is no file of the system's
        return False
