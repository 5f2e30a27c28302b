"""Times runs that read weights, in turn, each beside the speed of memory: what slows the machine slows all of them."""

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
    """Seconds of each run that counted, and memory's speed just before it, in bytes per second."""

    seconds: list[float] = field(default_factory=list)
    bandwidths: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds)

    @property
    def milliseconds(self) -> float:
        """The median, as records have it."""
        return round(1e3 * self.median, 2)

    def share(self, size: float) -> float:
        """The median share of the bandwidth at which `size` bytes were read."""
        pairs = zip(self.seconds, self.bandwidths, strict=True)
        return round(statistics.median(size / seconds / bandwidth for seconds, bandwidth in pairs), 3)

    def figures(self, size: float, share: str = "fraction_of_ceiling") -> dict[str, Any]:
        """The fields of a record. share: the name of the share there."""
        return {"milliseconds": self.milliseconds, share: self.share(size)}


def in_turn(
    runs: Mapping[Key, Callable[[], Iterable[float]]],
    rounds: int,
    ceiling: Ceiling,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[Key, Timed]:
    """Time each run in every round, with the bandwidth measured before it.

    runs: each returns the seconds of a turn that count. progress: called with the share that is done.
    """
    timed = {key: Timed() for key in runs}
    turns = {key: lambda run=run: (ceiling.measure(), list(run())) for key, run in runs.items()}
    for done, (key, (bandwidth, seconds)) in enumerate(measuring.in_turn(turns, rounds), 1):
        timed[key].seconds.extend(seconds)
        timed[key].bandwidths.extend([bandwidth] * len(seconds))
        progress(done / (rounds * len(runs)))
    return timed


def some(run: Callable[[], float], count: int = 1, uncounted: int = 0) -> Callable[[], list[float]]:
    """A turn of a run that returns its seconds: `count` times, after `uncounted` times that do not count."""
    return lambda: [run() for _ in range(uncounted + count)][uncounted:]


def memory_speed(timed: Iterable[Timed]) -> dict[str, Any]:
    """A record's fields on the speed of memory meanwhile."""
    return bandwidths(bandwidth for its in timed for bandwidth in its.bandwidths)
