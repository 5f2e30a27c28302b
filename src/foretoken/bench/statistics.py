"""The common parts of measurements in turn: medians by prompt, intervals, where texts part, rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Protocol, TypeVar

import numpy as np

from foretoken.acceptance.walk import agreeing
from foretoken.errors import ContractError

PLAIN = "none"  # the draft of plain decoding
RESAMPLES, CONFIDENCE = 4000, 0.95
SLOW = 0.8  # of memory's usual speed: what ran at less was disturbed
FEWEST = 6  # values: from so many on, the smallest and the largest hold the median at 95 %


class Decoded(Protocol):
    """A prompt that was decoded once."""

    @property
    def prompt(self) -> str:
        """The prompt's name."""

    @property
    def seconds_per_token(self) -> float:
        """Seconds of decoding per token, without the prompt and the token that comes with it."""


Measured = TypeVar("Measured", bound=Decoded)


def by_prompt(samples: Iterable[Measured], value: Callable[[Measured], float]) -> dict[str, float]:
    """Each prompt's median over repeats."""
    return _medians((sample.prompt, value(sample)) for sample in samples)


def times_as_fast(pairs: Iterable[tuple[Decoded, Decoded]]) -> dict[str, float]:
    """How many times as fast the first of each pair is as the second, which decoded the same prompt beside it: each
    prompt's median over repeats."""
    return _medians((own.prompt, other.seconds_per_token / own.seconds_per_token) for own, other in pairs)


def _medians(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    by_name: dict[str, list[float]] = {}
    for name, value in values:
        by_name.setdefault(name, []).append(value)
    return {name: median(its) for name, its in by_name.items()}


def with_interval(values: Mapping[str, float]) -> tuple[float, tuple[float, float]]:
    """The median over prompts, and the interval that holds it at 95 %."""
    return median(values.values()), median_interval(list(values.values()))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The interval that holds the median of such values with `CONFIDENCE`: the middle part of the medians of resamples
    of the same size, drawn with replacement (Efron 1979). The same values always give the same interval.

    For fewer than `FEWEST` values, the interval is their range, which holds the median less often than that: one value
    does not show how far the next would be. Raises ContractError without values or if one is not finite.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) == 0 or not np.isfinite(numbers).all():
        raise ContractError(f"an interval of {list(values)!r:.80}; expected finite numbers, one or more")
    if len(numbers) < FEWEST:
        return float(numbers.min()), float(numbers.max())
    drawn = np.random.default_rng(0).integers(len(numbers), size=(RESAMPLES, len(numbers)))
    medians = np.median(numbers[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two texts part; None if they are equal."""
    at = agreeing(one, other)
    return None if at == len(one) == len(other) else at


def parting(own: Sequence[int], plain: Sequence[int]) -> dict[str, Any] | None:
    """Where a text leaves the plain one: the position and both tokens, null where a text ended; None if equal."""
    at = first_difference(own, plain)
    if at is None:
        return None
    token, plain_token = (text[at] if at < len(text) else None for text in (own, plain))
    return {"position": at, "token": token, "plain_token": plain_token}


def rounded(value: Any) -> Any:
    """A value with its floats rounded to five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def bandwidths(measured: Iterable[float | None]) -> dict[str, Any]:
    """A record's fields on memory meanwhile: the median and the range of its speed in GB/s, and the percentage of
    generations with less than `SLOW` of the median, because something else ran."""
    known = sorted(each / 1e9 for each in measured if each)
    if not known:
        return dict.fromkeys(("read_bandwidth_gb_per_s", "read_bandwidth_range_gb_per_s", "slow_memory_percent"))
    middle = known[len(known) // 2]
    slow = sum(each < SLOW * middle for each in known)
    return {
        "read_bandwidth_gb_per_s": round(middle, 2),
        "read_bandwidth_range_gb_per_s": [round(known[0], 2), round(known[-1], 2)],
        "slow_memory_percent": round(100 * slow / len(known), 1),
    }
