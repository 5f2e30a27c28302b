"""What is timed in turn, so that a machine that is slower for a while is slower for all; and passes, to be timed so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

from foretoken.bench.passes import read_prompt
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain

TOKEN = 5  # which token it is costs nothing


def seconds_of(runs: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Seconds of each, the median over rounds; in turn, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            began = perf_counter()
            run()
            if number:
                seconds[name].append(perf_counter() - began)
    return {name: median(each) for name, each in seconds.items()}


def cached_pass(decoder: Decoder, prefix: int, rows: int) -> Callable[[], object]:
    """A pass of some rows behind a prefix whose keys and values are there."""
    cache = read_prompt(decoder, prefix)

    def run() -> None:
        decoder.run(chain(cache, [TOKEN] * rows))
        cache.discard()

    return run


def whole_pass(decoder: Decoder, prefix: int, rows: int) -> Callable[[], object]:
    """A pass of the prefix and of some rows behind it, which alone are asked what follows: nothing was kept."""
    cache = decoder.new_cache()

    def run() -> None:
        hidden = decoder.forward(chain(cache, [TOKEN] * (prefix + rows)))
        decoder.head(hidden[-rows:])
        cache.discard()

    return run
