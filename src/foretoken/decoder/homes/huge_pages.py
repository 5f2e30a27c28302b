"""Weights copied into memory of their own: one allocation, in huge pages if the system has them.

Reading all weights for each token touches a great many pages. Huge pages are fewer, so looking them up costs less. And
the system cannot drop them, as it may drop the pages of a mapped file.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import TypeVar

import torch

from foretoken.common.progress import progress
from foretoken.errors import ModelError

K = TypeVar("K")
Kind = tuple[Sequence[int], torch.dtype]  # shape and type of a tensor

INSTEAD = "leave them where they are, with weights 'mapped'"  # the advice if there is no memory
_LINE = 256  # bytes; each tensor begins at a multiple: of a cache line, and of all that libraries for GPUs look at
_HUGE_PAGE = 2 << 20  # bytes; the allocation begins at a multiple


def copied(
    tensors: dict[str, torch.Tensor], dtype: torch.dtype | None, *, instead: str = INSTEAD
) -> dict[str, torch.Tensor]:
    """Copies of tensors, converted if a type is given, in one allocation that lives as long as any of them.

    `tensors` is emptied meanwhile, so a mapped file is closed when its last tensor is copied. instead: the advice if
    there is no memory. Raises ModelError then.
    """
    kinds = {name: (tensor.shape, dtype or tensor.dtype) for name, tensor in tensors.items()}
    copies = together(kinds, instead=instead)
    with progress("copying weights", sum(copy.nbytes for copy in copies.values())) as done:
        for name, copy in copies.items():
            copy.copy_(tensors.pop(name))
            done(copy.nbytes)
    return copies


def together(kinds: Mapping[K, Kind], *, instead: str = INSTEAD) -> dict[K, torch.Tensor]:
    """Unfilled tensors of some shapes and types, one behind the other in one allocation, as `size_of` counts them."""
    return viewed(allocate(size_of(kinds), instead=instead), kinds)


def size_of(kinds: Mapping[K, Kind]) -> int:
    """The bytes of tensors of some shapes and types, one behind the other, each at a multiple of `_LINE`."""
    return sum(-(-prod(shape) * dtype.itemsize // _LINE) * _LINE for shape, dtype in kinds.values())


def viewed(memory: torch.Tensor, kinds: Mapping[K, Kind]) -> dict[K, torch.Tensor]:
    """Tensors of some shapes and types at the beginning of memory, uint8, which should begin at one."""
    views: dict[K, torch.Tensor] = {}
    for key, (shape, dtype) in kinds.items():
        views[key] = memory[: prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape))
        memory = memory[size_of({key: (shape, dtype)}) :]
    return views


def allocate(size: int, *, huge: bool = True, instead: str = INSTEAD) -> torch.Tensor:
    """`size` bytes of anonymous memory, uint8, which begin where a huge page may. huge: False asks for small pages.
    Raises ModelError if the machine does not give the memory. instead: the advice in that error."""
    # private: the default is shared memory, whose huge pages another setting of the system controls, mostly off
    private: Mapping[str, int] = (
        {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    )
    try:
        memory = mmap.mmap(-1, size + _HUGE_PAGE, **private)
    except OSError as error:
        raise ModelError(
            f"the machine does not give {size / 1e9:.3g} GB of memory for the weights ({error.strerror}); {instead}"
        ) from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # keeps the allocation
    start = -whole.data_ptr() % _HUGE_PAGE
    return whole[start : start + size]
