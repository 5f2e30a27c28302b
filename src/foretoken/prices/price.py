"""The price of a pass: seconds by its number of rows."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import median

_MOST = 160  # the most passes that a line is drawn through: all their pairs take an instant


@dataclass(frozen=True)
class Price:
    """seconds: by number of rows, for one or more numbers. Between two of them the price lies on a line; beyond the
    last, on the line through the last two. Fewer rows than the first number cost as much as the first."""

    seconds: Mapping[int, float]

    @classmethod
    def measured(cls, seconds: Mapping[int, float]) -> Price:
        """A price from measured seconds. Fewer rows never cost more than more rows: if they did, another program
        slowed the machine, and the seconds are lowered."""
        least, found = float("inf"), {}
        for rows in sorted(seconds, reverse=True):
            least = found[rows] = min(least, seconds[rows])
        return cls(dict(sorted(found.items())))

    @classmethod
    def observed(cls, passes: Sequence[tuple[int, float]]) -> Price:
        """A price from passes as they came, each (rows, seconds): a straight line that never falls. Without passes the
        price is 0.

        The line is made of medians of slopes (Theil 1950, Sen 1968), so a pass that lost its core for a while does not
        bend it.
        """
        if not passes:
            return cls({1: 0.0})
        some = passes[:: -(-len(passes) // _MOST)]
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(some, 2) if a[0] != b[0]]
        each = max(0.0, median(slopes)) if slopes else 0.0
        one = max(0.0, median(seconds - each * (rows - 1) for rows, seconds in some))
        return cls({1: one, 2: one + each})

    def of(self, rows: int) -> float:
        """Seconds of a pass over `rows` rows; 0 for no rows."""
        if rows < 1:
            return 0.0
        if rows in self.seconds:
            return self.seconds[rows]
        known = self._known
        if len(known) == 1 or rows < known[0]:
            return self.seconds[known[0]]
        high = min(max(bisect.bisect(known, rows), 1), len(known) - 1)
        one, other = known[high - 1], known[high]
        share = (rows - one) / (other - one)
        return self.seconds[one] + share * (self.seconds[other] - self.seconds[one])

    @cached_property
    def _known(self) -> list[int]:
        return sorted(self.seconds)

    def times(self, factor: float) -> Price:
        """The price on a machine on which everything takes `factor` times as long."""
        return Price({rows: factor * each for rows, each in self.seconds.items()})


@dataclass(frozen=True)
class PassPrice:
    """The price of passes of one decoder. layers: all layers with the embedding. head: the logits with their choices.
    step: seconds for each token of a chain that is drafted in one call."""

    layers: Price
    head: Price
    step: float = 0.0

    def part(self, rows: int, share: float) -> float:
        """Seconds of a share of the layers, from 0 to 1."""
        return share * self.layers.of(rows)

    def whole(self, rows: int) -> float:
        """Seconds of a pass that computes the logits of every row."""
        return self.layers.of(rows) + self.head.of(rows)

    def times(self, factor: float) -> PassPrice:
        """The price on a machine on which everything takes `factor` times as long."""
        return PassPrice(self.layers.times(factor), self.head.times(factor), factor * self.step)
