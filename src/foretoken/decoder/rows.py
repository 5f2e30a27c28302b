"""The rows of one forward pass. Each row is one token of one sequence, behind its ancestors.

There is no batch axis. A chain, a tree and several sequences are all lists of rows, in segments of one cache each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass

import torch

from foretoken.decoder.cache import Cache, new_writer
from foretoken.decoder.config import DecoderConfig
from foretoken.errors import ContractError
from foretoken.protocol.telemetry import Cost


@dataclass(frozen=True)
class Segment:
    """The rows of a pass that belong to one cache. `span` is their place in the pass."""

    cache: Cache
    slots: range
    span: slice
    epoch: int  # the cache's, when the rows were placed


class Rows:
    """N rows, placed in the scratch of their caches, each of which sees its ancestors and itself. (In layers of some
    drafters, rows see those behind them, too, or none of the pass.) Each pass has its own object. Its `writer` tags the
    rows that the pass writes, and its `cost` adds up the decoder's calls for this pass."""

    def __init__(
        self, parts: Iterable[tuple[Cache, Sequence[int], Sequence[int]]], *, writer: int | None = None
    ) -> None:
        """parts: (cache, tokens, parents) each. A parent is a slot of that cache's scratch, or -1.

        writer: a tag from `new_writer`, if rows of several passes are to be committed together. None: a new tag. Raises
        ContractError for a part without rows, or with other numbers of tokens and parents.
        """
        self.writer = new_writer() if writer is None else writer
        self.cost = Cost()
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
            self.segments.append(Segment(cache, slots, slice(first, len(self.tokens)), cache.epoch))
        if not self.segments:
            raise ContractError("a pass came without rows; expected some")
        # for each row, the slots of its ancestors and its own; empty if these are all slots up to its own
        self.paths: list[list[int]] = [
            _path(segment.cache, slot) for segment in self.segments for slot in segment.slots
        ]
        self.sees = self.positions  # for each row, the last position that it sees
        self.sees_ancestors = True  # whether each row sees just its ancestors and itself

    def see_each_other(self) -> None:
        """Let each row see all rows of its segment, those behind it, too: so a drafter fills a block of places at once.
        Raises ContractError for rows that are no chain, or that do not begin at the end of the prefix."""
        self.sees, self.sees_ancestors = list(self.positions), False
        for segment in self.segments:
            if segment.slots.start or any(self.paths[segment.span]):
                raise ContractError("rows that see each other must be a chain, and the only scratch of their cache")
            last = self.positions[segment.span.stop - 1]
            self.sees[segment.span] = [last] * len(segment.slots)

    def seeing(self, counts: Sequence[int]) -> Rows:
        """The same rows as a pass of its own with the same writer, in which they see neither each other nor themselves:
        those of each segment see the first positions of their cache, as many as `counts` says."""
        one = copy(self)
        one.cost, one.sees_ancestors = Cost(), False
        one.paths = [[] for _ in self.tokens]
        one.sees = list(self.positions)
        for segment, count in zip(self.segments, counts, strict=True):
            if not 0 < count <= segment.cache.length + segment.cache.scratch:
                raise ContractError(f"rows are to see {count} positions of a cache that has {segment.cache.length}")
            one.sees[segment.span] = [count - 1] * len(segment.slots)
        return one

    def part(self, first: int, stop: int, tokens: Sequence[int]) -> Rows:
        """Rows `first` to `stop` (not included) of a pass over one sequence, with `tokens` in their slots, as a pass of
        its own with the same writer."""
        (segment,) = self.segments
        if len(tokens) != stop - first or not 0 <= first < stop <= len(self):
            raise ContractError(f"{len(tokens)} tokens came for rows {first} to {stop} of {len(self)}")
        one = copy(self)
        one.cost = Cost()
        one.tokens, one.positions, one.paths = list(tokens), self.positions[first:stop], self.paths[first:stop]
        one.sees = self.sees[first:stop]
        one.segments = [Segment(segment.cache, segment.slots[first:stop], slice(0, stop - first), segment.epoch)]
        return one

    def expect_placed(self) -> None:
        """Raise ContractError if the rows' slots have been discarded, committed or truncated since they were placed."""
        for segment in self.segments:
            cache, slots, position = segment.cache, segment.slots, self.positions[segment.span.start]
            if segment.epoch != cache.epoch:
                raise ContractError(
                    f"rows were placed in slots {slots.start} to {slots.stop - 1} from position {position} on, which "
                    f"their cache has since given up (it has {cache.scratch} slots from {cache.length} on)"
                )

    def expect_fit(self, kind: str, device: torch.device, layers: range) -> None:
        """Raise ContractError for rows that a pass cannot write by address: in caches of another kind (`kind_of`), on
        another device, or that do not cover its layers."""
        self.expect_placed()
        for segment in self.segments:
            for cache in segment.cache.lineage():
                if layers and not (cache.layers.start <= layers.start and layers.stop <= cache.layers.stop):
                    raise ContractError(
                        f"layers {layers.start} to {layers.stop} were asked of a view that covers {cache.layers}"
                    )
            if segment.cache.device != device:
                raise ContractError(f"a cache lies on {segment.cache.device}; expected one that this decoder made")
            if segment.cache.kind != kind:
                raise ContractError(f"a cache holds {segment.cache.kind}; expected {kind}: one that this decoder made")

    def tag(self, layers: range) -> None:
        """Note that this pass has written the rows' keys and values of some layers, by address."""
        for segment in self.segments:
            segment.cache.tag(layers, segment.slots, self.writer)

    def followers(self, row: int, count: int) -> list[int]:
        """A row and its descendants in the tree, in the order of the pass: at most `count` rows."""
        segment = next(s for s in self.segments if s.span.start <= row < s.span.stop)
        found, nearest = [row], {segment.slots[row - segment.span.start]}
        for other in range(row + 1, segment.span.stop):  # parents come before children
            if len(found) >= count:
                break
            slot = segment.slots[other - segment.span.start]
            if segment.cache.parent_of(slot) in nearest:
                nearest.add(slot)
                found.append(other)
        return found

    def __len__(self) -> int:
        return len(self.tokens)


def kind_of(config: DecoderConfig, dtype: torch.dtype) -> str:
    """What `Cache.kind` says of a decoder's caches."""
    return f"{config.num_kv_heads} heads of {config.head_dim}, {str(dtype).removeprefix('torch.')}"


def _path(cache: Cache, slot: int) -> list[int]:
    if cache.linear:
        return []
    path = cache.path(slot)
    return [] if len(path) == slot + 1 else path


def chain(cache: Cache, tokens: Sequence[int], *, writer: int | None = None) -> Rows:
    """A pass over one sequence in which each token follows the one before, behind all slots in use."""
    first = cache.scratch - 1
    return Rows([(cache, tokens, range(first, first + len(tokens)))], writer=writer)
