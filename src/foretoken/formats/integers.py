"""Integers: int8 with one scale an output, and int4, int3 and int2 in groups with a scale and a zero point."""

from __future__ import annotations

import torch

from foretoken.formats.weight import SMALLEST_SCALE, SMALLEST_ZERO

LARGEST = 2.0**100  # larger numbers count as this one: no value becomes too large for bf16


def row_values(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """int8: codes uint8 [outputs, inputs], two's complement, and scales float32 [outputs], as bfloat16."""
    return (codes.view(torch.int8) * scale[:, None]).bfloat16()


def group_values(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """int4, int3, int2: codes uint8 [..., group], scale and zero point bfloat16 [...], as bfloat16 [..., group]."""
    return ((codes - zero.float()[..., None]) * scale.float()[..., None]).bfloat16()


def cast_rows(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 [outputs, inputs], finite: codes uint8 and scales float32 [outputs]."""
    scale = numbers.abs().amax(-1).clamp_(max=LARGEST) / 127
    scale.masked_fill_(scale < SMALLEST_SCALE, 0)
    codes = (numbers / divisor(scale)[:, None]).round_().clamp_(-127, 127)
    return codes.to(torch.int8).view(torch.uint8), scale


def cast_groups(numbers: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Float32 [..., group], finite: codes uint8 [..., group], scale and zero point bfloat16 [...].

    Rounding to the nearest of the 2**bits numbers from the smallest to the largest of the group, 0 being counted in.
    """
    last = (1 << bits) - 1
    low = numbers.amin(-1).clamp_(-LARGEST, 0)
    high = numbers.amax(-1).clamp_(0, LARGEST)
    scale = ((high - low) / last).bfloat16()
    scale.masked_fill_(scale < SMALLEST_SCALE, 0)
    zero = zero_point((0 - low) / divisor(scale), scale)
    return group_codes(numbers, scale, zero, bits), scale, zero


def zero_point(zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Float32 as the zero point that is kept, bfloat16: none without a scale, and none that is next to none."""
    kept = zero.bfloat16()
    return kept.masked_fill_((scale == 0) | (kept.abs() < SMALLEST_ZERO), 0)


def group_codes(numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes nearest to float32 [..., group] with a scale and zero point bfloat16 [...], uint8."""
    codes = numbers / divisor(scale)[..., None]
    return codes.add_(zero.float()[..., None]).round_().clamp_(0, (1 << bits) - 1).to(torch.uint8)


def divisor(scale: torch.Tensor) -> torch.Tensor:
    """A scale to divide by, float32."""
    scale = scale.float()
    return scale.masked_fill(scale == 0, 1)  # numbers that small are 0 when they are rounded
