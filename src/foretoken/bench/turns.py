"""Whatever reads weights, timed in turn beside the memory that it reads: what slows the machine slows all of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

from foretoken.bench.ceilings import Ceiling
from foretoken.bench.statistics import bandwidths

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Timed:
    """Seconds of each time that counted, and what memory gave just before it, in bytes a second."""

    seconds: list[float] = field(default_factory=list)
    bandwidths: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    def share(self, size: float) -> float:
        """The share of the bandwidth at which so many bytes were read: the median."""
        pairs = zip(self.seconds, self.bandwidths, strict=True)
        return round(statistics.median(size / seconds / bandwidth for seconds, bandwidth in pairs), 3)

    def figures(self, size: float, share: str = "fraction_of_ceiling") -> dict[str, Any]:
        """As they stand in a record. share: what it is called there."""
        return {"milliseconds": milliseconds(self.seconds), share: self.share(size)}


def in_turn(
    runs: Mapping[Key, Callable[[], Iterable[float]]],
    rounds: int,
    ceiling: Ceiling,
    *,
    progress: Callable[[float], None] = lambda share: None,
    between: Callable[[], object] = lambda: None,
) -> dict[Key, Timed]:
    """Each run in every round, the bandwidth measured before it.

    runs: each gives the seconds of a turn. progress: hears the share that is done. between: is done before each round.
    """
    timed = {key: Timed() for key in runs}
    for number in range(rounds):
        between()
        for at, (key, run) in enumerate(runs.items(), 1):
            bandwidth = ceiling.measure()
            for seconds in run():
                timed[key].seconds.append(seconds)
                timed[key].bandwidths.append(bandwidth)
            progress((number * len(runs) + at) / (rounds * len(runs)))
    return timed


def some(run: Callable[[], float], count: int = 1, uncounted: int = 0) -> Callable[[], list[float]]:
    """A turn of what tells its seconds: so many times, after some that do not count."""
    return lambda: [run() for _ in range(uncounted + count)][uncounted:]


def clocked(run: Callable[[], object]) -> float:
    """Seconds that something takes."""
    began = perf_counter()
    run()
    return perf_counter() - began


def milliseconds(seconds: Iterable[float]) -> float:
    """The median, as records have it."""
    return round(1e3 * statistics.median(seconds), 2)


def memory_speed(timed: Iterable[Timed]) -> dict[str, Any]:
    """What memory gave meanwhile, as it stands in a record."""
    return bandwidths(bandwidth for its in timed for bandwidth in its.bandwidths)
