"""Cases of what looks for drafts and measures papers again: `foretoken tune` and `foretoken reproduce`."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.prove.bad_input.alter import alter_bytes, alter_json, alter_line, spoil, written
from tests.prove.bad_input.case import Case
from tests.prove.bad_input.sandbox import Command
from tests.prove.bad_input.stage import REPRODUCE, TUNE, lend

_NUMBERS = ("0", "-1", "1", "nan", "1e400", "9" * 30, "x", "", "٣")
_NAMES = ("", "x", "int5", "mxfp4", "int8:32", "lookup", "fixed", ".", "\x1b[2J", "x" * 300)
_PLACES = ("nofolder/x.json", "/dev/full", ".", "", "there", "x" * 300, "x.png")
_OF_TUNING = {
    "num-prompts": _NUMBERS,
    "max-new-tokens": _NUMBERS,
    "repeats": ("0", "-1", "x", ""),
    "minutes": ("0", "-1", "nan", "1e400", "x", ""),
    "window": _NUMBERS,
    "format": _NAMES,
    "slots": _NAMES,
    "json": _PLACES,
    "plot": _PLACES,
    "prompts": ("", ".", "/dev/null", "heldout-21", "there"),
    "threads": ("0", "x", "9" * 30),
}
_OF_REPRODUCING = {
    "num-prompts": _NUMBERS,
    "max-new-tokens": ("0", "1", "-1", "nan", "9" * 30, "x", ""),
    "scale": ("paper", "Embedded", "", "x"),
    "only": ("table9", "", "figure3", "table1,table2", "\x1b[2J"),
    "model": ("nothing", "there", "", "a/b/c"),
    "models": ("nothing", ".", ""),
    "data": ("gsm8k=there", "x=y", "", "nothing", "heldout-21"),
    "out": ("nofolder", "there", "", "/dev/full"),
    "work": ("there", "/dev/null/x", ""),
}


def tuning(dice: random.Random, folder: Path, stage: Path) -> Case:
    """What is asked of a search, and its prompts."""
    lend(stage, ("questions.jsonl",), folder)
    (folder / "there").write_bytes(b"precious")
    words, path = list(TUNE), folder / "questions.jsonl"
    way = dice.random()
    if way < 0.2:
        what = alter_line(path, dice)
    elif way < 0.3:
        path.write_bytes(written({"turns": [[5, 6], [7]]}))
        what = "turns that are token ids"
    elif way < 0.4:
        what = spoil(path, dice)
    elif way < 0.5:
        words[2] = what = dice.choice(("nothing", "there", "", "a/b/c", "questions.jsonl"))
    else:
        words, what = _with_option(words, _OF_TUNING, dice)
    return Case(f"tune fractal, {what[:90]!a}", Command(words), ("tuned.json", "x.png"))


def reproductions(dice: random.Random, folder: Path, stage: Path) -> Case:
    """What is asked of a reproduction, and the record that it goes on with."""
    (folder / "there").write_bytes(b"precious")
    words = list(REPRODUCE)
    place = next(stage.glob("*-reproduce-fractal-embedded.json"))
    may_write = (place.name, f"{place.stem}.md", f"{place.stem}-figure3.png")
    way = dice.random()
    if way < 0.5:
        lend(stage, (place.name,), folder)
        content = json.loads((folder / place.name).read_bytes())
        told = []
        for _ in range(dice.choice((1, 1, 2, 4))):
            content, what = alter_json(content, dice)
            told.append(what)
        (folder / place.name).write_bytes(written(content))
        what = ", ".join(told)
    elif way < 0.6:
        lend(stage, (place.name,), folder)
        data, what = alter_bytes((folder / place.name).read_bytes(), dice)
        (folder / place.name).write_bytes(data)
    elif way < 0.7:
        lend(stage, (place.name,), folder)
        what = spoil(folder / place.name, dice)
    elif way < 0.75:
        words[1] = what = dice.choice(("Fractal", "", "x", "--"))
    else:
        words, what = _with_option(words, _OF_REPRODUCING, dice)
    return Case(f"reproduce, {what[:90]!a}", Command(words), may_write)


def _with_option(words: list[str], values: dict[str, tuple[str, ...]], dice: random.Random) -> tuple[list[str], str]:
    option = dice.choice(list(values))
    value = dice.choice(values[option])
    return [*words, f"--{option}={value}"], f"--{option} {value[:30]!a}"
