"""Cases of what measures and rehearses: suites of prompts, records of measurements, shapes of models."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.prove.bad_input.alter import ODD, alter_bytes, alter_json, alter_line, spoil, written
from tests.prove.bad_input.case import Case
from tests.prove.bad_input.sandbox import Command
from tests.prove.bad_input.stage import BENCH, SHAPE, lend

_SUITES = (
    "heldout-20",
    "heldout-21",
    "",
    ".",
    "/",
    "/dev/null",
    "/dev/zero",
    "questions",
    "x" * 300,
    "gsm8k:",
    "é",
    "\x1b[2J",
)
_SHAPES = (
    "",
    "x",
    "llama-9b",
    "=",
    "hidden=0",
    "hidden=128",
    "hidden=128,hidden=128",
    "llama-3.2-1b",
    "LLAMA-68M",
    "hidden=1" + "0" * 30,
    "hidden=256,layers=4,heads=4,kv-heads=3,intermediate=512,vocab=4096",
    "hidden=256,layers=4,heads=3,kv-heads=1,intermediate=512,vocab=4096",
    "hidden=256,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=4096,tied=maybe",
    "hidden=256,layers=4,heads=4,kv-heads=2,intermediate=512",
    "hidden=256,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=4096,type=gpt",
    "hidden=256,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=7",
    "hidden=256,layers=1,heads=4,kv-heads=2,intermediate=512,vocab=4096",
    "hidden=64,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=4096",
    "hidden=256,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=4096,head-dim=63",
    "hidden=16777216,layers=16777216,heads=4,kv-heads=2,intermediate=9,vocab=9",
    "hidden=256,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=4096",
    "hidden=256,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=4096,head-dim=64",
    "hidden=٣,layers=1",
    "hidden=256;layers=4",
    "hidden=-1,layers=4,heads=4,kv-heads=2,intermediate=512,vocab=4096",
    "\x1b[2J=1",
    "qwen2.5-7b",
    "hidden=256,layers=4,heads=8,kv-heads=4,intermediate=512,vocab=4096,head-dim=64,type=qwen2,tied=no",
)


def suites(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Prompts to measure with, and how often."""
    lend(stage, ("questions.jsonl",), folder)
    words, path = list(BENCH), folder / "questions.jsonl"
    way = dice.random()
    if way < 0.45:

        def odder(changed: Any, what: str) -> str:
            if dice.random() >= 0.4:
                return what
            key = dice.choice(("turns", "prompt", "prompt_tokens", "question_id", "category", "id", "chat"))
            changed[key] = dice.choice((*ODD, [4096], [-1], ["x", 3], [[1], [2]], ["x"] * 200))
            return f"{key} is {str(changed[key])[:30]!a}"

        what = alter_line(path, dice, odder)
    elif way < 0.7:
        data, what = alter_bytes(path.read_bytes(), dice)
        path.write_bytes(data)
        if dice.random() < 0.3:
            name = dice.choice(("questions.txt", "questions", "questions.json"))
            path.rename(folder / name)
            words[words.index("questions.jsonl")] = name
    elif way < 0.78:
        what = spoil(path, dice)
    elif way < 0.85:
        words[words.index("questions.jsonl")] = what = dice.choice(_SUITES)
    else:
        option = dice.choice(
            (
                "num-prompts",
                "repeats",
                "max-new-tokens",
                "temperature",
                "draft",
                "threads",
                "weights",
                "json",
                "plot",
                "answers",
            )
        )
        value = dice.choice(
            (
                "0",
                "-1",
                "nan",
                "1e400",
                "9" * 30,
                "x",
                "",
                "int5",
                ".",
                "nofolder/x.png",
                "/dev/full",
                "x" * 300,
                "copied",
                "1",
            )
        )
        if option == "repeats" and value == "9" * 30:
            value = "-9"  # what it asks for would be done
        words += [f"--{option}", value]
        what = f"--{option} {value[:30]!a}"
    return Case(f"bench decode, {what[:90]!a}", Command(words), (*MADE, "1", "x", "nofolder/x.png"))


def measured(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Records of measurements, of ours and of peers, for a report."""
    of_peers = dice.random() < 0.4
    lend(stage, ("bench.json", "peers.json"), folder)
    path = folder / ("peers.json" if of_peers else "bench.json")
    way = dice.random()
    if way < 0.7:
        content = json.loads(path.read_text(encoding="utf-8"))
        told = []
        for _ in range(dice.choice((1, 1, 2))):
            content, what = alter_json(content, dice)
            told.append(what)
        rows = content.get("rows" if of_peers else "runs")
        if dice.random() < 0.4 and isinstance(rows, list) and rows:
            row = dice.choice(rows)
            if isinstance(row, dict) and row:
                key = dice.choice(list(row))
                row[key] = dice.choice((*ODD, 10**400, "\x1b[2J"))
                told.append(f"{key} of a row is {str(row[key])[:30]!a}")
        path.write_bytes(written(content))
        what = ", ".join(told)
    elif way < 0.9:
        data, what = alter_bytes(path.read_bytes(), dice)
        path.write_bytes(data)
    else:
        what = spoil(path, dice)
    more = dice.choice(
        (
            (),
            (),
            ("bench.json",),
            ("peers.json",),
            ("nothing.json",),
            ("--out", "out.md"),
            ("--out", "nofolder/out.md"),
            ("--out", "/dev/full"),
        )
    )
    written_at = tuple(f"{folder}{name}" for folder in ("", "nofolder/") for name in ("out.md", "out-bench.png"))
    return Case(f"bench report, {what}", Command(["bench", "report", path.name, *more]), written_at)


MADE = ("bench.json", "bench.json.part", "lookup-temperature-0.jsonl", "none-temperature-0.jsonl")
_COMPUTED = ("date", "command", "weight_bytes", "runs", "samples", "read_bandwidth_gb_per_s")


def journals(dice: random.Random, folder: Path, stage: Path) -> Case:
    """The beginning of a measurement, with which it goes on."""
    lend(stage, ("questions.jsonl", "bench.json"), folder)
    record = json.loads((folder / "bench.json").read_bytes())
    (folder / "bench.json").unlink()  # a record that is there is not measured again
    asked = {key: value for key, value in record.items() if not key.startswith(_COMPUTED)}
    lines = [{"measuring": asked}]
    lines += [{**sample, "tokens": [[5] * turn for turn in sample["tokens"]]} for sample in record["samples"]]
    path, what = folder / "bench.json.part", "sound"
    way = dice.random()
    if way < 0.6:
        at = dice.randrange(len(lines))
        lines[at], what = alter_json(lines[at], dice)
    path.write_bytes(b"".join(written(line) + b"\n" for line in lines))
    if 0.6 <= way < 0.85:
        data, what = alter_bytes(path.read_bytes(), dice)
        path.write_bytes(data)
    elif 0.85 <= way < 0.95:
        what = spoil(path, dice)
    return Case(f"a journal, {what}", Command(list(BENCH)), ("bench.json", "bench.json.part"))


def rehearsals(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Shapes of models, what is rehearsed, and peers that are not there."""
    lend(stage, ("plain",), folder)
    (folder / "there").write_bytes(b"precious")
    places = ("there", "plain", ".", "/dev/full", "nofolder/out", "x" * 300, "")
    words = ["rehearse", "out" if dice.random() < 0.7 else dice.choice(places)]
    words += ["--shape", SHAPE if dice.random() < 0.4 else dice.choice(_SHAPES)]
    words += ["--model", dice.choice(("plain", "plain", "stdlib-1m", "nothing", "there", ""))]
    if dice.random() < 0.5:
        option = dice.choice(("vocab-size", "num-layers", "placement", "seed", "revision"))
        words += [
            f"--{option}",
            dice.choice(("0", "-1", "1", "2", "5", "9" * 30, "x", "first", "spread", "", "4096", "2000", "16777217")),
        ]
    if dice.random() < 0.2:
        words += ["--force"]
    if dice.random() < 0.2:
        words = dice.choice(
            (
                ["bench", "peers"],
                ["bench", "peers", "list", "--into", "nothing"],
                ["bench", "peers", "run", "--peer", "nobody", "--into", "."],
                ["bench", "peers", "run", "--peer", "llama.cpp", "--into", "nothing"],
                ["bench", "peers", "run", "--num-prompts", "0"],
                ["bench", "peers", "run", "--work", "nothing"],
                ["bench", "peers", "run", "--json", "/dev/full"],
                ["bench", "peers", "install", "nobody"],
                ["bench", "peers", "run", "--timeout", "nan", "--peer", "nobody"],
                ["doctor", "--model", "nothing", "--quick"],
                ["doctor", "--model", "plain", "--quick"],
                ["doctor", "--model", "there", "--quick", "--json"],
                ["doctor", "--quick", "x"],
            )
        )
    full = dice.choice((None, None, 20_000, 500_000))
    return Case(str(words)[:150], Command(words, file_bytes=full), ("out", "nofolder/out"))
