"""Quantises a weight, a few rows at a time."""

from __future__ import annotations

from typing import Literal

import torch

from foretoken.errors import CheckpointError, ContractError, SettingError, nearest, quoted
from foretoken.formats import gptq, hqq, integers, mxfp4, tiles
from foretoken.formats.slices import on_threads
from foretoken.formats.table import BLOCK, TILE, Format
from foretoken.formats.weight import QuantisedWeight, parts

Quantiser = Literal["direct", "hqq", "gptq"]
QUANTISERS: tuple[Quantiser, ...] = ("direct", "hqq", "gptq")

_TOGETHER = 1 << 18  # numbers that a thread casts together; what is computed from them stays in its cache
_ON_A_GPU = 1 << 22  # numbers that a GPU casts together; what is computed from them takes forty times the bytes


def expect_quantiser(format: Format, quantiser: str) -> None:
    """Raise SettingError for a quantiser that is unknown or does not support the format."""
    if quantiser not in QUANTISERS:
        raise SettingError(f"the quantiser {quoted(quantiser)} is not known{nearest(str(quantiser), QUANTISERS)}")
    if quantiser == "hqq" and not format.has_zeros:
        raise SettingError(f"hqq looks for zero points, and {format.name} has none; quantise it with 'direct'")
    if quantiser == "gptq" and not format.group:
        raise SettingError(
            f"gptq chooses a scale for each group, and {format.name} has no groups; quantise it with 'direct'"
        )


def quantise(
    weight: torch.Tensor,
    format: Format,
    *,
    name: str,
    quantiser: Quantiser = "direct",
    threads: int | None = None,
    factor: torch.Tensor | None = None,
) -> QuantisedWeight:
    """Quantise a weight [outputs, inputs], float16, bfloat16 or float32, where it lies.

    name: the weight's, for messages. quantiser: `direct` rounds; `hqq` also looks for better zero points, for formats
    that have them; `gptq` lets weights make up for the errors of others. threads: by default as many as torch has.
    factor: only for `gptq`, of the inputs on some text (`gptq.factor`). With `direct` and `hqq`, an output's bits
    depend on its own numbers alone. While it works, a thread needs some ten megabytes, or forty times the size of 16
    outputs; with `gptq`, three times the size of its share of the weight in float32.

    Raises CheckpointError if a number is NaN or infinite, SettingError for a quantiser that is unknown or does not
    support the format, and ContractError for a tensor that is no weight.
    """
    expect_quantiser(format, quantiser)
    if weight.ndim != 2 or weight.numel() == 0 or weight.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ContractError(
            f"{name} is {str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}; expected float16, bfloat16 or "
            "float32 [outputs, inputs], neither of them 0"
        )
    weight = weight.detach()
    outputs, inputs = weight.shape
    if (quantiser == "gptq") != (factor is not None) or (factor is not None and factor.shape != (inputs, inputs)):
        came = "no factor" if factor is None else f"a factor {list(factor.shape)}"
        raise ContractError(f"{quantiser} came with {came} for {name}; expected one [inputs, inputs], for gptq alone")
    kinds, on_cpu = parts(format, outputs, inputs), weight.device.type == "cpu"
    made = {part: torch.empty(p.shape, dtype=p.dtype, device=weight.device) for part, p in kinds.items()}
    codes, scales = made["codes"], made["scales"]
    by_tile = scales.view(len(codes), TILE) if format.name == "int8" else scales.transpose(1, 2)
    step = max((_TOGETHER if on_cpu else _ON_A_GPU) // inputs // TILE, 1)  # tiles
    if factor is not None:  # it works input by input: calls for few outputs would take longer than their arithmetic
        step = -(-len(codes) // (threads or torch.get_num_threads()))

    def fill(first: int) -> None:
        rows = weight[first * TILE : (first + step) * TILE]
        low, high = rows.aminmax()  # NaN if there is one
        if not bool(low.isfinite() & high.isfinite()):
            raise CheckpointError(_refusal(weight, name))
        span = slice(first, first + step)
        codes[span], kept = _cast(rows, format, quantiser, factor)
        by_tile[span] = kept.view(-1, TILE, *kept.shape[1:])

    on_threads(fill, range(0, len(codes), step), threads if on_cpu else 1)
    return QuantisedWeight(format, (outputs, inputs), codes, scales)


def _cast(
    rows: torch.Tensor, format: Format, quantiser: Quantiser, factor: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as tiles of codes [tiles, blocks, bytes], and scales by row: [rows, ...], as the format has them."""
    inputs = rows.shape[1]
    width = -(-inputs // BLOCK) * BLOCK
    numbers = _padded(rows, TILE, format.group or BLOCK)
    if factor is not None:
        codes, scales = gptq.cast(numbers, inputs, factor, format)
    elif format.name == "mxfp4":
        grouped, scales = mxfp4.cast(numbers.view(len(numbers), -1, BLOCK))
        codes = grouped.flatten(1)
    elif format.name == "int8":
        codes, scales = integers.cast_rows(numbers)
    else:
        groups = numbers.view(len(numbers), -1, format.group)
        grouped, scale, zero = integers.cast_groups(groups, format.bits)
        if quantiser == "hqq":
            zero = hqq.zero_points(groups, inputs, scale, zero, format.bits)
            grouped = integers.group_codes(groups, scale, zero, format.bits)
        codes, scales = grouped.flatten(1), torch.stack((scale, zero), -1)
        codes[:, inputs:] = 0
    return tiles.pack(codes[:, :width], format.bits), scales


def _padded(rows: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """Rows as float32, filled up with zeros to multiples of `outputs` and `inputs`."""
    more = (-len(rows) % outputs, -rows.shape[1] % inputs)
    if more == (0, 0):
        return rows.float().contiguous()
    padded = torch.zeros(len(rows) + more[0], rows.shape[1] + more[1], device=rows.device)
    padded[: len(rows), : rows.shape[1]] = rows
    return padded


def _refusal(weight: torch.Tensor, name: str) -> str:
    nans = infinite = 0
    for row in weight:
        nans += int(row.isnan().sum())
        infinite += int(row.isinf().sum())
    return (
        f"{name} holds {nans} NaN and {infinite} infinite numbers among {weight.numel()}, which no low-bit format can "
        "stand for; the checkpoint is damaged: download it again, or leave this weight as it is"
    )
