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

from collections.abc import Mapping, Sequence
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


class Shares(NamedTuple):
    """weights: what a token of each text is worth, 1 on average. room: the seconds that each may lose in the round; if
    it has lost too much before, how many it must save. plain: seconds of a plain round, which a token that is gained
    beyond one saves. come: how many of the draft tokens that are expected come. most: seconds of a round, at most."""

    weights: _Floats
    room: _Floats
    plain: float
    come: float
    most: float

    def leave_behind(self, gained: _Floats, seconds: float | _Floats) -> NDArray[np.bool_] | np.bool_:
        """Whether a text would lose more than it may, in one round or in several. gained: draft tokens that are
        expected, by text [texts] or [rounds, texts]. seconds: of the rounds."""
        least = (self.come * self.plain * gained + self.room).min(axis=-1)
        left_behind: NDArray[np.bool_] = (seconds - self.plain > least) | (seconds > self.most)
        return left_behind


class Sharing:
    """Learns how fast each text goes on."""

    def __init__(self) -> None:
        self._tokens: dict[int, float] = {}
        self._rounds: dict[int, float] = {}
        self._ahead: dict[int, float] = {}  # seconds of plain decoding that each text has saved so far
        self._spent: dict[int, float] = {}  # seconds of its rounds

    def heard(self, gained: Mapping[int, int]) -> None:
        """Note the tokens that each text gained in a round. Those that are not there have ended, or not begun."""
        self._tokens = {text: _LEFT * self._tokens.get(text, _UNKNOWN) + new for text, new in gained.items()}
        self._rounds = {text: _LEFT * self._rounds.get(text, _UNKNOWN) + 1 for text in gained}
        self._ahead = {text: self._ahead.get(text, 0.0) for text in gained}
        self._spent = {text: self._spent.get(text, 0.0) for text in gained}

    def took(self, gained: Mapping[int, int], seconds: float, plain: float) -> None:
        """Note the seconds of that round, and those of a plain one."""
        for text, new in gained.items():
            self._ahead[text] += new * plain - seconds
            self._spent[text] += seconds

    def of(self, texts: Sequence[int], plain: float, come: float) -> Shares | None:
        """What counts for texts that share the next round; None for one text. The others are those of `Shares`."""
        if len(texts) == 1:
            return None
        slow = np.array([self._rounds.get(text, 1.0) / self._tokens.get(text, 1.0) for text in texts])
        late = [self._ahead.get(text, 0.0) + _LATER * self._spent.get(text, 0.0) for text in texts]
        room = np.maximum(np.array(late) + _AT_ONCE * plain, -plain)
        weights = slow**2 * (len(slow) / (slow**2).sum())
        return Shares(weights, room, plain, come, plain * (1 + _LONGEST / len(texts)))
