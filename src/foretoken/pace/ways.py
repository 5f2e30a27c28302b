"""Ways of drafting, and what a pace knows of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from foretoken.pace.acceptance import Acceptance
from foretoken.pace.cost import Correction, Ratio, Recently
from foretoken.pace.levels import Paced
from foretoken.pace.yields import Yields, usual, usual_of_chain

_FADES = 0.5 ** (1 / 64)  # of how much longer than expected shared rounds take, with each round


class Way(NamedTuple):
    """A way of drafting: the level at which drafts begin, with the levels above it left out, and how wide they are. A
    level of trees that end themselves can draft a chain instead, which is a tree of width 1."""

    start: int
    width: int


@dataclass
class Known:
    """What is known of one way of drafting."""

    accepted: Acceptance
    yields: Yields | None = None  # of trees that end themselves
    drafting: Correction = field(default_factory=Correction)
    catching_up: Recently = field(default_factory=Recently)  # seconds for each token, before a draft's first pass
    gains: Ratio | None = None  # of chains beside trees: draft tokens that were accepted, over those expected
    # of rounds that several texts share, over what was expected: seconds, and of trees such draft tokens
    shared: Correction = field(default_factory=lambda: Correction(1))
    shared_at: int = 0  # the last round in which it was heard of
    shared_gains: Ratio = field(default_factory=Ratio)
    tried: int = 0  # the last round in which it was used
    again: int = 0  # the round from which on it is looked at again, after it was not worth it
    unfair: bool = False  # whether to try it would have left a text behind, when it was looked at last

    def slower(self, now: int) -> float:
        """How many times the expected seconds a shared round takes. What was heard fades: nobody drafts where it
        seems to cost too much, and nothing would correct that."""
        return float(self.shared.of(1.0) ** (_FADES ** (now - self.shared_at)))


def ways_of(levels: Sequence[Paced]) -> dict[Way, Known]:
    """The ways in which a ladder can draft: from its first level, or from a later one if the pace may leave out those
    above it."""
    found = {}
    for at, level in enumerate(levels):
        if at and not all(each.free for each in levels[: at + 1]):
            continue
        yields = _yields(level)
        found[Way(at, level.most.width)] = Known(Acceptance(level.expected, level.weight), yields)
        if yields is not None and level.most.width > 1:
            found[Way(at, 1)] = Known(Acceptance(level.expected, level.weight), gains=Ratio())
    return found


def _yields(level: Paced) -> Yields | None:
    """What is expected of a level's drafts that end themselves; None for a level whose drafts do not."""
    if not level.ends or not level.free:
        return None
    share = level.expected[len(level.expected) // 2]
    expected = usual(share) if level.most.width > 1 else usual_of_chain(share, level.most.longest)
    return Yields(expected if level.at_once == 1 else expected._replace(passes=1.0), len(level.expected))
