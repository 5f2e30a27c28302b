"""Earlier outputs as a source of drafts: what a model has written for one request, it often writes for another.

The outputs are kept in memory, in one suffix automaton. They are forgotten with the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from foretoken.drafters.automaton import SuffixAutomaton
from foretoken.drafters.suffixes import REACH, Match

MOST_TOKENS = 50_000  # of all outputs: some 40 MB
_BETWEEN = -1  # between outputs: no token, so that no run goes from one into the next


class EarlierTexts:
    """The outputs so far, and where runs of tokens occur in them. most: the most tokens that are kept."""

    def __init__(self, most: int = MOST_TOKENS) -> None:
        self._most = most
        self._texts: deque[list[int]] = deque()
        self._automaton = SuffixAutomaton()

    def keep(self, tokens: Sequence[int]) -> None:
        """Keep an output. Where that is too much, the older half of all outputs is dropped at once: an automaton cannot
        forget its beginning, so it is made anew."""
        self._texts.append(list(tokens[-self._most // 2 :]))
        if len(self._automaton.text) + len(self._texts[-1]) < self._most:
            self._add(self._texts[-1])
            return
        while sum(map(len, self._texts)) > self._most // 2:
            self._texts.popleft()
        self._automaton = SuffixAutomaton()
        for text in self._texts:
            self._add(text)

    def longest(self, end: Sequence[int], least: int) -> Match | None:
        """The longest end of some tokens that occurs, of at least `least` and at most REACH tokens; None if there is
        none. Of several places, the latest."""
        length, place = self._automaton.longest_end(end[-REACH:])
        return Match(length, place + 1, place + 2) if length >= max(1, least) else None

    def following(self, match: Match, count: int, least: float = 0.0) -> list[int]:
        """Up to `count` tokens that follow a run."""
        tokens = self._automaton.text[match.low : match.low + count]
        return tokens[: tokens.index(_BETWEEN)] if _BETWEEN in tokens else tokens

    def _add(self, text: Sequence[int]) -> None:
        for token in (*text, _BETWEEN):
            self._automaton.append(token)
        self._automaton.settle()
