"""What the slots of a fractal draft begin with, and what becomes of them when a guess has changed.

fixed     one token of the vocabulary, all the same; what the copy chooses then stays
recycle   the rest of the last draft, and the same token behind it
lookup    as many tokens as a lookup finds to follow, and at each change what it finds behind the token that changed
"""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.drafters.lookup import LookupDrafter
from foretoken.protocol.types import Request, Turn, Verdict

FIXED = 0  # the token in slots that nothing is known of


class Slots:
    """Slots that hold one token, all the same (`fixed`). The other kinds know more of each sequence."""

    def begin(self, requests: Sequence[Request]) -> None:
        """New sequences."""

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """The texts go on."""

    def rewind(self, sequence: int, position: int) -> None:
        """A text is cut."""

    def end(self, sequence: int) -> None:
        """A sequence has ended."""

    def first(self, sequence: int, position: int, count: int) -> list[int]:
        """The first guess: at most `count` tokens from a position on."""
        return [FIXED] * count

    def changed(self, sequence: int, position: int, tokens: list[int], known: int, count: int) -> list[int]:
        """What a guess goes on as, when the first token in it that has changed is number `known`: at most `count`
        tokens."""
        return tokens

    def drafted(self, sequence: int, position: int, tokens: Sequence[int]) -> None:
        """What a guess has become: a draft from a position on."""


class RecycledSlots(Slots):
    """The rest of the last draft."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[int, tuple[int, ...]]] = {}  # a draft and its position

    def rewind(self, sequence: int, position: int) -> None:
        """A text is cut: the last draft was for another."""
        self.end(sequence)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._left.pop(sequence, None)

    def first(self, sequence: int, position: int, count: int) -> list[int]:
        """What of the last draft lies behind a position."""
        began, draft = self._left.get(sequence, (position, ()))
        left = draft[position - began :][:count]
        return [*left, *[FIXED] * (count - len(left))]

    def drafted(self, sequence: int, position: int, tokens: Sequence[int]) -> None:
        """Keep it for the next guess."""
        self._left[sequence] = (position, tuple(tokens))


class LookedUpSlots(Slots):
    """What a lookup finds."""

    def __init__(self) -> None:
        self._lookup = LookupDrafter()

    def begin(self, requests: Sequence[Request]) -> None:
        """Note the prompts."""
        self._lookup.begin(requests)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        """Note what was new."""
        self._lookup.observe(verdicts)

    def rewind(self, sequence: int, position: int) -> None:
        """Forget the text from a position on."""
        self._lookup.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        """Forget a sequence."""
        self._lookup.end(sequence)

    def first(self, sequence: int, position: int, count: int) -> list[int]:
        """What is found behind the text."""
        return self.changed(sequence, position, [], 0, count)

    def changed(self, sequence: int, position: int, tokens: list[int], known: int, count: int) -> list[int]:
        """The known tokens, and what is found behind them: what stood there was said of another text."""
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
