"""The layout of docs/formats.md read one code at a time, and weights that are hard to quantise."""

from __future__ import annotations

import numpy as np
import torch

from foretoken.formats import Format, format_of
from tests.kernels.numbers import numbers

ALL: list[Format] = [
    format_of(label)
    for label in ("mxfp4", "int8", *(f"int{bits}-g{group}" for bits in (4, 3, 2) for group in (32, 64, 128)))
]
GROUPED = [format for format in ALL if format.has_zeros]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def code_at(block: bytes, bits: int, output: int, k: int) -> int:
    """The code of one of 16 outputs and 32 inputs in the bytes of a block, unsigned."""
    j, b = divmod(k, 4)
    byte = 4 * output + (b ^ 2)
    if bits == 8:
        return block[64 * j + byte]
    if bits == 4:
        return block[64 * (j // 2) + byte] >> 4 * (j % 2) & 15
    low = block[64 * (j // 4) + byte] >> 2 * (j % 4) & 3
    if bits == 2:
        return low
    assert bits == 3
    return low | (block[128 + byte] >> j & 1) << 2


def codes_in(tiles: torch.Tensor, bits: int) -> torch.Tensor:
    """All codes in uint8 [tiles, blocks, bytes], as int64 [tiles * 16, blocks * 32]."""
    return torch.tensor(
        [
            [code_at(bytes(block), bits, output, k) for block in tile for k in range(32)]
            for tile in tiles.tolist()
            for output in range(16)
        ]
    )


def weights(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """float32 weights with heavy tails, as a model's are."""
    dice = np.random.default_rng(seed)
    return torch.from_numpy((dice.standard_t(3, (outputs, inputs)) * 0.02).astype(np.float32))


HARD = ("normal", "wide", "edge", "huge", "ties", "tails")


def hard(kind: str, outputs: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Weights of a kind in a type; 1 where a number of the kind is beyond what the type has."""
    w = weights(outputs, inputs).to(dtype) if kind == "tails" else numbers(kind, (outputs, inputs), dtype, 5)
    return w.where(w.isfinite(), 1)
