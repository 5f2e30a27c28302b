"""Several texts that share the passes: what a token of each is worth, and that none is left behind.

A draft for one text makes the pass longer for all. If the sum of all tokens were what counts, texts that draft well
would be drafted far: they end early, and the others, which had to wait in each of those passes, end later than in plain
decoding. Two things prevent that.

What counts is the mean time until texts end. A text that gains v tokens a round needs rounds in proportion to 1 / v, so
another token a round saves it 1 / v**2, and a pass that takes a part longer costs each text that part of its 1 / v.
Hence a token of a text weighs 1 / v**2 beside those of the others.

And no text may end later than in plain decoding beside the same texts, but for a few percent: what a round costs beyond
a plain one, each text must have gained, or have gained before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_LEFT = 0.98  # of what was heard, with each round of a text: after 34 rounds, a round counts half
_UNKNOWN = 4.0  # rounds of one token that are taken to have been before a text's first one
_LATER = 0.04  # share of its time by which a text may end later than in plain decoding
_AT_ONCE = 0.5  # plain rounds by which a text may be late at any time: otherwise nothing could be tried
# Plain rounds, divided by the number of texts, that drafts may add to a round. What a draft brings is known on average
# alone: with many texts there is always one that gains nothing, and it waits.
_LONGEST = 8.0
_GONE = 256  # rounds after which a text that gained nothing is forgotten


class Shares(NamedTuple):
    """weights: what a token of each text is worth, 1 on average. room: the seconds that each may lose in the round; if
    it has lost too much before, how many it must save. others: the seconds that a text may lose for which nothing is
    drafted. plain: seconds of a plain round, which a token that is gained beyond one saves. come: how many of the draft
    tokens that are expected come. most: seconds of a round, at most."""

    weights: _Floats
    room: _Floats
    others: float
    plain: float
    come: float
    most: float

    def leave_behind(self, gained: _Floats, seconds: float | _Floats) -> NDArray[np.bool_] | np.bool_:
        """Whether a text would lose more than it may, in one round or in several. gained: draft tokens that are
        expected, by text [texts] or [rounds, texts]. seconds: of the rounds."""
        least = (self.come * self.plain * gained + self.room).min(axis=-1).clip(max=self.others)
        left_behind: NDArray[np.bool_] = (seconds - self.plain > least) | (seconds > self.most)
        return left_behind


@dataclass
class _Text:
    tokens: float = _UNKNOWN  # of its rounds
    rounds: float = _UNKNOWN
    ahead: float = 0.0  # seconds of plain decoding that it has saved so far
    spent: float = 0.0  # seconds of its rounds
    heard: int = 0  # the last round in which it gained tokens


class Sharing:
    """Learns how fast each text goes on. Texts that draft nothing share the passes, too."""

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}
        self._round = 0
        self._last: Mapping[int, int] = {}

    def heard(self, gained: Mapping[int, int]) -> None:
        """Note the tokens that each text gained in a round."""
        self._round += 1
        self._last = gained
        for text, new in gained.items():
            its = self._texts.setdefault(text, _Text())
            its.tokens, its.rounds, its.heard = _LEFT * its.tokens + new, _LEFT * its.rounds + 1, self._round
        for text in [text for text, its in self._texts.items() if self._round - its.heard > _GONE]:
            del self._texts[text]

    def took(self, seconds: float, plain: float) -> None:
        """Note the seconds of that round, and those that it would have had without drafts."""
        for text, new in self._last.items():
            self._texts[text].ahead += new * plain - seconds
            self._texts[text].spent += seconds

    def forget(self, texts: Iterable[int]) -> None:
        """Drop what is known of some texts: others begin under their numbers."""
        for text in texts:
            self._texts.pop(text, None)

    def others(self, texts: Sequence[int]) -> list[int]:
        """The texts of the last round beside these."""
        return [text for text in self._last if text not in texts]

    def of(self, texts: Sequence[int], plain: float, come: float) -> Shares | None:
        """What counts for texts that share the next round; None if there is but one. The others are `Shares`'s."""
        others = self.others(texts)
        if len(texts) + len(others) == 1:
            return None
        new = _Text()
        known = [self._texts.get(text, new) for text in (*texts, *others)]
        slow = np.array([its.rounds / its.tokens for its in known[: len(texts)]])
        late = np.array([its.ahead + _LATER * its.spent for its in known])
        room = np.maximum(late + _AT_ONCE * plain, -plain)
        weights = slow**2 * (len(slow) / (slow**2).sum())
        own, theirs = room[: len(texts)], float(room[len(texts) :].min(initial=np.inf))
        return Shares(weights, own, theirs, plain, come, plain * (1 + _LONGEST / len(known)))
