"""The values that a quantised weight stands for."""

from __future__ import annotations

import torch

from foretoken.formats import integers, mxfp4, tiles
from foretoken.formats.slices import on_threads
from foretoken.formats.table import BLOCK, TILE
from foretoken.formats.weight import QuantisedWeight

_TOGETHER = 1 << 18  # codes that a thread unpacks together


def codes_of(q: QuantisedWeight) -> torch.Tensor:
    """The codes [outputs, inputs]: int8 for int8, else uint8."""
    codes = tiles.unpack(q.codes, q.format.bits)[: q.shape[0], : q.shape[1]].contiguous()
    return codes.view(torch.int8) if q.format.name == "int8" else codes


def dequantise(q: QuantisedWeight, *, threads: int | None = None) -> torch.Tensor:
    """The values of a valid weight (`expect_valid`): bfloat16 [outputs, inputs].

    A model with these weights gives the same bits as the low-bit model. threads: by default as many as torch has.
    """
    outputs, inputs = q.shape
    values = torch.empty(outputs, inputs, dtype=torch.bfloat16)
    step = max(_TOGETHER // (q.codes.shape[1] * BLOCK) // TILE, 1)

    def fill(first: int) -> None:
        here = values[first * TILE : (first + step) * TILE]
        here.copy_(_values(q, slice(first, first + step))[: len(here), :inputs])

    on_threads(fill, range(0, len(q.codes), step), threads)
    return values


def _values(q: QuantisedWeight, span: slice) -> torch.Tensor:
    """The values of some tiles, with their padding."""
    codes = tiles.unpack(q.codes[span], q.format.bits)
    if q.format.name == "int8":
        return integers.row_values(codes, q.scales.view(-1, TILE)[span].flatten())
    scales = q.scales[span].transpose(1, 2).flatten(0, 1)  # [outputs, blocks or groups, ...]
    if q.format.name == "mxfp4":
        return mxfp4.values(codes.view(len(codes), -1, BLOCK), scales).bfloat16().flatten(1)
    grouped = torch.nn.functional.pad(codes, (0, -codes.shape[1] % q.format.group))
    grouped = grouped.view(len(codes), -1, q.format.group)
    return integers.group_values(grouped, scales[..., 0], scales[..., 1]).flatten(1)
