"""What drafts of a kind that ends itself have come to: tokens, passes and rows of a round, by the kind of place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_KEPT = 0.5 ** (1 / 64)  # of what was heard, with each round, heard of or not: after 64 rounds, a round counts half
_PRIOR = 2.0  # rounds that the opinion is worth that one has before any was heard of
_POOLED = 4.0  # rounds that the average over all kinds of places is worth for one kind


class Yield(NamedTuple):
    """Means of a round: the tokens that a sequence gains, the passes of the draft, and the draft tokens sent."""

    tokens: float
    passes: float
    rows: float


class Yields:
    """Learns what rounds come to. expected: before anything is known. kinds: how many kinds of places there are."""

    def __init__(self, expected: Yield, kinds: int) -> None:
        self._sums = np.zeros((kinds, 3))
        self._rounds = np.zeros(kinds)
        self._expected = np.array(expected)
        self._round = 0  # to which what was heard has faded

    def heard(self, kind: int, what: Yield, now: int) -> None:
        """Note what round `now` of a sequence came to."""
        kind = min(kind, len(self._rounds) - 1)
        self._fade(now)
        self._sums[kind] += what
        self._rounds[kind] += 1

    def of(self, kind: int, now: int) -> Yield:
        """What a round at such a place is expected to come to."""
        self._fade(now)
        kind = min(kind, len(self._rounds) - 1)
        pooled = (self._sums.sum(axis=0) + _PRIOR * self._expected) / (self._rounds.sum() + _PRIOR)
        tokens, passes, rows = (self._sums[kind] + _POOLED * pooled) / (self._rounds[kind] + _POOLED)
        return Yield(float(tokens), float(passes), float(rows))

    def _fade(self, now: int) -> None:
        left = _KEPT ** (now - self._round)
        self._sums *= left
        self._rounds *= left
        self._round = now


def usual(share: float) -> Yield:
    """A first opinion of trees whose likeliest tokens are accepted with this probability: the second choice is right
    three times out of four where the first is not (docs/drafters.md), and a tree ends where it is unsure."""
    saved = 1 - 0.3 * (1 - share)
    tokens = 1 + sum(saved**at for at in range(1, 7))
    return Yield(tokens, passes=4.5, rows=10.0)


def usual_of_chain(share: float, longest: int) -> Yield:
    """The same of chains of at most so many tokens, which end where they are unsure."""
    survival = [share**at for at in range(1, longest + 1)]
    rows = sum(each >= 0.2 for each in survival)
    return Yield(1 + sum(survival), passes=float(rows), rows=float(rows))
