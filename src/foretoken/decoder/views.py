"""Access to the target's keys and values for other parts: views to draft on, and extractors of features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from foretoken.decoder.cache import Cache


class Extractor(Protocol):
    """Reduces the target's keys and values to features for a drafter. It runs beside the target and only reads.

    `name` holds a version or a hash of the extractor's parameters: extractors with different features have different
    names.
    """

    name: str

    def __call__(self, cache: Cache, start: int, stop: int) -> Mapping[str, torch.Tensor]:
        """Features of the committed positions `start` to `stop` (not included): one row for each position, in memory of
        their own."""
        ...


class Views(Protocol):
    """For a drafter that shares the target's cache: a way to make a view each round, and nothing else."""

    def view(self, sequence: int, layers: range | None = None, length: int | None = None) -> Cache:
        """A view of a sequence's committed keys and values, of all layers or some, and of at most `length` positions. A
        drafter that was not told the last verdict yet must not see the positions that the verdict brought."""
        ...
