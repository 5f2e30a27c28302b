"""What a case is, and a generation to put it into."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.prove.bad_input.sandbox import Command
from tests.prove.bad_input.stage import BENCH, PROMPT, QUESTIONS, SHAPE, WORDS


@dataclass(frozen=True)
class Case:
    """A command with something bad in what it meets. may_write: where it may write, if it does not refuse."""

    what: str
    command: Command
    may_write: tuple[str, ...] = ()
    may_warn: bool = False  # libraries may say things of their own on standard error
    may_quote: bool = False  # what a template or a tokenizer's file makes a library say may be in the message


Make = Callable[[random.Random, Path, Path], Case]  # dice, the case's folder, the stage


def generation(model: str, *words: str, prompt: str = PROMPT) -> list[str]:
    """A short generation; later words win over earlier ones."""
    return ["generate", "--model", model, *WORDS, *words, "--", prompt]


def with_model(model: str, dice: random.Random, folder: Path) -> tuple[Command, tuple[str, ...]]:
    """Some command that reads a model in a case's folder, and what it may write."""
    (folder / "questions.jsonl").write_bytes(QUESTIONS)
    ways: list[tuple[Command, tuple[str, ...]]] = [
        (Command(generation(model)), ()),
        (Command(generation(model, "--draft", "none", "--json", "--weights", "copied")), ()),
        (Command(generation(model, "--draft", "int4,lookup", "--audit")), ()),
        (Command(generation(model, "--draft", "mxfp4:k=2:depth=3", "--temperature", "1", "--seed", "1")), ()),
        (Command(generation(model, "--dtype", dice.choice(("float32", "float16")), "--logprobs", "2")), ()),
        (Command(generation(model, "--record", "out.json", "--plot", "out.svg")), ("out.json", "out.svg")),
        (Command(generation("stdlib-1m", "--draft", f"./{model}")), ()),
        (Command(generation("stdlib-1m", "--draft", f"./{model}:format=int8,lookup", "--audit")), ()),
        (Command(generation(model, "--regex", "[a-z ]+")), ()),
        (Command(["chat", "--model", model, "--plain", *WORDS], b"import os\n\nimport\n"), ()),
        (Command(["quantize", model, "out", "--format", "int4", "--threads", "1"]), ("out",)),
        (Command(["rehearse", "out", "--model", model, "--shape", SHAPE]), ("out",)),
        (Command(["doctor", "--quick", "--model", model]), ()),
        (Command([*BENCH[:2], "--model", model, *BENCH[4:]]), ("bench.json", "bench.json.part")),
        (
            Command(["quantize", model, "--format", "int3", "--quantizer", "hqq", "--threads", "1"]),
            (f"{model}-int3-g64",),
        ),
    ]
    return dice.choice(ways)
