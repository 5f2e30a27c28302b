"""MXFP4: blocks of 32 E2M1 numbers with an E8M0 power of two (OCP Microscaling Formats v1.0).

The scale is the power of two in the block's largest number, divided by 4, the power of two in the largest E2M1 number,
6. Numbers are divided by the scale and rounded to the nearest, ties to the even code; beyond 6 they become 6.
"""

from __future__ import annotations

import torch

from foretoken.formats.weight import EXPONENT

_HALF = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = torch.tensor(_HALF + tuple(-value for value in _HALF))  # by code, 0 .. 15; code 8 is -0
E8M0 = torch.tensor([*(2.0 ** (byte - 127) for byte in range(255)), torch.nan])  # by byte


def values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The values, float32 [..., 32], of codes [..., 32] and E8M0 bytes [...]: exact wherever they are finite.

    Code 8 has the value 0, as in the kernels: adding 0 turns -0 into 0, and changes nothing else.
    """
    return (E2M1[codes.int()] * E8M0[scales.int()][..., None]).add_(0)


def cast(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [..., 32], and E8M0 bytes uint8 [...] from 67 to 187, of finite float32 [..., 32].

    A block in which all numbers round to 0 has the byte 127. Numbers that round to 0 have code 0, never -0.
    """
    found = exponents(numbers)
    return codes(numbers, found), scales(found)


def exponents(numbers: torch.Tensor) -> torch.Tensor:
    """The powers of two in the scales of blocks, int32 [...], for finite float32 [..., 32]."""
    largest = numbers.abs().amax(-1)
    found = ((largest.view(torch.int32) >> 23) - (127 + 2)).clamp_(-EXPONENT, EXPONENT)
    return found.masked_fill_(largest <= 2.0 ** (-EXPONENT - 2), 0)  # a quarter of the smallest scale: ties go to 0


def scales(exponents: torch.Tensor) -> torch.Tensor:
    """Powers of two as E8M0 bytes, uint8."""
    return (exponents + 127).to(torch.uint8)


def codes(numbers: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """The codes nearest to float32 [..., n], uint8, with the scales' powers of two, int32 [...]."""
    inverse = ((127 - exponents) << 23).view(torch.float32)
    scaled = numbers * inverse[..., None]
    size = scaled.abs()
    # the code is the number of midpoints below; a tie goes up if the code above is even
    found = (size > 0.25).view(torch.uint8)
    for edge, even_above in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        found += ((size >= edge) if even_above else (size > edge)).view(torch.uint8)
    found += (scaled < -0.25).view(torch.uint8) << 3
    return found
