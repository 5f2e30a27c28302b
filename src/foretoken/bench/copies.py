"""What a model's low-bit copies cost beside the model: `python -m foretoken.bench.copies --out results/NAME.json`.

The model is a Llama of the 1b shape with random weights, whose values do not affect speed. A cast's time is the median
of three casts after one that does not count. Single tokens and passes of several rows, of the model and of its copies
in turn, are shares of what the bandwidth measured beside each allows. So are passes of the first copy behind long
texts, whose old keys and values it reads in int8 or as they are. With `--llama-python PYTHON`, a Python that has
llama-cpp-python and gguf, llama.cpp's Q4_0 of the same weights takes turns with them. Every turn measures the
bandwidth, then runs one pass that does not count and three that do.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from foretoken.api.build import load
from foretoken.api.levels import DRAFT_INPUTS
from foretoken.bench.ceilings import Ceiling
from foretoken.bench.passes import add_layers_and_rounds, checkpoint, one_pass, random_cache, seconds_on
from foretoken.bench.script import carry_out
from foretoken.bench.side_by_side.environments import Environment
from foretoken.bench.side_by_side.peers import PEERS
from foretoken.bench.side_by_side.process import PeerError, PeerProcess, Start
from foretoken.bench.turns import Timed, in_turn, memory_speed, some
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.weights import Weights
from foretoken.errors import InputError
from foretoken.formats import format_of
from foretoken.prices.measuring import clocked, read_prompt

Kind = int | str  # rows of a pass, or "draft"
ROWS = (1, 2, 4, 8, 16)
KINDS: tuple[Kind, ...] = (*ROWS, "draft")
LONG, LONG_ROWS = (1024, 4096, 16_384), (1, 4, 8)  # positions of long texts, and rows of passes behind them
STEPS = 8  # tokens of a draft, which is a chain in one call
COUNTED = 3  # casts of a format, and passes of a turn, after one that does not count
PEER, PEER_NAME = PEERS["llamacpp"], "llama.cpp"
TIMEOUT = 1800.0  # seconds that llama.cpp may be silent


def cast(target: Decoder, label: str) -> tuple[Decoder, float]:
    """A copy of a model, and the median seconds of a cast."""
    weights: list[Weights] = []

    def once() -> None:
        weights.clear()  # never two copies in memory
        weights.append(quantised(target.weights, target.config, format_of(label), inputs=DRAFT_INPUTS))

    seconds = some(partial(clocked, once), COUNTED, uncounted=1)()
    return Decoder(target.config, weights[0], threads=target.threads), statistics.median(seconds)


def steps(decoder: Decoder, cache: Cache) -> float:
    """Seconds per token of a chain that is drafted in one call."""
    return seconds_on(cache, decoder.draft_chain, cache, 5, STEPS) / STEPS


def llama_cpp(peer: PeerProcess, rows: int) -> list[float]:
    """Seconds of each of llama.cpp's passes that count."""
    seconds: list[float] = peer.told({"format": "q4_0", "rows": rows, "count": 1 + COUNTED})["seconds"]
    return seconds[1:]


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    try:
        return _measured(args)
    except PeerError as failed:
        raise InputError(f"llama.cpp: {failed}; expected a Python with llama-cpp-python and gguf") from None


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    if min(args.layers, args.rounds, *args.long) < 1:
        raise InputError("--layers, --rounds or --long has a number below 1; expected 1 or more")
    with checkpoint(args.layers) as (folder, _, about), ExitStack() as stack:
        target = load(folder, draft="none", weights="mapped").target
        decoders, casts = {"bfloat16": load(folder, draft="none", weights="copied").target}, {}
        for label in args.format:
            decoders[label], took = cast(target, label)
            casts[label] = round(took, 2)
        ceiling = Ceiling(about["threads"], about["isa"])
        peer: PeerProcess | None = None
        if args.llama_python is not None:
            environment = Environment(PEER, Path(args.llama_python), ())
            start = Start(folder, folder, about["threads"], None, TIMEOUT)
            peer = stack.enter_context(PeerProcess(environment, start))
        timed = in_turn(_runs(decoders, peer), args.rounds, ceiling)
        beside = long_texts(decoders, args.format[0], args.long, args.rounds, ceiling)
        record = {
            **about,
            "inputs": DRAFT_INPUTS,
            **memory_speed(timed.values()),
            "cast_seconds": casts,
            "passes": _results(decoders, timed),
            "long_texts": beside,
        }
        return record if peer is None else {**record, "llama_cpp": {**_beside(decoders, timed), **peer.about}}


def _runs(decoders: dict[str, Decoder], peer: PeerProcess | None) -> dict[tuple[str, Kind], Callable[[], list[float]]]:
    caches = {label: read_prompt(decoder, 100) for label, decoder in decoders.items()}
    runs: dict[tuple[str, Kind], Callable[[], list[float]]] = {}
    for kind in KINDS:
        for label, decoder in decoders.items():
            once = partial(steps, decoder, caches[label])
            if isinstance(kind, int):
                once = partial(one_pass, decoder, caches[label], kind)
            runs[label, kind] = some(once, COUNTED, uncounted=1)
        if peer is not None and isinstance(kind, int):
            runs[PEER_NAME, kind] = partial(llama_cpp, peer, kind)
    return runs


def long_texts(
    decoders: Mapping[str, Decoder], label: str, lengths: Sequence[int], rounds: int, ceiling: Ceiling
) -> list[dict[str, Any]]:
    """Passes behind long texts: the model's, and those of a copy that reads old keys and values as they are ("full") or
    in int8."""
    if not lengths:
        return []
    model, full = decoders["bfloat16"], decoders[label]
    int8 = Decoder(full.config, full.weights, threads=full.threads, codes_places=True)
    text = random_cache(model, max(lengths))
    kinds = {("bfloat16", "full"): model, (label, "full"): full, (label, "int8"): int8}
    runs = {
        (length, rows, kind): some(partial(one_pass, decoder, text.view(length=length), rows), COUNTED, uncounted=1)
        for length, rows, (kind, decoder) in product(lengths, LONG_ROWS, kinds.items())
    }
    timed = in_turn(runs, rounds, ceiling)
    found = []
    for (length, rows, (weights, kv)), its in timed.items():
        plain = timed[length, 1, ("bfloat16", "full")].median
        place = {"context": length, "weights": weights, "kv": kv, "rows": rows}
        found.append({**place, "milliseconds": its.milliseconds, "of_plain_pass": round(its.median / plain, 3)})
    return found


def _results(decoders: dict[str, Decoder], timed: Mapping[tuple[str, Kind], Timed]) -> list[dict[str, Any]]:
    rows = []
    for label, decoder in decoders.items():
        for kind in KINDS:
            its, size = timed[label, kind], decoder.weights.nbytes
            beside = round(its.median / timed["bfloat16", kind].median, 3)
            rows.append({"weights": label, "bytes": size, "rows": kind, **its.figures(size), "of_bfloat16": beside})
    return rows


def _beside(decoders: dict[str, Decoder], timed: Mapping[tuple[str, Kind], Timed]) -> dict[str, Any]:
    """llama.cpp's passes, and how many times as fast ours are."""
    theirs = {rows: timed[PEER_NAME, rows] for rows in ROWS}
    return {
        "format": "Q4_0",
        "milliseconds": {rows: its.milliseconds for rows, its in theirs.items()},
        "faster_than_it": {
            label: {rows: round(its.median / timed[label, rows].median, 2) for rows, its in theirs.items()}
            for label in decoders
        },
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What low-bit copies cost beside their model.")
    formats = ["mxfp4", "int8", "int4", "int3", "int2"]
    parser.add_argument("--format", nargs="+", default=formats, help="of the copies (%(default)s)")
    add_layers_and_rounds(parser)
    parser.add_argument("--long", type=int, nargs="*", default=LONG, help="positions of long texts (%(default)s)")
    parser.add_argument("--llama-python", help="a Python that has llama-cpp-python and gguf, for llama.cpp's Q4_0")
    carry_out("copies", parser, _measure)


if __name__ == "__main__":
    main()
