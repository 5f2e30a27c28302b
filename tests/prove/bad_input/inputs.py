"""Cases in which what is read is bad: prompts, what is said in a talk, records; and the place that is written to."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from tests.prove.bad_input.alter import ODD, alter_bytes, alter_json, spoil, written
from tests.prove.bad_input.case import Case
from tests.prove.bad_input.sandbox import Command
from tests.prove.bad_input.stage import COPY, PROMPT, WORDS, lend

_TEXTS: tuple[bytes, ...] = (
    b"",
    b"\n",
    b"\r\n",
    b"\0",
    b"a\0b",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc3",
    b"caf\xe9",
    b"\xef\xbb\xbfdef f():",
    b"\x1b[2J" * 9,
    b"def f():\n" * 3000,
    b"x" * 500_000,
    b" " * 100_000,
    "\u202e\u0301\u0301".encode() * 99,
    "👨‍👩‍👧".encode() * 40,
    b"\r" * 99,
    b"<|endoftext|>" * 5,
    b"<|pad|>",
    b"\xf4\x90\x80\x80",
    b"\xc0\x80",
    b"/exit",
    b"-- ",
    b"--help",
    PROMPT.encode(),
)
_PLACES = (
    "nofolder/out.json",
    ".",
    "",
    "/",
    "/dev/full",
    "/dev/null",
    "/dev/zero",
    "out.json/",
    "x" * 300,
    "a/" * 3000 + "b",
    "/proc/out.json",
    "/sys/out.json",
    "out",
    "out.txt",
    "plain",
    "plain/config.json",
    "record.json/out.json",
    "loop",
    "there",
    os.fsdecode(b"\xff.json"),
    "~nobody/x.json",
    "~",
    "-",
    "--",
    "dangling",
    "\x1b[2J.json",
    "two\nlines.json",
    "out.svg",
    "out.png",
    "out.json",
    "record.json",
)


def prompts(dice: random.Random, folder: Path, stage: Path) -> Case:
    """A prompt as an argument, in a file and on standard input."""
    text = dice.choice(_TEXTS) if dice.random() < 0.7 else alter_bytes(PROMPT.encode(), dice)[0]
    way, more = (
        dice.randrange(4),
        dice.choice(((), ("--json",), ("--stop", "\n"), ("--temperature", "1"), ("--draft", "int4"))),
    )
    words = ["generate", "--model", "stdlib-1m", *WORDS, *more]
    shown = f"{text[:20]!r} ({len(text)} bytes)"
    if way == 0:
        return Case(f"argument {shown}", Command([*words, "--", os.fsdecode(text.replace(b"\0", b""))]))
    if way == 1:
        (folder / "prompt").write_bytes(text)
        return Case(f"file {shown}", Command([*words, "--prompt-file", "prompt"]))
    if way == 2:
        stdin = None if dice.random() < 0.2 else text
        return Case(f"standard input {shown if stdin is not None else 'closed'}", Command(words, stdin))
    place = dice.choice(_PLACES[:-3])
    if place == "/dev/zero":
        return Case("endless prompt", Command([*words, "--prompt-file", place], memory=1 << 28))
    (folder / "there").write_bytes(text)
    (folder / "loop").symlink_to("loop")
    return Case(
        f"prompt file {place[:30]!a}",
        Command([*words, "--prompt-file", place, *(("also",) if dice.random() < 0.1 else ())]),
    )


def talks(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Lines of a talk from a pipe."""
    lend(stage, ("talk",), folder)
    lines = [
        dice.choice((*_TEXTS, b"/stats", b"/reset", b"/nothing", b"//x", b"/", b"/\xff", b"/help\x1b[2J"))
        for _ in range(dice.randint(1, 4))
    ]
    words = ["chat", "--model", "talk", *WORDS]
    if dice.random() < 0.3:
        words += ["--system", os.fsdecode(dice.choice(_TEXTS).replace(b"\0", b""))]
    if dice.random() < 0.3:
        words += ["--plain"]
    stdin = None if dice.random() < 0.1 else dice.choice((b"\n", b"\r\n", b"\0")).join(lines)
    return Case(f"lines {str([line[:12] for line in lines])[:90]}", Command(words, stdin))


def records(dice: random.Random, folder: Path, stage: Path) -> Case:
    """A record of a generation."""
    source = dice.choice(("record.json", "sampled.json"))
    lend(stage, ("plain", source), folder)
    path = folder / source
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"] = "plain"
    way = dice.random()
    if way < 0.55:
        told = []
        for _ in range(dice.choice((1, 1, 2))):
            content, what = alter_json(content, dice)
            told.append(what)
        path.write_bytes(written(content))
        what = ", ".join(told)
    elif way < 0.75:
        name = dice.choice([*content["settings"], "model", "revision", "prompt", "files", "arithmetic", "tokens"])
        (content["settings"] if name in content["settings"] else content)[name] = value = dice.choice(ODD)
        path.write_bytes(written(content))
        what = f"{name} is {str(value)[:40]!a}"
    elif way < 0.8:
        path.write_bytes(written(content)[:-1] + b', "version": 3, "tokens": []}')
        what = "keys twice"
    elif way < 0.95:
        data, what = alter_bytes(written(content), dice)
        path.write_bytes(data)
    else:
        what = spoil(path, dice)
    more = dice.choice(
        (
            (),
            (),
            ("--model", "plain"),
            ("--draft", "none"),
            ("--threads", "1"),
            ("--draft", "int4", "--model", "stdlib-1m"),
        )
    )
    return Case(f"record: {what}", Command(["verify", path.name, *more]))


def places(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Where something is to be written: no place for it, a full disk, an output that nobody takes."""
    lend(stage, ("plain", "record.json"), folder)
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("new.json")
    (folder / "there").write_bytes(b"precious")
    place = dice.choice(_PLACES)
    full = dice.choice((None, None, 2000, 20_000, 300_000))
    stdout = dice.choice(("file", "file", "file", "/dev/full", "closed", "gone"))
    words: list[str] = dice.choice(
        (
            ["generate", "--model", "plain", *WORDS, "--record", place, "--", PROMPT],
            ["generate", "--model", "plain", *WORDS, "--plot", place, "--", PROMPT],
            [
                "generate",
                "--model",
                "plain",
                *WORDS,
                "--record",
                place,
                "--plot",
                dice.choice(_PLACES),
                "--json",
                "--",
                PROMPT,
            ],
            ["quantize", "plain", "--format", "int4", "--threads", "1", *dice.choice(((), ("--force",))), "--", place],
            ["quantize", "plain", "--format", "mxfp4", "--threads", "1"],
            ["verify", place],
            ["generate", "--model", place, *WORDS, "--", PROMPT],
            ["generate", "--stats", "--show-origins", "--draft", "stdlib-1m", *WORDS, "--", PROMPT],
            ["bench", "kernels", "--json", dice.choice(_PLACES[:18]), "--threads", "0"],
        )
    )
    may_write = {
        name
        for name in words
        if name
        and (name == "-" or not name.startswith(("-", "/")))
        and name not in ("plain", "there", ".", "plain/config.json")
    }
    if words[0] == "quantize":
        may_write |= {"plain-mxfp4"}
    if "dangling" in words:
        may_write |= {"new.json"}
    return Case(
        f"{words[0]} at {place[:30]!a}, files of {full} bytes, output {stdout}",
        Command(words, PROMPT.encode(), stdout, full),
        tuple(name.rstrip("/") for name in may_write if not name.startswith(COPY)),
    )
