"""Prefixes: what sequences have read, for requests that begin with the same tokens.

The caches of ended sequences are kept with their tokens, all of which the target has read and accepted. A new request
begins with the longest prefix that its prompt shares with one of them, or with a sequence that is still under way. The
tokens themselves are compared, not hashes of them: a wrong prefix is impossible, not improbable.

A cache belongs to whoever has removed it from the dictionary, which is one step. So a request that is interrupted, or
that ends in another thread, can lose a prefix, but two sequences can never write to the same memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Kept
from foretoken.verification.features import Seen

# To read sixteen tokens takes little longer than to read one, as a pass reads all weights anyhow. And unrelated
# requests share a few tokens that their chat template begins with: a match of those says nothing about what is used.
LEAST = 16


@dataclass(eq=False)
class _Entry:
    """What is kept, and when it was last used: the greater, the later."""

    kept: Kept[Seen]
    used: int


class Prefixes:
    """Caches of ended sequences. The least recently used is dropped first.

    most_positions: the most tokens whose keys and values are kept, with the features of the same tokens that a drafter
    needs. A cache has room for more than it holds: for up to twice as many, and for 256 at least. Sequences under way
    are not counted. least: the fewest tokens that are worth a copy.

    queries and hits count tokens: those of all prompts that were looked up, and those that need not be read.
    """

    def __init__(self, most_positions: int, *, least: int = LEAST) -> None:
        self.most_positions = most_positions
        self.least = least
        self.queries = 0
        self.hits = 0
        self._entries: dict[int, _Entry] = {}
        self._clock = itertools.count()

    @property
    def positions(self) -> int:
        """How many tokens are kept."""
        return sum(len(entry.kept.tokens) for entry in list(self._entries.values()))

    def begin(
        self, prompt: Sequence[int], names: frozenset[str], live: Iterable[Kept[Seen]] = ()
    ) -> tuple[Cache, Seen] | None:
        """A cache with the longest known prefix of a prompt, and its features of these names. None if there is no
        prefix of at least `least` tokens. The prompt's last token is never in it: that one must be read anyway, for
        the token that follows it.

        live: what sequences under way have read. A kept cache whose tokens all agree is handed over, because what
        follows continues it. Otherwise the prefix is copied.
        """
        text = tuple(prompt[:-1])
        found: Kept[Seen] | None = None
        most, at = 0, None  # at: the number of its entry, if it is kept
        for number, kept in [*self._known(), *((None, kept) for kept in live)]:
            length = _usable(kept, text, names)
            if length > most:
                most, at, found = length, number, kept
        self.queries += len(prompt)
        if found is None or most < self.least:
            return None
        self.hits += most
        whole = most == len(found.tokens) and found.more.names == names and (not names or found.more.rows == most)
        if whole and at is not None and self._entries.pop(at, None) is not None:
            return found.cache, found.more
        self._refresh(at)
        return found.cache.copy(most), found.more.first(names, most)

    def keep(self, read: Kept[Seen]) -> None:
        """Keep what a sequence that has ended has read. Its cache holds these tokens, and perhaps more. It must not be
        used any more.

        What is longer than all that may be kept is cut. A kept prefix of the new one is replaced. If the new one is a
        prefix of a kept one, that one counts as used now. Neither is done where features would be lost.
        """
        length = min(len(read.tokens), self.most_positions)
        if length < self.least:
            return
        new = Kept(read.cache, read.tokens[:length], read.more)
        known = self._known()
        within = next((number for number, kept in known if _covers(kept, new)), None)
        if within is not None:
            self._refresh(within)
            return
        if length < len(read.tokens):  # the memory of all the others is not kept
            new = Kept(read.cache.copy(length), new.tokens, read.more.first(read.more.names, length))
        else:
            new = Kept(read.cache.handed_over(length), new.tokens, read.more)
        for number, kept in known:
            if _covers(new, kept):
                self._entries.pop(number, None)
        self.make_room(self.most_positions - length)
        now = next(self._clock)
        self._entries[now] = _Entry(new, now)

    def drop(self, text: Sequence[int]) -> None:
        """Drop all prefixes that a text may have begun with: its sequence has failed, and they may be why."""
        for number, kept in self._known():
            if agreeing(kept.tokens, text) >= self.least:
                self._entries.pop(number, None)

    def make_room(self, positions: int) -> None:
        """Drop the least recently used until at most so many positions are kept."""
        while self.positions > max(0, positions):
            oldest = min(list(self._entries.items()), key=lambda item: item[1].used, default=(-1, None))
            self._entries.pop(oldest[0], None)

    def clear(self) -> None:
        """Drop all."""
        self.make_room(0)

    def _known(self) -> list[tuple[int, Kept[Seen]]]:
        return [(number, entry.kept) for number, entry in list(self._entries.items())]

    def _refresh(self, number: int | None) -> None:
        """Count a prefix as used now, if it is still there."""
        entry = None if number is None else self._entries.get(number)
        if entry is not None:
            entry.used = next(self._clock)


def _usable(kept: Kept[Seen], text: Sequence[int], names: frozenset[str]) -> int:
    """How many tokens of a text are in a cache, with the features of these names."""
    if not kept.more.holds(names, 0):
        return 0
    common = agreeing(kept.tokens, text)
    return min(common, kept.more.rows) if names else common


def _covers(one: Kept[Seen], other: Kept[Seen]) -> bool:
    """Whether one can take the other's place for every request."""
    length = len(other.tokens)
    return one.tokens[:length] == other.tokens and one.more.holds(other.more.names, min(length, other.more.rows))
