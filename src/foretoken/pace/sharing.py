"""Several texts that share the passes: what a token of each is worth, and that none is left behind.

A draft for one text makes the pass longer for all. If the sum of all tokens were what counts, texts that draft well
would be drafted far: they end early, and the others, which had to wait in each of those passes, end later than in plain
decoding. Two things prevent that.

What counts is the mean time until texts end. A text that gains v tokens a round needs rounds in proportion to 1 / v, so
another token a round saves it 1 / v**2, and a pass that takes a part longer costs each text that part of its 1 / v.
Hence a token of a text weighs 1 / v**2 beside those of the others. A text whose prompt is read counts like one
that gains a token a round: the pass brings it forward, and a longer pass is a longer wait for it.

And no text may end later than in plain decoding beside the same texts, but for a few percent: what a round costs beyond
a plain one, each text must have gained, or have gained before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretoken.protocol.telemetry import RoundRecord

_Floats = NDArray[np.float64]
_LEFT = 0.98  # of what was heard, with each round of a text: after 34 rounds, a round counts half
_UNKNOWN = 4.0  # rounds of one token that are taken to have been before a text's first one
_LATER = 0.02  # share of its time by which a text may end later than in plain decoding
# A text's time counts for so many tokens to come, so something can be tried at the beginning, or for fewer if it may
# not gain so many. That it may gain more says little: most texts end by themselves.
_TO_COME = 64
_BELIEVED = 1.0  # draft tokens by which a text's drafts are taken to bring what is expected, before any was heard of
# Plain rounds, divided by the number of texts, that drafts may add to a round. What a draft brings is known on average
# alone: with many texts there is always one that gains nothing, and it waits.
_LONGEST = 8.0


class Shares(NamedTuple):
    """texts: how many share the round. weights: what a token of each text that may draft is worth; 1 on average over
    all texts. room: the seconds that each may lose in the round; 0 if it has lost too much before. others: the seconds
    that a text may lose for which nothing is drafted. plain: seconds of the round without drafts. aside: the seconds
    that reading prompts adds to it. come: how many of the draft tokens that are expected of each text come. most:
    seconds of a round, at most."""

    texts: int
    weights: _Floats
    room: _Floats
    others: float
    plain: float
    aside: float
    come: _Floats
    most: float

    def of_which(self, come: float) -> Shares:
        """The same, where so many of the draft tokens that are expected come."""
        return self._replace(come=come * self.come)

    def leave_behind(self, gained: _Floats, seconds: float | _Floats) -> NDArray[np.bool_] | np.bool_:
        """Whether a text would lose more than it may, in one round or in several. gained: draft tokens that are
        expected, by text [texts] or [rounds, texts]. seconds: of the rounds."""
        usual = self.plain - self.aside  # a token that is gained beyond one saves a later round, as long as usual
        least = (self.come * usual * gained + self.room).min(axis=-1).clip(max=self.others)
        left_behind: NDArray[np.bool_] = (seconds - self.plain > least) | (seconds > self.most)
        return left_behind


@dataclass
class _Text:
    tokens: float = _UNKNOWN  # of its rounds
    rounds: float = _UNKNOWN
    ahead: float = 0.0  # seconds of plain decoding that it has saved so far
    spent: float = 0.0  # seconds of its rounds
    decodes: bool = False  # whether its prompt has been read
    expected: float = 0.0  # draft tokens that were expected, and
    came: float = 0.0  # those that came


class Sharing:
    """Learns how fast each text goes on. Texts that draft nothing share the passes, too, and so do those whose prompts
    are being read."""

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}

    def begin(self, texts: Collection[int]) -> None:
        """Note which texts are under way in the next round. The others have ended."""
        for text in [text for text in self._texts if text not in texts]:
            del self._texts[text]
        for text in texts:
            self._texts.setdefault(text, _Text())

    @property
    def reading(self) -> bool:
        """Whether the prompt of a text is read, or waits for it."""
        return not all(its.decodes for its in self._texts.values())

    def heard(self, record: RoundRecord, seconds: float, plain: float, drafts: float) -> None:
        """Note a round, its seconds, those of one without drafts and prompts, and those that drafts have added."""
        for text in record.read:
            its = self._texts.get(text)
            if its is None or its.decodes:  # a text under the number of one that has ended
                self._texts[text] = _Text()
        for text, new in record.new_tokens.items():
            its = self._texts.setdefault(text, _Text())
            its.tokens, its.rounds, its.decodes = _LEFT * its.tokens + new, _LEFT * its.rounds + 1, True
            its.ahead += (new - 1) * plain
        for text, its in self._texts.items():
            if text in record.new_tokens or not its.decodes:
                its.ahead -= drafts
                its.spent += seconds
                its.expected, its.came = _LEFT * its.expected, _LEFT * its.came

    def came(self, text: int, expected: float, came: float) -> None:
        """Note the draft tokens that were expected of a text in that round, and those that came."""
        its = self._texts.get(text)
        if its is not None:
            its.expected, its.came = its.expected + expected, its.came + came

    def of(self, sequences: Sequence[int], left: Mapping[int, int], plain: float, usual: float) -> Shares | None:
        """What counts for texts that share the next round; None if there is but one. sequences: those that may draft.
        left: how many tokens each text under way may still gain. plain: seconds of that round without drafts. usual: of
        one in which no prompt is read."""
        if len(left) == 1:
            return None
        others = [text for text in left if text not in sequences]
        new = _Text()
        texts = (*sequences, *others)
        known = [self._texts.get(text, new) for text in texts]
        slow = np.array([its.rounds / its.tokens for its in known])
        late = np.array([its.ahead + _LATER * its.spent for its in known])
        to_come = np.array([max(0, min(_TO_COME, left[text])) for text in texts])
        room = np.maximum(late + _LATER * usual * to_come, 0.0)
        trust = [min(1.0, (_BELIEVED + its.came) / (_BELIEVED + its.expected)) for its in known[: len(sequences)]]
        weights = (slow**2 * (len(slow) / (slow**2).sum()))[: len(sequences)]
        own, theirs = room[: len(sequences)], float(room[len(sequences) :].min(initial=np.inf))
        most = plain + usual * _LONGEST / len(known)
        return Shares(len(known), weights, own, theirs, plain, plain - usual, np.array(trust), most)
