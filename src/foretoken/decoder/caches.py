"""The target's caches by sequence, which a verifier shares with a drafter that drafts on views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.cache import Cache
from foretoken.errors import ContractError

More = TypeVar("More")


class Caches:
    """The verifier owns these caches. A drafter gets them as `foretoken.decoder.views.Views`, and can only make views
    on them."""

    def __init__(self) -> None:
        self._caches: dict[int, Cache] = {}

    def open(self, sequence: int, cache: Cache) -> None:
        """Keep a new sequence's cache."""
        self.expect_new(sequence)
        self._caches[sequence] = cache

    def expect_new(self, sequence: int) -> None:
        """Raise ContractError if a sequence has a cache already."""
        if sequence in self._caches:
            raise ContractError(f"sequence {sequence} has begun already")

    def replace(self, sequence: int, cache: Cache) -> None:
        """Give a sequence that has a cache another one."""
        assert sequence in self._caches
        self._caches[sequence] = cache

    def close(self, sequence: int) -> Cache | None:
        """Forget the cache of a sequence, and return it, if it has one."""
        return self._caches.pop(sequence, None)

    def look(self, sequence: int) -> Cache | None:
        """The cache of a sequence, if it has one."""
        return self._caches.get(sequence)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._caches

    def __getitem__(self, sequence: int) -> Cache:
        try:
            return self._caches[sequence]
        except KeyError:
            raise ContractError(f"sequence {sequence} has not begun, or has ended") from None

    def view(self, sequence: int, layers: range | None = None, length: int | None = None) -> Cache:
        """A view on a sequence's committed keys and values, of at most its first `length` positions."""
        return self[sequence].view(layers, length)


@dataclass(frozen=True)
class Kept(Generic[More]):
    """A cache that one sequence leaves to another, the tokens in it, and what else is kept of them."""

    cache: Cache
    tokens: tuple[int, ...]
    more: More


class KeptCaches(Generic[More]):
    """Caches of conversations between their turns. The common prefix of two prompts is read once."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept[More]] = {}

    def put(self, conversation: int, cache: Cache, tokens: Sequence[int], more: More) -> None:
        """Keep a cache that begins with `tokens`. Positions behind these tokens are not kept."""
        length = min(cache.length, len(tokens))
        self._kept[conversation] = Kept(cache.handed_over(length), tuple(tokens[:length]), more)

    def take(self, conversation: int, prompt: Sequence[int]) -> Kept[More] | None:
        """Take what was kept; None if nothing was. The cache is cut to the prefix that it shares with a prompt, without
        the prompt's last token: that one must be read anyway, for the token that follows it."""
        kept = self._kept.pop(conversation, None)
        if kept is not None:
            kept.cache.truncate(agreeing(kept.tokens, prompt[:-1]))
        return kept

    def look(self, conversation: int, prompt: Sequence[int]) -> tuple[int, More | None]:
        """How many tokens of a prompt `take` would give the keys and values of, and what is kept beside them."""
        kept = self._kept.get(conversation)
        return (0, None) if kept is None else (agreeing(kept.tokens, prompt[:-1]), kept.more)

    def forget(self, conversation: int) -> None:
        """Free the cache of a conversation, if one is kept."""
        self._kept.pop(conversation, None)
