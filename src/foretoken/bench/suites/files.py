"""Prompts in files: the user's own, as JSON lines or text, and Spec-Bench's question.jsonl."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from foretoken.bench.suites.rows import Row, json_lines
from foretoken.bench.suites.types import Asked, Prompt
from foretoken.common.files import read_bytes, readable
from foretoken.errors import InputError

EXPECTED = (
    'expected question.jsonl of Spec-Bench, JSON lines of {"prompt": ...}, {"prompt_tokens": [...]} or '
    '{"turns": [...]} (.jsonl), a text (.txt) or a folder of texts'
)
_ASKED: dict[str, Callable[[Row], tuple[Asked, ...]]] = {
    "prompt": lambda row: (row.text("prompt"),),
    "prompt_tokens": lambda row: (row.tokens("prompt_tokens"),),
    "turns": lambda row: row.turns("turns"),
}


def text_prompts(path: Path) -> list[Prompt]:
    """The prompts of a text file, or of every .txt file of a folder in the order of names; each text is one prompt."""
    if not path.is_dir():
        return [_text_prompt(path)]
    with readable(path, "name a folder of .txt files"):
        files = sorted(file for file in path.iterdir() if file.suffix == ".txt" and file.is_file())
    if not files:
        raise InputError(f"the folder {path} holds no .txt file; {EXPECTED}")
    return [_text_prompt(file) for file in files]


def json_prompts(path: Path) -> tuple[list[Prompt], bool]:
    """The prompts of a file of JSON lines, and whether they are Spec-Bench's, by the first line."""
    prompts: list[Prompt] = []
    read: Callable[[Row], Prompt] | None = None
    lines: dict[str, int] = {}  # the line of each id
    for row in json_lines(path):
        read = read or (_question if "question_id" in row.values else _own)
        prompt = read(row)
        if prompt.id in lines:
            raise InputError(f"{row.where}: the id {prompt.id!r} is that of line {lines[prompt.id]}, expected another")
        lines[prompt.id] = row.number
        prompts.append(prompt)
    if not prompts:
        raise InputError(f"{path} holds no prompt; {EXPECTED}")
    return prompts, read is _question


def _question(row: Row) -> Prompt:
    return Prompt(row.name("question_id"), row.turns("turns", ids=False), row.name("category"), chat=True)


def _own(row: Row) -> Prompt:
    asked = [name for name in _ASKED if name in row.values]
    if len(asked) != 1:
        raise InputError(
            f"{row.where}: it has {' and '.join(asked) or 'nothing that is asked'}, expected one of {', '.join(_ASKED)}"
        )
    return Prompt(
        row.name("id") if "id" in row else f"line {row.number}",
        _ASKED[asked[0]](row),
        row.name("category") if "category" in row else "",
        row.truth("chat"),
    )


def _text_prompt(path: Path) -> Prompt:
    try:
        with readable(path, "name a file of text"):
            text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"{path}, line {line} is not UTF-8 (byte {error.start} of the file); expected text") from None
    text = text.removesuffix("\n").removesuffix("\r")  # without the last line's break, like a typed prompt
    if not text:
        raise InputError(f"{path} is empty; expected the text of a prompt")
    return Prompt(told(path), (text,))


def told(path: Path) -> str:
    """The name of a file or folder without its parent folders, as text that can be written whatever its bytes are."""
    return os.fsencode(path.absolute().name).decode("utf-8", "replace") or "/"
