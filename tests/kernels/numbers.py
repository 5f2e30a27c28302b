"""Numbers that arithmetic finds hard, as tensors that begin anywhere in memory, and what it means to be the same."""

from __future__ import annotations

import numpy as np
import torch

# normal: around 1. wide: any exponent, subnormal ones among them. edge: products are about the smallest normal number.
# huge: sums overflow. ties: few significant bits, so that sums fall between two numbers, or cancel. special: wide, with
# infinities and zeros of both signs
KINDS = ("normal", "wide", "edge", "huge", "ties", "special")
BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
DTYPES = tuple(BITS)


def floats(kind: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """float32 numbers of a kind."""
    dice = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "normal":
        return torch.from_numpy(dice.standard_normal(shape, dtype=np.float32))
    if kind == "ties":
        whole = dice.choice(np.array([0, 1, 1, 1, 257, 2**24, 3 * 2**23], dtype=np.float32), shape)
        scale = dice.choice(np.array([1, 2.0**-8, 2.0**-24, 2.0**-25], dtype=np.float32), shape)
        return torch.from_numpy(whole * scale * dice.choice(np.array([1, -1], dtype=np.float32), shape))
    low, high = {"edge": (60, 69), "huge": (249, 255)}.get(kind, (0, 255))
    exponents = dice.integers(low, high, shape, dtype=np.uint32)
    bits = dice.integers(0, 1 << 23, shape, dtype=np.uint32) | exponents << 23 | dice.integers(0, 2, shape) << 31
    numbers = bits.astype(np.uint32).view(np.float32)
    if kind == "special":
        for value in (np.inf, -np.inf, 0.0, -0.0):
            numbers[dice.random(shape) < 0.03] = value
    return torch.from_numpy(numbers)


def numbers(kind: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers of a kind in a type. In float16, which has few exponents, wide ones are any pattern of bits."""
    if dtype == torch.float16 and kind in ("wide", "special", "edge"):
        patterns = np.random.default_rng(seed).integers(0, 1 << 16, shape, dtype=np.uint16)
        kept = patterns if kind == "special" else patterns & 0xBFFF  # special: NaN too
        return torch.from_numpy(kept.view(np.int16)).view(torch.float16)
    return floats(kind, shape, seed).to(dtype)


def placed(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """The same numbers in memory that begins so many bytes behind a multiple of 64."""
    size = tensor.numel() * tensor.element_size()
    offset = offset // tensor.element_size() * tensor.element_size()
    memory = torch.empty(size + 128, dtype=torch.uint8)
    start = (offset - memory.data_ptr()) % 64
    copy = memory[start : start + size].view(tensor.dtype).view(tensor.shape)
    copy.copy_(tensor)
    assert not size or copy.data_ptr() % 64 == offset
    return copy


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether all bits are equal; what a NaN carries does not count."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    number = ~a.isnan()
    mine, theirs = (t.contiguous().view(BITS[a.dtype])[number] for t in (a, b))
    return torch.equal(number, ~b.isnan()) and torch.equal(mine, theirs)


def some_of_all_floats() -> torch.Tensor:
    """Every upper half of a float32 with some lower halves: all exponents, and all places between two bf16 numbers."""
    upper = torch.arange(1 << 16, dtype=torch.int64)[:, None] << 16
    lower = torch.tensor([0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    return (upper + lower).flatten().to(torch.int32).view(torch.float32)
