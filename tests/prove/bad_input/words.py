"""Cases in which the command line is bad: options, drafts, and words that are no command."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.prove.bad_input.case import Case, generation
from tests.prove.bad_input.sandbox import Command
from tests.prove.bad_input.stage import PROMPT, lend

_NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "0.5",
    "1e400",
    "-1e400",
    "nan",
    "inf",
    "-inf",
    "1e-400",
    "٣",
    "²",
    "1_000",
    " 5 ",
    "+5",
    "0x10",
    "1e3",
    "",
    "9" * 30,
    "9" * 5000,
    "x",
    "\x1b[2J",
    os.fsdecode(b"\xff"),
    "1,5",
    "--",
    "-",
    "4096",
    "4097",
    "65536",
    "256",
    "257",
    "2147483648",
    "18446744073709551615",
    "18446744073709551616",
    "True",
    "None",
    "0.001",
    "0.0009",
    "100",
    "100.1",
    "-0",
    "00",
    "½",
    "1" + "0" * 400,
)
_WORDS = (
    "",
    " ",
    "auto",
    "AUTO",
    "none",
    "float32",
    "float64",
    "bf16",
    "cuda",
    "cuda:0",
    "cuda:999",
    "cuda:-1",
    "cpu:0",
    "exact",
    "algorithmic",
    "rejection",
    "walk",
    "mapped",
    "copied",
    "é",
    "\x1b[31m",
    "x" * 5000,
    os.fsdecode(b"\xff"),
    "a\nb",
    "main",
    "٣",
    "mps",
    "meta",
)
_NUMERIC = (
    "max-new-tokens",
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repetition-penalty",
    "presence-penalty",
    "frequency-penalty",
    "seed",
    "n",
    "logprobs",
    "threads",
    "num-speculative-tokens",
)
_VERBAL = ("dtype", "device", "promise", "weights", "rule", "revision")
_FLAGS = ("--no-cache", "--json", "--audit", "--stats", "--show-origins", "--ignore-eos")
_BIASES = (
    "5=1",
    "5=-1000",
    "5=1001",
    "5",
    "=",
    "5=",
    "=5",
    "4096=1",
    "-1=1",
    "5=nan",
    "5=inf",
    "5=1e5",
    "٣=1",
    "5=٣",
    "99999999999=1",
    "5=1=1",
    "5=" + "9" * 40,
    "9999999999=0",
    "5=--1",
    "5=.",
    "5=e",
    os.fsdecode(b"5=\xff"),
    "",
)


def options(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Numbers, words and biases that make no sense, or much."""
    words, told = [], []
    for _ in range(dice.choice((1, 1, 2, 3))):
        way = dice.random()
        if way < 0.6:
            name, value = dice.choice(_NUMERIC), dice.choice(_NUMBERS)
        elif way < 0.75:
            name, value = dice.choice(_VERBAL), dice.choice(_WORDS)
        elif way < 0.9:
            name, value = "logit-bias", dice.choice(_BIASES)
        else:
            name, value = "stop", dice.choice(("", "\n", "x", "\x1b", os.fsdecode(b"\xff"), "é" * 5000, "�", "\\n"))
        words += [f"--{name}={value}"] if dice.random() < 0.8 else [f"--{name}", value]
        told.append(f"--{name} {value[:30]!a}")
    words += [flag for flag in _FLAGS if dice.random() < 0.15]
    if dice.random() < 0.4:
        words += ["--temperature", "0.8"]
    return Case(", ".join(told), Command(generation("stdlib-1m", *words)))


_NAMES = (
    "none",
    "lookup",
    "fractal",
    "automaton",
    "int4",
    "int2",
    "int3",
    "int8",
    "mxfp4",
    "int4-g64",
    "int4-g32",
    "int4-g65",
    "int4-g0",
    "int8-g64",
    "mxfp4-g32",
    "stdlib-1m",
    "stdlib-7m",
    "lokup",
    "int5",
    "",
    " ",
    ".",
    "..",
    "/",
    "~",
    "~nobody",
    "./plain",
    "plain",
    "/dev/null",
    "a/b",
    "a/b/c",
    "nothing",
    "\x1b[2J",
    os.fsdecode(b"\xff"),
    "x" * 5000,
    "é",
    "int4-g" + "9" * 40,
    "target",
    "int٤",
    "owner/" + "x" * 200,
    "INT4",
    "record.json",
    "-",
    "a b",
)
_KEYS = (
    "k",
    "depth",
    "nodes",
    "tokens",
    "shape",
    "sharpness",
    "confidence",
    "format",
    "group",
    "inputs",
    "kv",
    "own-cache",
    "own-layers",
    "own-head",
    "min_match",
    "n",
    "w",
    "layers",
    "slots",
    "max_match",
    "x",
    "",
    "K",
    " k",
    "k ",
    "٣",
    "k\n",
    "format=format",
)
_VALUES = (
    "0",
    "1",
    "2",
    "4",
    "9999",
    "10000",
    "-1",
    "0.5",
    "٣",
    "",
    "x",
    "beam",
    "full",
    "int4",
    "int8",
    "bf16",
    "64",
    "32",
    "1e3",
    "nan",
    "0.2",
    "9" * 50,
    "+1",
    "01",
    "=",
    "mxfp4",
    "int4-g32",
    "fixed",
    "recycle",
    "0+1",
    "1+0",
    "0+0",
    "1+",
    "+".join(map(str, range(40))),
    "0+9999",
    "confidence",
    "dynamic",
)


def drafts(dice: random.Random, folder: Path, stage: Path) -> Case:
    """What drafts, written with colons and commas."""
    lend(stage, ("plain", "record.json"), folder)
    levels = []
    for _ in range(dice.choice((1, 1, 1, 2, 2, 3))):
        level = dice.choice(_NAMES[:19] if dice.random() < 0.6 else _NAMES)
        for _ in range(dice.choice((0, 0, 1, 1, 2, 3))):
            key = dice.choice(_KEYS[:16] if dice.random() < 0.7 else _KEYS)
            level += f":{key}{dice.choice(('=', '=', '=', '=', '', '+', '=='))}{dice.choice(_VALUES)}"
        levels.append(level)
    spec = dice.choice((",", ",", ",", ", ", ",,", "+", ";")).join(levels)
    if dice.random() < 0.05:
        spec = ",".join(["int4"] * dice.choice((3, 40))) + ",lookup"
    more = dice.choice(
        (
            (),
            ("--num-speculative-tokens", dice.choice(_NUMBERS)),
            ("--rule", "rejection", "--temperature", "1"),
            ("--weights", "copied"),
            ("--no-cache",),
        )
    )
    if dice.random() < 0.15:
        return Case(
            f"verify --draft {spec[:60]!a}", Command(["verify", "record.json", "--model", "plain", f"--draft={spec}"])
        )
    return Case(
        f"--draft {spec[:60]!a} {' '.join(more)[:40]!a}", Command(generation("plain", f"--draft={spec}", *more))
    )


_COMMANDS = (
    ["bench"],
    ["bench", "nothing"],
    ["bench", "kernels", "--rounds", "0"],
    ["bench", "kernels", "--rounds", "100"],
    ["bench", "kernels", "--rounds", "x"],
    ["bench", "kernels", "--format", "int5"],
    ["bench", "kernels", "--level", "avx1024"],
    ["bench", "kernels", "--threads", "0"],
    ["bench", "kernels", "--plot", "out.gif"],
    ["bench", "kernels", "--format", "", "--level", ""],
    ["bench", "kernels", "x"],
    ["generat", "x"],
    ["--version"],
    ["--help"],
    ["generate", "--nothing"],
    ["generate", "a", "b"],
    ["doctor", "x"],
    ["doctor"],
    ["demo", "x"],
    ["tune"],
    ["tune", "mxfp4"],
    ["tune", "fractal", "a", "b"],
    ["recommend", "a", "b"],
    ["recommend", "nothing"],
    ["recommend", "stdlib-1m", "--temperature", "-1"],
    ["recommend", "stdlib-1m", "--prompts", "nothing"],
    ["reproduce"],
    ["reproduce", "nothing"],
    ["reproduce", "fractal", "--scale", "large"],
    ["verify"],
    ["verify", "a", "b"],
    ["quantize"],
    ["quantize", "stdlib-1m"],
    ["quantize", "stdlib-1m", "--format", "int4"],
    ["quantize", "plain", "--format", "int9"],
    ["quantize", "plain", "--format", "int4", "--group", "7"],
    ["quantize", "plain", "--format", "mxfp4", "--group", "64"],
    ["quantize", "nothing", "--format", "int4"],
    ["quantize", "plain", "--format", "int8", "--quantizer", "hqq"],
    ["quantize", "plain", "--format", "int4", "--quantizer", "gptq"],
    ["quantize", "plain", "--format", "int4", "--group", "9" * 30],
    ["quantize", "plain", "--format", ""],
    ["quantize", "plain", "plain", "--format", "int4"],
    ["quantize", "plain", "plain", "--format", "int4", "--force"],
    ["quantize", "plain", ".", "--format", "int4", "--force"],
    ["quantize", "plain", "out", "--format", "int4", "--revision", "x"],
    ["quantize", "record.json", "--format", "int4"],
    ["quantize", "a/b", "out", "--format", "int4"],
    ["generate", "--model", "a/b", "x"],
    ["generate", "--model", "a/b/c", "x"],
    ["generate", "--model", "", "x"],
    ["generate", "--model", "record.json", "x"],
    ["generate", "--model", "plain", "--revision", "x", "x"],
    ["generate", "--model", "../x", "x"],
    ["generate", "--model", os.fsdecode(b"\xff"), "x"],
    ["generate", "--model", "x" * 300, "x"],
    ["generate", "--model", "a" * 200 + "/b", "x"],
    ["generate", "--model", "a/b@c", "x"],
    ["generate", "--model", "--", "x"],
    ["generate", "--json", "--show-origins", "x"],
    ["generate", "--n", "2", "--record", "out.json", "x"],
    ["chat", "x"],
    ["chat", "--model", "plain"],
    ["chat", "--plain", "--system", "x", "--model", "plain"],
    ["chat", "--n", "2"],
    ["verify", "record.json", "--model", "a/b"],
    ["verify", "record.json", "--threads", "0"],
    ["verify", "record.json", "--threads", "9" * 30],
    ["verify", "plain/config.json"],
    ["verify", "plain"],
    [""],
    ["-"],
    ["--"],
    ["--nothing"],
    ["\x1b[2J"],
    [os.fsdecode(b"\xff")],
)


def commands(dice: random.Random, folder: Path, stage: Path) -> Case:
    """Words that are no command, and arguments that it cannot have."""
    lend(stage, ("plain", "record.json"), folder)
    words = list(dice.choice(_COMMANDS))
    if dice.random() < 0.25:
        words.insert(
            dice.randrange(len(words) + 1),
            dice.choice(("--nothing", "--threads", "-x", "--model=", "--json", "é", "--", os.fsdecode(b"--\xff"))),
        )
    return Case(str(words)[:90], Command(words, PROMPT.encode()))
