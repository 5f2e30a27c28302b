"""The tokens in the slots of a fractal draft: the first guess, and the tokens after a guess has changed.

fixed     all slots begin with one and the same token of the vocabulary; the copy's choices then stay
recycle   the slots begin with the rest of the last draft; the remaining slots begin with that same token
lookup    the slots begin with the tokens that lookup finds; at each change, lookup runs behind the token that changed

The published method adds a new token to the vocabulary for each slot and does not train it. There is no such kind here,
because it would hardly differ from `fixed`: transformers draws the embeddings of new tokens around the mean of all
embeddings, with 1e-9 of their covariance, so that all slots begin with nearly the same vector there, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.drafters.lookup import LookupDrafter
from foretoken.protocol.types import Request, Turn, Verdict

FIXED = 0  # the token in slots for which there is no guess


class Slots:
    """Slots that all hold the same token (`fixed`). The other kinds keep something of each sequence."""

    def begin(self, requests: Sequence[Request]) -> None:
        """Take new sequences on."""

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Take in the new tokens."""

    def rewind(self, sequence: int, position: int) -> None:
        """Cut a text at a position."""

    def end(self, sequence: int) -> None:
        """Forget a sequence that has ended."""

    def first(self, sequence: int, position: int, count: int) -> list[int]:
        """The first guess: at most `count` tokens from a position on."""
        return [FIXED] * count

    def changed(self, sequence: int, position: int, tokens: list[int], known: int, count: int) -> list[int]:
        """The guess after a change, at most `count` tokens. Its first `known` tokens are kept: those before the first
        one that changed, and that one."""
        return tokens

    def drafted(self, sequence: int, position: int, tokens: Sequence[int]) -> None:
        """Take in the draft that a guess has become, from a position on."""


class RecycledSlots(Slots):
    """Slots that begin with the rest of the last draft (`recycle`)."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[int, tuple[int, ...]]] = {}  # a draft and its position

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the last draft, which was for another text."""
        self.end(sequence)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._left.pop(sequence, None)

    def first(self, sequence: int, position: int, count: int) -> list[int]:
        """The tokens of the last draft from a position on."""
        began, draft = self._left.get(sequence, (position, ()))
        left = draft[position - began :][:count]
        return [*left, *[FIXED] * (count - len(left))]

    def drafted(self, sequence: int, position: int, tokens: Sequence[int]) -> None:
        """Keep the draft for the next guess."""
        self._left[sequence] = (position, tuple(tokens))


class LookedUpSlots(Slots):
    """Slots that hold the tokens that lookup finds (`lookup`)."""

    def __init__(self) -> None:
        self._lookup = LookupDrafter(min_match=2)

    def begin(self, requests: Sequence[Request]) -> None:
        """Index the prompts."""
        self._lookup.begin(requests)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Index the new tokens."""
        self._lookup.observe(verdicts)

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the text from a position on."""
        self._lookup.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._lookup.end(sequence)

    def first(self, sequence: int, position: int, count: int) -> list[int]:
        """The tokens that lookup finds behind the text."""
        return self.changed(sequence, position, [], 0, count)

    def changed(self, sequence: int, position: int, tokens: list[int], known: int, count: int) -> list[int]:
        """The known tokens, and the tokens that lookup finds behind them. The old tokens there followed another text,
        so they are dropped."""
        found = tokens[:known]
        room = count - len(found)
        if room < 1:
            return found[:count]
        try:
            self._lookup.observe([Verdict(sequence, 0, position, (), tuple(found), ("",) * len(found))])
            drafts = self._lookup.propose([Turn(sequence, 0, position + len(found), room, room)])
        finally:
            self._lookup.rewind(sequence, position)
        return [*found, *(token for draft in drafts for token in draft.tokens)]


SLOTS: dict[str, type[Slots]] = {"fixed": Slots, "lookup": LookedUpSlots, "recycle": RecycledSlots}
