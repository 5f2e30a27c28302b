"""The layout of docs/formats.md read one code at a time, and weights that are hard to quantise."""

from __future__ import annotations

import torch

from foretoken.formats import format_of
from foretoken.formats.table import Format

ALL: list[Format] = [
    format_of(label)
    for label in ("mxfp4", "int8", *(f"int{bits}-g{group}" for bits in (4, 3, 2) for group in (32, 64, 128)))
]
LABELS = [format.label for format in ALL]


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
