"""The memory of a cache: how it grows, how rows move within it, and the addresses that native code uses.

Only the cache knows which positions are prefix, which are scratch, and which are unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from foretoken.errors import ContractError
from foretoken.kernels import gpu

UNWRITTEN = 0  # the tag of a slot that no pass has written
FIRST_CAPACITY = 256  # positions


def doubled(capacity: int, rows: int) -> int:
    """A capacity, doubled until it suffices for some rows."""
    while capacity < rows:
        capacity *= 2
    return capacity


class Memory(NamedTuple):
    """Keys and values [layers, capacity, kv_heads, head_dim] of a cache, and tags [layers, capacity].

    A cache replaces the three in one assignment. So an interruption while the cache grows leaves the old memory whole.
    Otherwise keys of one size could stand beside values of another, and native code would write past their end.
    """

    keys: torch.Tensor
    values: torch.Tensor
    tags: npt.NDArray[np.int64]
    least: int = FIRST_CAPACITY  # positions for which there is room once there is room for any

    @classmethod
    def empty(cls, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Memory:
        """Memory without room for any position."""
        shape = (layers, 0, kv_heads, head_dim)
        keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        return cls(keys, values, np.empty((layers, 0), dtype=np.int64))

    @property
    def capacity(self) -> int:
        """The number of positions that fit."""
        return self.keys.shape[1]

    def bytes_to_grow(self, rows: int) -> int:
        """The bytes of keys and values that would be taken anew to make room for `rows` positions; 0 if they fit."""
        if rows <= self.capacity:
            return 0
        positions = self.keys.shape[0] * self._grown_capacity(rows)
        return 2 * positions * self.keys.shape[2] * self.keys.shape[3] * self.keys.itemsize

    def grown(self, rows: int) -> Memory:
        """Memory with the same contents and room for at least `rows` positions, and for `least`. The capacity is
        doubled until it suffices."""
        capacity = self._grown_capacity(rows)
        tags = np.zeros((len(self.tags), capacity), dtype=np.int64)  # UNWRITTEN; no memory is used before it is written
        tags[:, : self.tags.shape[1]] = self.tags
        with gpu.telling_of_memory():
            return Memory(_grown(self.keys, capacity), _grown(self.values, capacity), tags, self.least)

    def _grown_capacity(self, rows: int) -> int:
        return doubled(max(self.least, self.capacity), rows)

    def copy_to(self, other: Memory, length: int) -> None:
        """Copy the keys and values of the first `length` positions, without their tags, to other memory with room."""
        for ours, theirs in zip(self[:2], other[:2], strict=True):
            _copy(theirs, ours, length)

    def copy_from(self, other: Memory, rows: Sequence[int], start: int) -> None:
        """Copy keys, values and tags of some rows of other memory to the rows from `start` on."""
        to = slice(start, start + len(rows))
        for ours, theirs in zip(self[:2], other[:2], strict=True):
            if ours.device.type == "cpu":
                _bytes(ours)[:, to] = _bytes(theirs)[:, list(rows)]
            else:
                ours[:, to] = theirs[:, list(rows)]
        self.tags[:, to] = other.tags[:, list(rows)]

    def overwrite(self, layer: int, span: slice, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Replace keys and values of some positions of a layer. Tags stay."""
        for ours, new in ((self.keys, keys), (self.values, values)):
            if ours.device.type == "cpu" and new.dtype == ours.dtype:
                _bytes(ours)[layer, span] = _bytes(new)
            else:
                ours[layer, span] = new.to(ours.dtype)

    def move(self, path: Sequence[int], start: int) -> None:
        """Move the keys and values of a path of slots to the first slots. Slot 0 is at `start`. Tags stay."""
        for tensor in (self.keys, self.values):
            _move(tensor, path, start)

    def address(self, row: int, first_layer: int) -> tuple[int, int, int, int]:
        """The address of a row's key and of its value in the first layer, the bytes from one layer to the next, and the
        number of that first layer."""
        keys = self.keys
        offset = row * keys.stride(1) * keys.itemsize
        return keys.data_ptr() + offset, self.values.data_ptr() + offset, keys.stride(0) * keys.itemsize, first_layer

    def expect_room(self, rows: int) -> None:
        """Raise ContractError without room for `rows` positions: native code, which gets addresses, does not check."""
        capacity = self.capacity
        if self.values.shape != self.keys.shape or self.tags.shape != self.keys.shape[:2] or rows > capacity:
            raise ContractError(
                f"a cache has room for {capacity} keys, {self.values.shape[1]} values and {self.tags.shape[1]} tags, "
                f"expected the same for each, and {rows} at least; end its sequence"
            )


class Places(NamedTuple):
    """The addresses of keys and values, for native code. They are valid until a row is placed, and as long as `memory`
    is kept.

    own: for the first slot, the address of its key and of its value in the first layer of this cache, the bytes from
    one layer to the next, and the number of that layer. prefix: stretches of positions, each with its first position,
    the one behind its last, and the same four numbers for the first position.
    """

    own: tuple[int, int, int, int]
    prefix: list[tuple[int, int, int, int, int, int]]
    memory: list[Memory]


# numpy moves keys and values in the CPU's memory, in one call and on one thread. PyTorch would wake its own threads.
# These then spin on the cores that the next pass wants, and a forked process does not have them.


def _bytes(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The same memory, as bytes: numpy knows no bfloat16."""
    array: npt.NDArray[np.uint8] = tensor.view(torch.uint8).numpy()
    return array


def _copy(to: torch.Tensor, tensor: torch.Tensor, length: int) -> None:
    """Copy the first `length` positions into another tensor."""
    if tensor.device.type == "cpu":
        _bytes(to)[:, :length] = _bytes(tensor)[:, :length]
    else:
        to[:, :length] = tensor[:, :length]


def _grown(tensor: torch.Tensor, capacity: int) -> torch.Tensor:
    grown = tensor.new_empty((tensor.shape[0], capacity, *tensor.shape[2:]))
    _copy(grown, tensor, tensor.shape[1])
    return grown


def _move(tensor: torch.Tensor, path: Sequence[int], start: int) -> None:
    """Move the rows of a path of slots to the first slots, in a tensor [layers, capacity, ...] with slot 0 at `start`.
    All rows are gathered before the first one is written over."""
    to, where = slice(start, start + len(path)), [start + slot for slot in path]
    if tensor.device.type == "cpu":
        _bytes(tensor)[:, to] = _bytes(tensor)[:, where]
    else:
        tensor[:, to] = tensor[:, where]
