"""Keys and values of one sequence: a committed prefix, then scratch.

A pass writes the rows that it computes into scratch *slots*. `commit` turns one path of slots into prefix and forgets
the rest. A *view* is a cache that begins where the prefix of another cache ends: a drafter reads that prefix, writes
and commits in the view's own memory, and drops the view. Views stack, and may cover only some of the layers.

                  position 0 ............. base ........... length
    a cache       | prefix                                  | slot 0 | slot 1 | ...
    a view on it  | the parent's prefix     | own prefix    | slot 0 | slot 1 | ...

Shapes: keys and values [layers, capacity, kv_heads, head_dim], rounded to the cache's type before any row reads them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from foretoken.decoder.coded_prefix import CodedPrefix, CodePlaces
from foretoken.decoder.memory import FIRST_CAPACITY, UNWRITTEN, Memory, Places
from foretoken.errors import ContractError
from foretoken.formats.table import PLACES

_writers = itertools.count(1)


def new_writer() -> int:
    """A tag that no pass had before. It distinguishes the rows of one pass from all else in scratch."""
    return next(_writers)


class Cache:
    """Keys and values of one sequence or, with a parent, a view."""

    def __init__(self, layers: range, memory: Memory, parent: Cache | None = None, base: int = 0) -> None:
        """memory: for these layers, without any position yet. parent: for a view, the cache under it. base: the first
        position of the view's own memory."""
        self.layers = layers
        self.parent = parent
        self.base = base
        self.length: int = self.base  # committed positions, the parent's included
        self._truncations = 0  # each makes the views on this cache unusable
        self._parent_truncations = 0 if parent is None else parent._truncations
        self.epoch = 0  # counts how often scratch was discarded: rows that were placed before have no slots any more
        self.writers = 0  # passes that write to this memory by address
        self._parents: list[int] = []  # the parent of each slot: a slot, or -1 for the end of the prefix
        self._depths: list[int] = []
        self.linear = True  # whether each slot's parent is the slot before it
        self._memory = memory
        self._coded = CodedPrefix()
        self.device = memory.keys.device

    # -- scratch ----------------------------------------------------------------------------------------------------

    @property
    def scratch(self) -> int:
        """How many slots are in use."""
        return len(self._parents)

    def place(self, parents: Sequence[int]) -> range:
        """Reserve a slot for each row. A parent is an earlier slot, or -1 for the end of the prefix. Returns the slots.

        Raises ContractError for a parent that is not an earlier slot.
        """
        self._expect_ground()
        first = self.scratch
        for slot, parent in enumerate(parents, first):
            if not -1 <= parent < slot:
                raise ContractError(f"slot {slot} was given parent {parent}; expected an earlier slot, or -1")
        self._reserve(self._used + len(parents))
        self.linear = self.linear and all(parent == slot - 1 for slot, parent in enumerate(parents, first))
        for parent in parents:
            self._parents.append(parent)
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)
        start = self.length - self.base
        self._memory.tags[:, start + first : start + self.scratch] = UNWRITTEN
        return range(first, self.scratch)

    def adopt(self, other: Cache, slots: Sequence[int], parents: Sequence[int]) -> range:
        """Copy rows from the scratch of another cache of the same model, at the same positions in the text, with the
        tags of their writers. parents: as in `place`. Returns the slots that they have here."""
        found = self.place(parents)
        places = [(self.position(mine), other.position(theirs)) for mine, theirs in zip(found, slots, strict=True)]
        if self.layers != other.layers or any(mine != theirs for mine, theirs in places):
            raise ContractError(f"rows of layers {other.layers} at positions {places} cannot be adopted: other places")
        theirs = other.length - other.base
        self._memory.copy_from(other._memory, [theirs + slot for slot in slots], self.length - self.base + found.start)
        return found

    def position(self, slot: int) -> int:
        """The position in the sequence of the row in a slot."""
        return self.length + self._depths[slot]

    def parent_of(self, slot: int) -> int:
        """The slot that a slot's row follows, or -1 for the end of the prefix."""
        return self._parents[slot]

    def path(self, slot: int) -> list[int]:
        """The slots from the end of the prefix down to and including `slot`."""
        path = []
        while slot >= 0:
            path.append(slot)
            slot = self._parents[slot]
        return path[::-1]

    def write(self, layer: int, slots: range, keys: torch.Tensor, values: torch.Tensor, writer: int) -> None:
        """Store rows of one layer and tag them with their writer. keys, values: [len(slots), kv_heads, head_dim]."""
        at = self._layer(layer)
        start = self.length - self.base
        span = slice(start + slots.start, start + slots.stop)
        self._memory.overwrite(at, span, keys, values)
        self._memory.tags[at, span] = writer

    def tag(self, layers: range, slots: range, writer: int) -> None:
        """Tag some slots in some layers with their writer, after native code has written them by address."""
        start = self.length - self.base
        first = self.layers.start
        rows = slice(start + slots.start, start + slots.stop)
        self._memory.tags[layers.start - first : layers.stop - first, rows] = writer

    def addresses(self) -> Places:
        """The addresses to which a pass writes, and from which it reads the prefix.

        A cache under this view may grow meanwhile in another thread. The addresses of the prefix stay valid.
        """
        own = self._memory
        own.expect_room(self._used)
        prefix, memory = [], [own]
        end = self.length
        for at in self.lineage():
            at._expect_ground()
            if at.base < end:
                below = own if at is self else at._memory
                below.expect_room(end - at.base)
                memory.append(below)
                prefix.append((at.base, end, *below.address(0, at.layers.start)))
            end = min(end, at.base)
        return Places(own.address(self.length - self.base, self.layers.start), prefix[::-1], memory)

    @property
    def whole_blocks(self) -> int:
        """Of a view: how many whole blocks of `PLACES` positions it sees of the cache at the bottom. 0 without a
        parent."""
        if self.parent is None:
            return 0
        return min(at.base for at in self.lineage() if at.parent is not None) // PLACES

    def coded(self, layers: range, code: CodePlaces) -> tuple[torch.Tensor, ...]:
        """Those blocks in int8, of some layers: for each block uint8 [layers, kv_heads, bytes]."""
        *_, bottom = self.lineage()
        first = bottom.layers.start
        span = slice(layers.start - first, layers.stop - first)
        return bottom._coded.of(bottom._memory, span, self.whole_blocks, code)

    @property
    def dtype(self) -> torch.dtype:
        """The type that keys and values are rounded to."""
        return self._memory.keys.dtype

    def bytes_to_grow(self, rows: int) -> int:
        """The bytes that would be taken anew to make room for `rows` positions; 0 if they fit."""
        return self._memory.bytes_to_grow(rows)

    @property
    def row_bytes(self) -> int:
        """From the key of one position to that of the next."""
        return self._memory.keys.stride(1) * self._memory.keys.itemsize

    @property
    def head_bytes(self) -> int:
        """From the key of one head to that of the next."""
        return self._memory.keys.stride(2) * self._memory.keys.itemsize

    def lineage(self) -> Iterator[Cache]:
        """This cache and, if it is a view, all caches under it."""
        at: Cache | None = self
        while at is not None:
            yield at
            at = at.parent

    @property
    def kind(self) -> str:
        """The shape and type of a position, in words. Only caches of one kind may take each other's place."""
        _, _, kv_heads, head_dim = self._memory.keys.shape
        return f"{kv_heads} heads of {head_dim}, {str(self._memory.keys.dtype).removeprefix('torch.')}"

    def discard(self) -> None:
        """Forget all scratch."""
        self.epoch += 1
        self.linear = True
        self._parents.clear()
        self._depths.clear()

    # -- prefix -----------------------------------------------------------------------------------------------------

    def commit(self, path: Sequence[int], writer: int) -> None:
        """Make one path of slots part of the prefix, and forget all other scratch.

        Raises ContractError if the slots are not a path, or if `writer` has not written each of them in every layer: a
        drafter's rows can never become the target's. `length` changes last, so a commit that is broken off leaves the
        prefix as it was.
        """
        self._expect_ground()
        previous = -1
        for slot in path:
            if not 0 <= slot < self.scratch or self._parents[slot] != previous:
                raise ContractError(f"slots {list(path)} are not a path from the end of the prefix")
            previous = slot
        start = self.length - self.base
        in_order = list(path) == list(range(len(path)))
        where = slice(start, start + len(path)) if in_order else np.asarray(path) + start
        memory = self._memory
        right = memory.tags[:, where] == writer
        if not right.all():
            layer, row = np.argwhere(~right)[0].tolist()
            raise ContractError(
                f"slot {path[row]} of layer {self.layers[layer]} was not written by the pass that commits it"
            )
        if not in_order:
            # a commit that is broken off between the moves must not be tried again, so the slots lose their tags
            memory.tags[:, start : start + self.scratch] = UNWRITTEN
            memory.move(path, start)
        self.discard()
        self.length += len(path)

    def overwrite(self, layer: int, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Replace what is committed of one layer, in this cache's own memory, from position `start` on. For a drafter
        that learns later what its rows should have held. keys, values: [N, kv_heads, head_dim]."""
        at, stop = self._layer(layer), start + len(keys)
        if not self.base <= start <= stop <= self.length:
            raise ContractError(
                f"positions {start} to {stop} are not committed in this cache, which has {self.base} to {self.length}"
            )
        span, memory = slice(start - self.base, stop - self.base), self._memory
        self._coded.cut(start - self.base)
        memory.overwrite(at, span, keys, values)

    def truncate(self, length: int) -> None:
        """Keep only the first `length` positions, and no scratch. Views that were made before become unusable."""
        if not self.base <= length <= self.length:
            raise ContractError(f"cannot truncate to {length}; expected {self.base} to {self.length}")
        self.discard()
        if length < self.length:
            self._truncations += 1
            self._coded.cut(length - self.base)
        self.length = length

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, [length + scratch, kv_heads, head_dim]: prefix by position, then slots in order.

        A row that no pass has written may hold anything, NaN included. So a reader must pick rows, not mask them.
        """
        at = self._layer(layer)
        stop = self.length - self.base + self.scratch
        keys, values = self._memory.keys[at, :stop], self._memory.values[at, :stop]
        if self.parent is None:
            return keys, values
        self._expect_ground()
        below_keys, below_values = self.parent.read(layer)
        if not stop:
            return below_keys[: self.base], below_values[: self.base]
        return torch.cat((below_keys[: self.base], keys)), torch.cat((below_values[: self.base], values))

    def view(self, layers: range | None = None, length: int | None = None) -> Cache:
        """A view on this cache's prefix: of all its layers or some, and of at most its first `length` positions."""
        layers = self.layers if layers is None else layers
        for layer in layers:
            self._layer(layer)
        held = self.length
        return self._like(layers, parent=self, base=held if length is None else max(0, min(held, length)))

    def copy(self, length: int) -> Cache:
        """A new cache with memory of its own and the first `length` positions of this one."""
        self._expect_root("copy", length)
        other = self._like(self.layers)
        other._reserve(length)
        self._memory.copy_to(other._memory, length)
        other._coded = self._coded.first(length)
        other.length = length
        return other

    def handed_over(self, length: int) -> Cache:
        """A new cache that takes over the memory and the first `length` positions of this one. Whatever an interrupted
        sequence has left (scratch, counts of writers) stays behind. This cache must not be used any more."""
        self._expect_root("hand over", length)
        other = self._like(self.layers)
        other._memory = self._memory
        other._coded = self._coded.first(length)
        other.length = length
        return other

    def _like(self, layers: range, parent: Cache | None = None, base: int = 0) -> Cache:
        _, _, kv_heads, head_dim = self._memory.keys.shape
        memory = Memory.empty(len(layers), kv_heads, head_dim, self._memory.keys.dtype, self.device)
        # with room for as much as this one: where memory is bounded, nothing is copied into twice as much to grow. On a
        # GPU room takes memory even if it is not used, so there a view begins small
        least = FIRST_CAPACITY if self.device.type != "cpu" and parent is not None else self._memory.least
        return Cache(layers, memory._replace(least=least), parent, base)

    def _expect_root(self, what: str, length: int) -> None:
        if self.parent is not None or not 0 <= length <= self.length:
            raise ContractError(f"cannot {what} {length} positions; expected up to {self.length}, and no view")

    def digest(self) -> str:
        """SHA-256 of the committed keys and values: equal digests are equal bits."""
        digest = hashlib.sha256()
        for layer in self.layers:
            for tensor in self.read(layer):
                digest.update(tensor[: self.length].contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()

    def _expect_ground(self) -> None:
        if self.parent is not None and self.parent._truncations != self._parent_truncations:
            raise ContractError("the cache under this view was truncated; make a new view each round")

    def _layer(self, layer: int) -> int:
        if layer not in self.layers:
            raise ContractError(f"layer {layer} is not in this view, which covers {self.layers}")
        return layer - self.layers.start

    @property
    def _used(self) -> int:
        """Positions of the own memory that are in use: committed ones and slots."""
        return self.length - self.base + self.scratch

    def _reserve(self, rows: int) -> None:
        if rows <= self._memory.capacity:
            return
        if self.writers:
            raise ContractError("a cache cannot grow while another thread's pass writes to it; wait for the pass")
        self._memory = self._memory.grown(rows)  # keys, values and tags at once: see `Memory`
