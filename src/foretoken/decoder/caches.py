"""The target's caches by sequence: what a verifier has in common with a drafter that shares its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from foretoken.acceptance.walk import agreeing
from foretoken.decoder.cache import Cache
from foretoken.errors import ContractError

More = TypeVar("More")


class Caches:
    """Owned by the verifier. A drafter is given it as `foretoken.decoder.views.Views`, which only makes views."""

    def __init__(self) -> None:
        self._caches: dict[int, Cache] = {}

    def open(self, sequence: int, cache: Cache) -> None:
        """Keep a new sequence's cache."""
        self.expect_new(sequence)
        self._caches[sequence] = cache

    def expect_new(self, sequence: int) -> None:
        """Refuse a sequence that is there."""
        if sequence in self._caches:
            raise ContractError(f"sequence {sequence} has begun already")

    def replace(self, sequence: int, cache: Cache) -> None:
        """Give a sequence that is there another cache."""
        assert sequence in self._caches
        self._caches[sequence] = cache

    def close(self, sequence: int) -> None:
        """Forget a sequence; one that is not there is forgotten already."""
        self._caches.pop(sequence, None)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._caches

    def __getitem__(self, sequence: int) -> Cache:
        try:
            return self._caches[sequence]
        except KeyError:
            raise ContractError(f"sequence {sequence} has not begun, or has ended") from None

    def view(self, sequence: int, layers: range | None = None, length: int | None = None) -> Cache:
        """A window on a sequence's committed keys and values, of its first `length` positions at most."""
        return self[sequence].view(layers, length)


@dataclass(frozen=True)
class Kept(Generic[More]):
    """A cache between two sequences, the tokens that it holds, and what else was kept of them."""

    cache: Cache
    tokens: tuple[int, ...]
    more: More


class KeptCaches(Generic[More]):
    """Caches of conversations between their turns: what two prompts begin with in common is read once."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept[More]] = {}

    def put(self, conversation: int, cache: Cache, tokens: Sequence[int], more: More) -> None:
        """Keep a cache, of which `tokens` are known to be what it holds from the beginning: no more of it is kept."""
        length = min(cache.length, len(tokens))
        self._kept[conversation] = Kept(cache.handed_over(length), tuple(tokens[:length]), more)

    def take(self, conversation: int, prompt: Sequence[int]) -> Kept[More] | None:
        """What was kept, its cache cut to what it has in common with a prompt, but for the prompt's last token.

        That one must be read anyhow: nobody kept what follows it. None if nothing was kept.
        """
        kept = self._kept.pop(conversation, None)
        if kept is not None:
            kept.cache.truncate(agreeing(kept.tokens, prompt[:-1]))
        return kept

    def forget(self, conversation: int) -> None:
        """Free a cache; one that is not there is free already."""
        self._kept.pop(conversation, None)
