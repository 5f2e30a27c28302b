"""The price of a pass: seconds by its rows."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

_MOST = 160  # passes that a line is drawn through: with all pairs of them, an instant


@dataclass(frozen=True)
class Price:
    """seconds: by the numbers of rows that are known, one or more of them. Between two of them the price lies on a
    line, beyond the last on the line through the last two; fewer rows than the first cost what that one does."""

    seconds: Mapping[int, float]

    @classmethod
    def measured(cls, seconds: Mapping[int, float]) -> Price:
        """Without what something else on the machine added: fewer rows never cost more than more rows do."""
        least, found = float("inf"), {}
        for rows in sorted(seconds, reverse=True):
            least = found[rows] = min(least, seconds[rows])
        return cls(dict(sorted(found.items())))

    @classmethod
    def observed(cls, passes: Sequence[tuple[int, float]]) -> Price:
        """Of passes as they came, as (rows, seconds), on a straight line that never falls. None came: they cost
        nothing.

        Medians of slopes (Theil 1950, Sen 1968): a pass that lost its core for a while does not bend the line.
        """
        if not passes:
            return cls({1: 0.0})
        some = passes[:: -(-len(passes) // _MOST)]
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(some, 2) if a[0] != b[0]]
        each = max(0.0, median(slopes)) if slopes else 0.0
        one = max(0.0, median(seconds - each * (rows - 1) for rows, seconds in some))
        return cls({1: one, 2: one + each})

    def of(self, rows: int) -> float:
        """Seconds of a pass over so many rows; none take none."""
        if rows < 1:
            return 0.0
        if rows in self.seconds:
            return self.seconds[rows]
        known = sorted(self.seconds)
        if len(known) == 1 or rows < known[0]:
            return self.seconds[known[0]]
        high = min(max(bisect.bisect(known, rows), 1), len(known) - 1)
        one, other = known[high - 1], known[high]
        share = (rows - one) / (other - one)
        return self.seconds[one] + share * (self.seconds[other] - self.seconds[one])

    def times(self, factor: float) -> Price:
        """Where everything takes so many times as long."""
        return Price({rows: factor * each for rows, each in self.seconds.items()})


@dataclass(frozen=True)
class PassPrice:
    """What passes of one decoder cost: all its layers with the embedding, the logits with their choices, and a `step`,
    in seconds: a token of a chain that is drafted in one call."""

    layers: Price
    head: Price
    step: float = 0.0

    def part(self, rows: int, share: float) -> float:
        """Some share of the layers."""
        return share * self.layers.of(rows)

    def whole(self, rows: int) -> float:
        """A pass of which every row's logits are asked for."""
        return self.layers.of(rows) + self.head.of(rows)

    def times(self, factor: float) -> PassPrice:
        """Where everything takes so many times as long."""
        return PassPrice(self.layers.times(factor), self.head.times(factor), factor * self.step)
