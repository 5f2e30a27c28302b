"""What others may see of the target's keys and values: views to draft on, and what extractors reduce them to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from foretoken.decoder.cache import Cache


class Extractor(Protocol):
    """Reduces the target's keys and values, beside the target, to what a drafter needs to see of them. Only reads.

    `name` holds a version or a hash of what it computes with: two that give other features have other names.
    """

    name: str

    def __call__(self, cache: Cache, start: int, stop: int) -> Mapping[str, torch.Tensor]:
        """Features of the committed positions `start` to `stop`: one row a position, memory of their own."""
        ...


class Views(Protocol):
    """What a drafter that shares the target's cache is given: a way to make views, one a round, and nothing else."""

    def view(self, sequence: int, layers: range | None = None, length: int | None = None) -> Cache:
        """A window on a sequence's committed keys and values, of all layers or some, and of `length` positions at most:
        a drafter that has not heard of the last verdict yet must not see what it has brought."""
        ...
