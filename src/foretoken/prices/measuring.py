"""Times passes of several decoders in turn. A machine that is slower for a while is then slower for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

from foretoken import kernels
from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.prices.price import PassPrice, Price

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # the numbers of rows that are measured by default
_STEPS = 4  # tokens of a chain that is drafted in one call
_TOKEN = 5  # any token will do: all cost the same

Key = TypeVar("Key")
Given = TypeVar("Given")


def measure(
    decoders: Mapping[str, Decoder],
    *,
    prefix: int,
    rows: Sequence[int] = ROWS,
    cached: bool = True,
    rounds: int = 5,
) -> dict[str, PassPrice]:
    """The price of each decoder's passes, by its name, behind a text of `prefix` tokens. Seconds are medians over
    `rounds` rounds, after one round that is not counted. cached: whether the text's keys and values are in the cache.
    If not, each pass computes them, and no step is measured."""
    runs: dict[str, Callable[[], object]] = {}
    for name, decoder in decoders.items():
        for part, run in _runs(decoder, prefix, rows, cached):
            runs[f"{name} {part}"] = run
    seconds = seconds_of(runs, rounds)
    return {
        name: PassPrice(
            Price.measured({count: seconds[f"{name} layers {count}"] for count in rows}),
            Price.measured({count: seconds[f"{name} head {count}"] for count in rows}),
            seconds.get(f"{name} steps", 0.0) / _STEPS,
        )
        for name in decoders
    }


def quick(decoder: Decoder, rows: Sequence[int], prefix: int, *, warm: bool = False) -> Price:
    """The price of a decoder's passes: one pass for each number of rows, in ascending order, behind `prefix` tokens.
    Before them one pass is made that is not counted, unless the decoder is `warm` from passes that were made just now.
    For a first opinion: another program may have slowed any of them."""
    cache = read_prompt(decoder, prefix)
    found = {}
    for count in rows if warm else (rows[0], *rows):
        hidden = decoder.embed([_TOKEN] * count)
        found[count] = clocked(partial(_layers, decoder, cache, count)) + clocked(partial(_head, decoder, hidden))
    return Price.measured(found)


def seconds_of(runs: Mapping[Key, Callable[[], object]], rounds: int = 5) -> dict[Key, float]:
    """The seconds of each run: the median over `rounds` rounds, in turn, after one round that is not counted."""
    seconds: dict[Key, list[float]] = {name: [] for name in runs}
    for name, took in in_turn({name: partial(clocked, run) for name, run in runs.items()}, rounds + 1):
        seconds[name].append(took)
    return {name: median(each[1:]) for name, each in seconds.items()}


def in_turn(runs: Mapping[Key, Callable[[], Given]], rounds: int) -> Iterator[tuple[Key, Given]]:
    """Yields the result of each run, by its key. Every round makes all runs, one after the other."""
    for _ in range(rounds):
        for key, run in runs.items():
            yield key, run()


def clocked(run: Callable[[], object]) -> float:
    """The seconds that a run takes."""
    began = perf_counter()
    run()
    return perf_counter() - began


def read_prompt(decoder: Decoder, length: int) -> Cache:
    """A cache that holds `length` tokens."""
    cache = decoder.new_cache()
    rows = chain(cache, [_TOKEN] * length)
    decoder.forward(rows)
    cache.commit(range(length), rows.writer)
    return cache


def _runs(
    decoder: Decoder, prefix: int, rows: Sequence[int], cached: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    cache = read_prompt(decoder, prefix) if cached else decoder.new_cache()
    for count in rows:
        yield f"layers {count}", partial(_layers, decoder, cache, count if cached else prefix + count)
        yield f"head {count}", partial(_head, decoder, decoder.embed([_TOKEN] * count))
    if cached:
        yield "steps", partial(_steps, decoder, cache)


def one_pass(decoder: Decoder, cache: Cache, count: int) -> None:
    """A whole pass of some rows behind a cache's text: layers, output layer and choices."""
    _layers(decoder, cache, count)
    _head(decoder, decoder.embed([_TOKEN] * count))


def _layers(decoder: Decoder, cache: Cache, count: int) -> None:
    decoder.forward(chain(cache, [_TOKEN] * count))
    cache.discard()


def _head(decoder: Decoder, hidden: torch.Tensor) -> None:
    for logits in decoder.head(hidden):
        kernels.argmax(logits)


def _steps(decoder: Decoder, cache: Cache) -> None:
    decoder.draft_chain(cache, _TOKEN, _STEPS)
    cache.discard()
