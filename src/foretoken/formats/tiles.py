"""Codes in the order in which kernels read them.

A block is 16 outputs by 32 inputs. A tile is the blocks of 16 outputs, one after the other. The inputs k of a block
form 8 columns of 4: j = k // 4. A register is 64 bytes: 4 bytes (a lane) for each output. Byte b of a lane holds the
codes of input 4j + (b ^ 2) of one or more columns j. A plane of w bits has w registers, and each of their bytes holds
8 / w columns, the first in the lowest bits. int3 has two planes, first its lower two bits, then its upper bit. The
other formats have one plane.
"""

from __future__ import annotations

from itertools import accumulate

import torch

from foretoken.formats.table import BLOCK, TILE

COLUMNS = 8  # of a block
PLANES = {8: (8,), 4: (4,), 3: (2, 1), 2: (2,)}  # bits of a code -> the bits of each plane, lowest first


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes uint8 [outputs, inputs], multiples of 16 and 32, as uint8 [tiles, blocks, bytes of a block]."""
    outputs, inputs = codes.shape
    lanes = codes.contiguous().view(torch.int32).view(outputs // TILE, TILE, inputs // BLOCK, COLUMNS)
    registers = []
    for low, width in _planes(bits):
        part = lanes if width == bits else (lanes >> low) & _mask(width)
        columns = part.view(*part.shape[:3], width, 8 // width).unbind(-1)
        register = columns[0]
        for s, column in enumerate(columns[1:], start=1):
            register = register | column << width * s
        registers.append(register)
    packed = registers[0] if len(registers) == 1 else torch.cat(registers, -1)
    packed = _swapped(packed).permute(0, 2, 3, 1).contiguous()
    return packed.view(torch.uint8).flatten(2)


def unpack(tiles: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes that `pack` was given: uint8 [tiles * 16, blocks * 32]."""
    count, blocks, _ = tiles.shape
    registers = tiles.clone().contiguous()  # in a file they may begin anywhere, but int32 needs alignment
    registers = registers.view(torch.int32).view(count, blocks, bits, TILE).permute(0, 3, 1, 2)
    registers = _swapped(registers.contiguous())  # [tiles, 16, blocks, registers]
    lanes = torch.zeros(count, TILE, blocks, COLUMNS, dtype=torch.int32, device=tiles.device)
    first = 0
    for low, width in _planes(bits):
        together = 8 // width
        part = registers[..., first : first + width]
        for s in range(together):
            lanes[..., s::together] |= ((part >> width * s) & _mask(width)) << low
        first += width
    return lanes.view(torch.uint8).view(count * TILE, blocks * BLOCK)


def _planes(bits: int) -> list[tuple[int, int]]:
    """The lowest bit and the width of each plane."""
    widths = PLANES[bits]
    return list(zip(accumulate(widths, initial=0), widths, strict=False))


def _mask(width: int) -> int:
    """A mask of the lowest `width` bits of each byte of a lane, as int32."""
    return -1 if width == 8 else ((1 << width) - 1) * 0x01010101


def _swapped(lanes: torch.Tensor) -> torch.Tensor:
    """Each lane with its halves exchanged: byte b becomes byte b ^ 2."""
    return (lanes << 16) | ((lanes >> 16) & 0xFFFF)
