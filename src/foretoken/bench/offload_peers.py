"""Other engines under a bound of memory: accelerate's disk offload, and llama.cpp on weights that it maps.

The bound is the system's: a command that the user gives runs the engine under it, and is asked first what it leaves. An
engine that cannot be measured so has a row that says why.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Self

import psutil

from foretoken.bench.bounded import expect_bounded, peak_memory, read_bytes
from foretoken.bench.script import suite_for
from foretoken.bench.side_by_side.environments import Environment, default_place, expect_ready
from foretoken.bench.side_by_side.peers import PROGRAMS
from foretoken.bench.side_by_side.process import PeerError, PeerProcess, Start
from foretoken.bench.suites import first_turn
from foretoken.common.source import resolve
from foretoken.errors import ForetokenError
from foretoken.text.tokenizer import Tokenizer

# by name: the peer whose environment it runs in, and its program
PEERS = {"accelerate": ("transformers", "accelerate_disk.py"), "llamacpp": ("llamacpp", "llamacpp_mapped.py")}
_PATIENCE = 3600.0  # seconds for an answer


@dataclass(frozen=True)
class Asked:
    """What is measured. prompts: token ids. tokens: new ones of each prompt. within: the
    command that bounds memory, and `bound` its bytes. start: how the program is started without that command."""

    name: str
    prompts: Sequence[tuple[int, ...]]
    tokens: int
    within: Sequence[str]
    bound: int
    start: Start

    @classmethod
    def of(cls, name: str, arguments: argparse.Namespace, bound: int, threads: int) -> Self:
        """From the command line of `foretoken.bench.offload`. threads: of the arithmetic."""
        checkpoint = resolve(arguments.model).resolve()
        suite, tokenizer = suite_for(arguments.model, arguments.prompts, arguments.count), Tokenizer.load(checkpoint)
        prompts = [first_turn(prompt, tokenizer) for prompt in suite.prompts]
        start = Start(checkpoint, arguments.work.resolve(), threads, None, _PATIENCE)
        return cls(name, prompts, arguments.peer_tokens, arguments.within, bound, start)


def measure(asked: Asked) -> dict[str, Any]:
    """The row of an engine: its speed, its peak memory and what it read; or why there is none."""
    try:
        return {"peer": asked.name, **_measured(asked)}
    except (PeerError, ForetokenError) as error:
        return {"peer": asked.name, "error": str(error)}


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    if "error" in row:
        return f"{row['peer']:40} not measured: {row['error']}"
    return (
        f"{row['peer']:40} {row['tokens_per_second']:8.2f} tokens/s, {row['bytes_read_per_token'] / 1e6:.0f} MB read "
        f"for a token, peak {row['peak_memory'] / 1e6:6.0f} MB"
    )


def _measured(asked: Asked) -> dict[str, Any]:
    left = expect_bounded(asked.within, asked.bound)
    peer, program = PEERS[asked.name]
    found = expect_ready(peer, default_place())
    environment = Environment(replace(found.peer, name=asked.name, program=PROGRAMS / program), found.python, None)
    asked.start.work.mkdir(parents=True, exist_ok=True)
    with PeerProcess(environment, asked.start):
        pass  # what it makes of the model is made now: that may take more memory
    for file in (*asked.start.checkpoint.iterdir(), *asked.start.work.iterdir()):
        _forget(file)
    rows = []
    with PeerProcess(environment, replace(asked.start, within=asked.within)) as process:
        its = _program(process.process, environment.peer.program)
        for number, prompt in enumerate(asked.prompts):
            _, first = process.ask("plain", prompt, 1)
            before = read_bytes(its)
            _, whole = process.ask("plain", prompt, asked.tokens)
            speed = (asked.tokens - 1) / max(whole - first, 1e-9)
            rows.append({"prompt": number, "tokens_per_second": speed, "bytes_read": read_bytes(its) - before})
        peak = peak_memory(its)
    return {
        "settings": process.about["modes"]["plain"]["settings"],
        "versions": process.about.get("versions"),
        "bytes_left": left,
        "tokens": asked.tokens,
        "tokens_per_second": round(geometric_mean(row["tokens_per_second"] for row in rows), 4),
        "bytes_read_per_token": round(sum(row["bytes_read"] for row in rows) / (len(rows) * asked.tokens)),
        "peak_memory": peak,
        "prompts": rows,
    }


def _program(started: int, program: Path) -> int:
    """The process that runs a program: the one that was started, or one that it has started."""
    first = psutil.Process(started)
    every = [first, *first.children(recursive=True)]
    found: int = next(each.pid for each in reversed(every) if str(program) in each.cmdline())
    return found


def _forget(file: Path) -> None:
    """Take a file out of the system's cache, where it would be in nobody's memory."""
    if file.is_file():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
