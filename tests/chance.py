"""What a program does that throws dice: every run of it with its probability, or many runs and a test of the counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch

Outcome = TypeVar("Outcome", bound=Hashable)
FALSE_ALARM = 1e-6  # how often `assert_drawn_from` is wrong about a right program: a test has one set of seeds for ever


class Dice:
    """Throws what a script says, then the first face that can come up; the other faces become scripts of their own."""

    def __init__(self, script: Sequence[int]) -> None:
        self.probability = 1.0
        self.untaken: list[tuple[int, ...]] = []
        self._script = script
        self._thrown: tuple[int, ...] = ()

    def throw(self, probabilities: Sequence[float]) -> int:
        """A face, each with its probability."""
        possible = [face for face, probability in enumerate(probabilities) if probability > 0.0]
        if len(self._thrown) < len(self._script):
            face = self._script[len(self._thrown)]
        else:
            face, *others = possible
            self.untaken += [(*self._thrown, other) for other in others]
        self._thrown = (*self._thrown, face)
        self.probability *= float(probabilities[face])
        return face

    def toss(self, probability: float) -> bool:
        """True with this probability."""
        return self.throw([probability, 1.0 - probability]) == 0


def every_run(program: Callable[[Dice], Outcome]) -> dict[Outcome, float]:
    """The exact distribution of what a program returns: it is run once for every way in which its dice may fall."""
    total: dict[Outcome, float] = {}
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        dice = Dice(scripts.pop())
        outcome = program(dice)
        total[outcome] = total.get(outcome, 0.0) + dice.probability
        scripts += dice.untaken
    return total


def chi_square_tail(counts: Counter[Outcome], probabilities: Mapping[Outcome, float]) -> float:
    """Pearson's test: how likely counts at least this far from the expected ones are. Cells in which less than 5 are
    expected are counted as one."""
    runs = counts.total()
    cells: list[tuple[float, float]] = []
    rest = (0.0, 0.0)
    for outcome, probability in probabilities.items():
        cell = (float(counts[outcome]), probability * runs)
        if cell[1] < 5.0:
            rest = (rest[0] + cell[0], rest[1] + cell[1])
        else:
            cells.append(cell)
    if rest[1] >= 5.0:
        cells.append(rest)
    elif rest[1] > 0.0 and cells:
        smallest = cells.index(min(cells, key=lambda cell: cell[1]))
        cells[smallest] = (cells[smallest][0] + rest[0], cells[smallest][1] + rest[1])
    distance = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    freedom = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(distance / 2, dtype=torch.float64)))


def assert_drawn_from(counts: Counter[Outcome], probabilities: Mapping[Outcome, float]) -> None:
    """Fails where the counts are no sample of the distribution; of a true sample once in 1 / FALSE_ALARM."""
    assert abs(sum(probabilities.values()) - 1.0) < 1e-9, "these are no probabilities"
    impossible = {outcome for outcome in counts if not probabilities.get(outcome)}
    assert not impossible, f"what cannot happen has happened: {impossible}"
    assert sum(probability * counts.total() >= 5.0 for probability in probabilities.values()) > 1, "vacuous: one cell"
    tail = chi_square_tail(counts, probabilities)
    assert tail > FALSE_ALARM, f"counts this far off come once in {1 / max(tail, 1e-300):.1e}: {dict(counts)}"
