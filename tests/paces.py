"""Paces for tests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget

LONG = {0: 10_000}  # how many tokens a text may still gain that does not end soon


class Wild:
    """Draws the length of every level anew in each round, for each sequence, often leaves levels out, and often makes
    chains of trees."""

    def __init__(self, budgets: Sequence[Budget], seed: int = 0) -> None:
        self._budgets = tuple(budgets)
        self._chance = random.Random(seed)
        self.drawn: set[tuple[int, ...]] = set()

    def choose(self, sequences: Sequence[int], left: Mapping[int, int]) -> dict[int, tuple[Budget, ...]]:
        chosen = {sequence: tuple(self._cut(budget) for budget in self._budgets) for sequence in sequences}
        self.drawn.update(tuple(budget.rows for budget in budgets) for budgets in chosen.values())
        return chosen

    def heard(self, record: RoundRecord) -> None:
        """Nothing is learned."""

    def _cut(self, budget: Budget) -> Budget:
        rows, depth = (self._chance.randint(0, min(most, 20)) for most in (budget.rows, budget.depth))
        width = self._chance.choice((1, budget.width)) if budget.width > 1 else 1
        return replace(budget, rows=rows if depth else 0, depth=depth if rows else 0, width=width)
