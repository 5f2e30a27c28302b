"""The rows of one forward pass: which token, of which sequence, after which ancestors.

There is no batch axis. A chain, a tree and several sequences are all lists of rows, in segments of one cache each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from foretoken.decoder.cache import Cache, new_writer
from foretoken.errors import ContractError


@dataclass(frozen=True)
class Segment:
    """The rows of a pass that belong to one cache. `span` is where they stand in the pass."""

    cache: Cache
    slots: range
    span: slice


class Rows:
    """N rows, placed in the scratch of their caches. One object a pass: its `writer` tags what the pass writes."""

    def __init__(self, parts: Iterable[tuple[Cache, Sequence[int], Sequence[int]]]) -> None:
        """parts: (cache, tokens, parents) each; a parent is a slot of that cache's scratch, or -1."""
        self.writer = new_writer()
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.segments: list[Segment] = []
        for cache, tokens, parents in parts:
            if len(tokens) != len(parents) or not len(tokens):
                raise ContractError(
                    f"{len(tokens)} tokens came with {len(parents)} parents; expected as many, and some"
                )
            slots = cache.place(parents)
            first = len(self.tokens)
            self.tokens.extend(tokens)
            self.positions.extend(cache.position(slot) for slot in slots)
            self.segments.append(Segment(cache, slots, slice(first, len(self.tokens))))
        # of each row: None if its keys are the first `position + 1` in storage, else where those after the prefix lie
        self.picks: list[torch.Tensor | None] = [
            _pick(segment.cache, slot) for segment in self.segments for slot in segment.slots
        ]

    def __len__(self) -> int:
        return len(self.tokens)


def _pick(cache: Cache, slot: int) -> torch.Tensor | None:
    path = cache.path(slot)
    if len(path) == slot + 1:  # every slot up to this one is an ancestor
        return None
    return torch.tensor(path, device=cache.device) + cache.length


def chain(cache: Cache, tokens: Sequence[int]) -> Rows:
    """A pass over one sequence in which each token follows the one before, after all scratch there is."""
    first = cache.scratch - 1
    return Rows([(cache, tokens, range(first, first + len(tokens)))])
