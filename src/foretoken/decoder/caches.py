"""The target's caches by sequence: what a verifier has in common with a drafter that shares its cache."""

from __future__ import annotations

from foretoken.decoder.cache import Cache
from foretoken.errors import ContractError


class Caches:
    """Owned by the verifier; a drafter is given it as `foretoken.types.Views`, to make views with and nothing else."""

    def __init__(self) -> None:
        self._caches: dict[int, Cache] = {}

    def open(self, sequence: int, cache: Cache) -> None:
        """Keep a new sequence's cache."""
        if sequence in self._caches:
            raise ContractError(f"sequence {sequence} has begun already")
        self._caches[sequence] = cache

    def close(self, sequence: int) -> None:
        """Forget a sequence; one that is not there is forgotten already."""
        self._caches.pop(sequence, None)

    def __getitem__(self, sequence: int) -> Cache:
        try:
            return self._caches[sequence]
        except KeyError:
            raise ContractError(f"sequence {sequence} has not begun, or has ended") from None

    def view(self, sequence: int, layers: range | None = None) -> Cache:
        """A window on a sequence's committed keys and values."""
        return self[sequence].view(layers)
