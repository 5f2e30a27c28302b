"""Whatever reads weights, timed in turn beside the memory that it reads: what slows the machine slows all of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from foretoken.bench.ceilings import Ceiling
from foretoken.bench.statistics import bandwidths
from foretoken.prices import measuring

Key = TypeVar("Key")


@dataclass(frozen=True)
class Timed:
    """Seconds of each time that counted, and what memory gave just before it, in bytes a second."""

    seconds: list[float] = field(default_factory=list)
    bandwidths: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def milliseconds(self) -> float:
        """The median, as records have it."""
        return round(1e3 * self.median, 2)

    def share(self, size: float) -> float:
        """The share of the bandwidth at which so many bytes were read: the median."""
        pairs = zip(self.seconds, self.bandwidths, strict=True)
        return round(statistics.median(size / seconds / bandwidth for seconds, bandwidth in pairs), 3)

    def figures(self, size: float, share: str = "fraction_of_ceiling") -> dict[str, Any]:
        """As they stand in a record. share: what it is called there."""
        return {"milliseconds": self.milliseconds, share: self.share(size)}


def in_turn(
    runs: Mapping[Key, Callable[[], Iterable[float]]],
    rounds: int,
    ceiling: Ceiling,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[Key, Timed]:
    """Each run in every round, the bandwidth measured before it.

    runs: each gives the seconds of a turn that count. progress: hears the share that is done.
    """
    timed = {key: Timed() for key in runs}
    turns = {key: lambda run=run: (ceiling.measure(), list(run())) for key, run in runs.items()}
    for done, (key, (bandwidth, seconds)) in enumerate(measuring.in_turn(turns, rounds), 1):
        timed[key].seconds.extend(seconds)
        timed[key].bandwidths.extend([bandwidth] * len(seconds))
        progress(done / (rounds * len(runs)))
    return timed


def some(run: Callable[[], float], count: int = 1, uncounted: int = 0) -> Callable[[], list[float]]:
    """A turn of what tells its seconds: so many times, after some that do not count."""
    return lambda: [run() for _ in range(uncounted + count)][uncounted:]


def memory_speed(timed: Iterable[Timed]) -> dict[str, Any]:
    """What memory gave meanwhile, as it stands in a record."""
    return bandwidths(bandwidth for its in timed for bandwidth in its.bandwidths)
