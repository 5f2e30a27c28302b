"""Where runs of tokens occur in a text that does not change: a suffix array.

The array holds the positions of the text, sorted by the tokens that follow them. All places where a run occurs lie side
by side in it, so binary search finds them. It takes eight bytes a token, where an automaton (automaton.py) takes
hundreds, but nothing can be added to it.

Sources: Manber and Myers 1990 for the array and for sorting by doubling; Infini-gram (arXiv 2401.17377) for its use on
the tokens of a corpus.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REACH = 32  # tokens by which positions are sorted: a power of two. Longer matches are not told from those of 32 tokens
END = -1  # between texts: no token, so that no run goes from one text into the next
_COUNTED = 1024  # places at which the next token is counted; of more places, as many are looked at


@dataclass(frozen=True)
class Match:
    """The places of a run of tokens: `low` to `high` of the sorted positions. length: of the run, in tokens."""

    length: int
    low: int
    high: int


class SuffixArray:
    """Finds runs of tokens in texts, each a list of token ids."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        parts = [part for text in texts for part in (np.asarray(text, np.int32), np.full(1, END, np.int32))]
        self._tokens = np.concatenate([*parts, np.full(REACH, END, np.int32)])
        order = _sorted(self._tokens)
        self._order = order[order < len(self)]

    def __len__(self) -> int:
        """The number of positions, those between texts included."""
        return len(self._tokens) - REACH

    def longest(self, end: Sequence[int], least: int) -> Match | None:
        """The longest end of some tokens that occurs, of at least `least` and at most REACH tokens; None if there is
        none."""
        found = None
        low, high = least, min(len(end), REACH)
        while low <= high:  # where a run occurs, its shorter ends do, too
            middle = (low + high) // 2
            match = self._places(list(end[len(end) - middle :]))
            if match is None:
                high = middle - 1
            else:
                found, low = match, middle + 1
        return found

    def following(self, match: Match, count: int, least: float = 0.0) -> list[int]:
        """Up to `count` tokens that follow a run: each is the one that most often follows those before it. They end
        before fewer than a share `least` of the run's places go on like that."""
        low, high, tokens, share = match.low, match.high, list[int](), 1.0
        for at in range(match.length, REACH):
            if len(tokens) == count or high - low == 1:
                break
            places = self._order[low:high]
            step = -(-len(places) // _COUNTED)
            nexts, counts = np.unique(self._tokens[places[::step] + at], return_counts=True)
            token = int(nexts[counts.argmax()])
            share *= counts.max() / counts.sum()
            if token == END or share < least:
                return tokens
            tokens.append(token)
            low, high = (low + int(edge) for edge in self._edges(places, at, token))
        rest = int(self._order[low]) + match.length + len(tokens)
        for token in self._tokens[rest : rest + count - len(tokens)].tolist():
            if token == END:
                break
            tokens.append(token)
        return tokens

    def _edges(self, places: NDArray[np.int32], at: int, token: int) -> tuple[int, int]:
        """Between which places the token at an offset is this one; they are sorted by it."""

        def its(place: np.int32) -> int:
            return int(self._tokens[place + at])

        return bisect.bisect_left(places, token, key=its), bisect.bisect_right(places, token, key=its)

    def _places(self, run: list[int]) -> Match | None:
        def its(place: np.int32) -> list[int]:
            tokens: list[int] = self._tokens[place : place + len(run)].tolist()
            return tokens

        low = bisect.bisect_left(self._order, run, key=its)
        if low == len(self._order) or its(self._order[low]) != run:
            return None
        return Match(len(run), low, bisect.bisect_right(self._order, run, low, key=its))


def _sorted(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """All positions, sorted by the REACH tokens from there on. Doubling: positions that are ranked by n tokens are
    ranked by 2 n with the rank n tokens further on."""
    ranks = tokens.astype(np.int64) + 1
    reach = 1
    while True:
        further = np.zeros_like(ranks)
        further[:-reach] = ranks[reach:]
        keys = ranks * (int(ranks.max()) + 1) + further
        order = np.argsort(keys)
        reach *= 2
        if reach == REACH:
            return order.astype(np.int32)
        keys = keys[order]
        ranks[order] = np.concatenate([[0], np.cumsum(keys[1:] != keys[:-1])])
