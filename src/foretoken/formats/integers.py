"""Integers: int8 with one scale for each output; int4, int3 and int2 in groups with a scale and a zero point."""

from __future__ import annotations

import torch

from foretoken.formats.weight import SMALLEST_SCALE, SMALLEST_ZERO

LARGEST = 2.0**100  # larger numbers count as this number, so no value is too large for bf16


def row_values(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Values of int8, bfloat16. codes: uint8 [outputs, inputs], two's complement; scale: float32 [outputs]."""
    return (codes.view(torch.int8) * scale[:, None]).bfloat16()


def group_values(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Values of int4, int3, int2, bfloat16 [..., group]. codes: uint8 [..., group]; scale, zero: bfloat16 [...]."""
    return ((codes - zero.float()[..., None]) * scale.float()[..., None]).bfloat16()


def cast_rows(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes, uint8 [outputs, inputs], and scales, float32 [outputs], of finite float32 [outputs, inputs]."""
    scale = numbers.abs().amax(-1).clamp_(max=LARGEST) / 127
    scale.masked_fill_(scale < SMALLEST_SCALE, 0)
    codes = (numbers / divisor(scale)[:, None]).round_().clamp_(-127, 127)
    return codes.to(torch.int8).view(torch.uint8), scale


def cast_groups(numbers: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes uint8 [..., group], scales and zero points bfloat16 [...], of finite float32 [..., group].

    Each number is rounded to the nearest of 2**bits evenly spaced numbers. They go from the smallest number of the
    group, or 0 if all are larger, to the largest, or 0 if all are smaller.
    """
    last = (1 << bits) - 1
    low = numbers.amin(-1).clamp_(-LARGEST, 0)
    high = numbers.amax(-1).clamp_(0, LARGEST)
    scale = ((high - low) / last).bfloat16()
    scale.masked_fill_(scale < SMALLEST_SCALE, 0)
    zero = zero_point((0 - low) / divisor(scale), scale)
    return group_codes(numbers, scale, zero, bits), scale, zero


def zero_point(zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A float32 zero point as it is stored, bfloat16: 0 without a scale, or if it is below SMALLEST_ZERO in size."""
    kept = zero.bfloat16()
    return kept.masked_fill_((scale == 0) | (kept.abs() < SMALLEST_ZERO), 0)


def group_codes(numbers: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes nearest to float32 [..., group], uint8, with a scale and a zero point, bfloat16 [...]."""
    codes = numbers / divisor(scale)[..., None]
    return codes.add_(zero.float()[..., None]).round_().clamp_(0, (1 << bits) - 1).to(torch.uint8)


def divisor(scale: torch.Tensor) -> torch.Tensor:
    """The scale to divide by, float32: 1 instead of 0."""
    scale = scale.float()
    return scale.masked_fill(scale == 0, 1)  # numbers this small are rounded to 0
