"""The memory that a cache lies in: how it grows, how rows are moved within it, and where native code finds it.

What of it is prefix, what is scratch and what is nobody's is known to the cache alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from foretoken.errors import ContractError

UNWRITTEN = 0  # the tag of what nobody wrote
_FIRST_CAPACITY = 256  # positions


class Memory(NamedTuple):
    """What a cache lies in: keys and values [layers, capacity, kv_heads, head_dim], tags [layers, capacity].

    A cache replaces the three at once, in one assignment. An interruption while it grows thus leaves the old memory
    whole, never keys of one size beside values of another, into which native code would write past the end.
    """

    keys: torch.Tensor
    values: torch.Tensor
    tags: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Memory:
        """Without room for any position."""
        shape = (layers, 0, kv_heads, head_dim)
        keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        return cls(keys, values, np.empty((layers, 0), dtype=np.int64))

    @property
    def capacity(self) -> int:
        """How many positions there is room for."""
        return self.keys.shape[1]

    def grown(self, rows: int) -> Memory:
        """The same contents, in room for `rows` positions at least: doubled as often as that takes."""
        capacity = max(_FIRST_CAPACITY, self.capacity)
        while capacity < rows:
            capacity *= 2
        tags = np.full((len(self.tags), capacity), UNWRITTEN)
        tags[:, : self.tags.shape[1]] = self.tags
        return Memory(_grown(self.keys, capacity), _grown(self.values, capacity), tags)

    def copy_to(self, other: Memory, length: int) -> None:
        """The keys and values of the first `length` positions, without their tags, to other memory that has room."""
        for ours, theirs in zip(self[:2], other[:2], strict=True):
            _copy(theirs, ours, length)

    def move(self, path: Sequence[int], start: int) -> None:
        """The keys and values of a path of slots, to the first slots; slot 0 is at `start`. Tags stay."""
        for tensor in (self.keys, self.values):
            _move(tensor, path, start)

    def address(self, row: int, first_layer: int) -> tuple[int, int, int, int]:
        """Of a row: its key and its value in the first layer, bytes from one layer to the next, that first layer."""
        keys = self.keys
        offset = row * keys.stride(1) * keys.itemsize
        return keys.data_ptr() + offset, self.values.data_ptr() + offset, keys.stride(0) * keys.itemsize, first_layer

    def expect_room(self, rows: int) -> None:
        """What is handed over by address is written to without another look at its size."""
        capacity = self.capacity
        if self.values.shape != self.keys.shape or self.tags.shape != self.keys.shape[:2] or rows > capacity:
            raise ContractError(
                f"a cache has room for {capacity} keys, {self.values.shape[1]} values and {self.tags.shape[1]} tags, "
                f"expected the same for each, and {rows} at least; end its sequence"
            )


class Places(NamedTuple):
    """Where keys and values lie, for native code: good until a row is placed, and as long as `memory` is kept.

    own: of the first slot, its key and its value in the first layer of this cache, bytes from one layer to the next,
    that first layer. prefix, in stretches: first position, the one behind the last, and the same of the first position.
    """

    own: tuple[int, int, int, int]
    prefix: list[tuple[int, int, int, int, int, int]]
    memory: list[Memory]


# Keys and values in the CPU's memory are moved by numpy, in one call and on one thread: PyTorch would wake its own
# threads, which then spin on the cores that the next pass wants, and which a forked process does not have.


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The same memory, as bytes: numpy knows no bfloat16."""
    array: npt.NDArray[np.uint8] = tensor.view(torch.uint8).numpy()
    return array


def _copy(to: torch.Tensor, tensor: torch.Tensor, length: int) -> None:
    """The first `length` positions, into another tensor."""
    if tensor.device.type == "cpu":
        _bytes(to)[:, :length] = _bytes(tensor)[:, :length]
    else:
        to[:, :length] = tensor[:, :length]


def _grown(tensor: torch.Tensor, capacity: int) -> torch.Tensor:
    grown = tensor.new_empty((tensor.shape[0], capacity, *tensor.shape[2:]))
    _copy(grown, tensor, tensor.shape[1])
    return grown


def _move(tensor: torch.Tensor, path: Sequence[int], start: int) -> None:
    """The rows of a path of slots, to the first slots: [layers, capacity, ...], slot 0 at `start`. They are gathered
    before the first one is written over."""
    to, where = slice(start, start + len(path)), [start + slot for slot in path]
    if tensor.device.type == "cpu":
        _bytes(tensor)[:, to] = _bytes(tensor)[:, where]
    else:
        tensor[:, to] = tensor[:, where]
