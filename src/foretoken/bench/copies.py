"""What a model's low-bit copies cost beside the model: `python -m foretoken.bench.copies --out results/NAME.json`.

A Llama of the 1b shape with random weights (their values cost nothing): how long casting takes, the median of three
after one that does not count; then single tokens and passes of several rows of the model and of its copies, in turn, as
shares of what the bandwidth measured beside each allows. With `--llama-python PYTHON`, a Python that has
llama-cpp-python and gguf, llama.cpp's Q4_0 of the same weights runs in turn with them. A turn is the same for all: the
bandwidth, a pass that does not count, then three that do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import torch

from foretoken.api.build import load
from foretoken.api.levels import DRAFT_INPUTS
from foretoken.bench.ceilings import Ceiling
from foretoken.bench.passes import SHAPE, write_checkpoint
from foretoken.bench.script import carry_out
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.rows import chain
from foretoken.errors import ForetokenError, InputError
from foretoken.formats import format_of
from foretoken.kernels import native
from foretoken.prices.measuring import read_prompt

ROWS = (1, 2, 4, 8, 16)
STEPS = 8  # of a chain in one call: what a draft is
COUNTED = 3  # casts of a format, and passes of a turn, after one that does not count
PEER = Path(__file__).parent / "peers" / "llamacpp.py"


def cast(target: Decoder, label: str, inputs: str) -> tuple[Decoder, float]:
    """A copy of a model, and the seconds that a cast took."""
    seconds = []
    for _ in range(1 + COUNTED):
        weights = None  # no two copies at a time
        began = perf_counter()
        weights = quantised(target.weights, target.config, format_of(label), inputs=inputs)
        seconds.append(perf_counter() - began)
    assert weights is not None
    return Decoder(target.config, weights, threads=target.threads), statistics.median(seconds[1:])


def one_pass(decoder: Decoder, cache: Cache, rows: int) -> float:
    """Seconds of a pass, what its rows choose with it."""
    placed = chain(cache, [5] * rows)
    began = perf_counter()
    decoder.run(placed)
    seconds = perf_counter() - began
    cache.discard()
    return seconds


def steps(decoder: Decoder, cache: Cache) -> float:
    """Seconds a token of a chain that is drafted in one call."""
    began = perf_counter()
    decoder.draft_chain(cache, 5, STEPS)
    seconds = perf_counter() - began
    cache.discard()
    return seconds / STEPS


def turn(run: Callable[[], float]) -> list[float]:
    """Seconds of the passes that count."""
    return [run() for _ in range(1 + COUNTED)][1:]


@contextmanager
def llama_cpp(python: str, checkpoint: Path, work: Path, threads: int) -> Iterator[_LlamaCpp]:
    """The peer's program while it runs."""
    command = [python, str(PEER), str(checkpoint), str(work), str(threads)]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise InputError(f"{python} does not run ({error.strerror}); expected a Python with llama-cpp-python") from None
    with process:  # closes its input, which ends it
        assert process.stdin is not None
        assert process.stdout is not None
        yield _LlamaCpp(process.stdin, process.stdout)


class _LlamaCpp:
    def __init__(self, to: IO[str], answers: IO[str]) -> None:
        self._to = to
        self._answers = answers
        self.about: dict[str, str] = self._answer()

    def turn(self, format: str, rows: int) -> list[float]:
        """Seconds of the passes that count."""
        print(format, rows, 1 + COUNTED, file=self._to, flush=True)
        seconds: list[float] = self._answer()
        return seconds[1:]

    def _answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise ForetokenError("llama.cpp's program has ended; what it says is above")
        return json.loads(line)


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    if min(args.layers, args.rounds) < 1:
        raise InputError("--layers or --rounds is below 1; expected 1 or more")
    threads, isa = torch.get_num_threads(), native.isa()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_checkpoint(folder, args.layers)
        target = load(folder, draft="none", weights="mapped").target
        decoders, casts = {"bfloat16": load(folder, draft="none", weights="copied").target}, {}
        for label in args.format:
            decoders[label], casts[label] = cast(target, label, DRAFT_INPUTS)
        record: dict[str, Any] = {
            "model": {**SHAPE, "num_hidden_layers": args.layers, "bytes": size},
            "threads": threads,
            "isa": isa,
            "inputs": DRAFT_INPUTS,
        }
        ceiling = Ceiling(threads, isa)
        if args.llama_python is None:
            return {**record, **_in_turn(decoders, casts, ceiling, args.rounds, None)}
        with llama_cpp(args.llama_python, folder, folder, threads) as peer:
            measured = _in_turn(decoders, casts, ceiling, args.rounds, peer)
            return {**record, **measured, "llama_cpp": {**measured["llama_cpp"], **peer.about}}


def _once(decoder: Decoder, cache: Cache, kind: int | str) -> float:
    return one_pass(decoder, cache, kind) if isinstance(kind, int) else steps(decoder, cache)


def _in_turn(
    decoders: dict[str, Decoder], casts: dict[str, float], ceiling: Ceiling, rounds: int, peer: _LlamaCpp | None
) -> dict[str, Any]:
    caches = {label: read_prompt(decoder, 100) for label, decoder in decoders.items()}
    kinds: list[int | str] = [*ROWS, "draft"]
    seconds: dict[tuple[str, int | str], list[float]] = {(d, k): [] for d in decoders for k in kinds}
    shares: dict[tuple[str, int | str], list[float]] = {key: [] for key in seconds}
    others: dict[int, list[float]] = {rows: [] for rows in ROWS}
    bandwidths: list[float] = []
    for _ in range(rounds):
        for kind in kinds:
            for label, decoder in decoders.items():
                bandwidths.append(ceiling.measure())
                took = turn(partial(_once, decoder, caches[label], kind))
                seconds[label, kind] += took
                shares[label, kind] += [decoder.weights.nbytes / each / bandwidths[-1] for each in took]
            if peer is not None and isinstance(kind, int):
                bandwidths.append(ceiling.measure())
                others[kind] += peer.turn("q4_0", kind)
    results = [
        {
            "weights": label,
            "bytes": decoders[label].weights.nbytes,
            "rows": kind,
            "milliseconds": round(1e3 * statistics.median(seconds[label, kind]), 2),
            "fraction_of_ceiling": round(statistics.median(shares[label, kind]), 3),
            "of_bfloat16": round(
                statistics.median(seconds[label, kind]) / statistics.median(seconds["bfloat16", kind]), 3
            ),
        }
        for label, kind in seconds
    ]
    record: dict[str, Any] = {
        "read_bandwidth_gb_per_s": round(statistics.median(bandwidths) / 1e9, 2),
        "cast_seconds": {label: round(took, 2) for label, took in casts.items()},
        "passes": results,
    }
    if peer is not None:
        record["llama_cpp"] = {
            "format": "Q4_0",
            "milliseconds": {rows: round(1e3 * statistics.median(each), 2) for rows, each in others.items()},
            "faster_than_it": {
                label: {
                    rows: round(statistics.median(others[rows]) / statistics.median(seconds[label, rows]), 2)
                    for rows in ROWS
                }
                for label in decoders
            },
        }
    return record


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What low-bit copies cost beside their model.")
    parser.add_argument(
        "--format", nargs="+", default=["mxfp4", "int8", "int4", "int3", "int2"], help="of the copies (%(default)s)"
    )
    parser.add_argument(
        "--layers", type=int, default=SHAPE["num_hidden_layers"], help="of the model that is measured (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of each; medians (%(default)s)")
    parser.add_argument("--llama-python", help="a Python that has llama-cpp-python and gguf, for llama.cpp's Q4_0")
    carry_out("copies", parser, _measure)


if __name__ == "__main__":
    main()
