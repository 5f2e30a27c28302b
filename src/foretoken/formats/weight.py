"""A quantised weight, and the check of a weight from a file."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from foretoken.errors import CheckpointError, ContractError
from foretoken.formats.table import BLOCK, FORMATS, PLACES, TILE, Format

EXPONENT = 60  # kernels take scales of mxfp4 from 2**-60 to 2**60
BYTES = (127 - EXPONENT, 127 + EXPONENT)  # the same range in E8M0
SMALLEST_SCALE = 2.0**-100  # of integers, besides 0: values are then 0, or at least 2**-120 in size
SMALLEST_ZERO = 2.0**-20  # of zero points, besides 0


@dataclass(frozen=True)
class QuantisedWeight:
    """A weight [outputs, inputs] in a low-bit format: see docs/formats.md.

    codes: uint8 [tiles, blocks, bytes of a block]: 16 outputs by 32 inputs
    scales: mxfp4: uint8 [tiles, blocks, 16], E8M0; int8: float32 [tiles * 16]; int4, int3, int2: bfloat16
    [tiles, groups, 16, 2], scale and zero point
    """

    format: Format
    shape: tuple[int, int]
    codes: torch.Tensor
    scales: torch.Tensor

    @property
    def nbytes(self) -> int:
        """The bytes of codes and scales, padding included."""
        return self.codes.nbytes + self.scales.nbytes


@dataclass(frozen=True)
class Part:
    """The shape and type of one tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


def parts(format: Format, outputs: int, inputs: int) -> dict[str, Part]:
    """The tensors of a weight [outputs, inputs] in a format, by their name in `QuantisedWeight`."""
    if outputs < 1 or inputs < 1:
        raise ContractError(f"a weight of {outputs} outputs and {inputs} inputs; expected at least one of each")
    tiles, blocks = -(-outputs // TILE), -(-inputs // BLOCK)
    if format.name == "mxfp4":
        scales = Part((tiles, blocks, TILE), torch.uint8)
    elif format.name == "int8":
        scales = Part((tiles * TILE,), torch.float32)
    else:
        scales = Part((tiles, -(-blocks * BLOCK // format.group), TILE, 2), torch.bfloat16)
    return {"codes": Part((tiles, blocks, format.block_bytes), torch.uint8), "scales": scales}


def bytes_of_places(kv_heads: int, head_dim: int) -> int:
    """The bytes of a layer's keys and values at `PLACES` positions in int8: docs/formats.md."""
    int8 = FORMATS["int8"]
    tensors = (*parts(int8, PLACES, head_dim).values(), *parts(int8, head_dim, PLACES).values())
    return kv_heads * sum(prod(part.shape) * part.dtype.itemsize for part in tensors)


def expect_valid(q: QuantisedWeight, name: str) -> None:
    """Raise CheckpointError for a weight whose tensors do not fit its shape, or whose values are no finite numbers of
    the format, and ContractError for a tensor with gaps.

    name: the weight's, for the message. Reads every scale.
    """
    for part, expected in parts(q.format, *q.shape).items():
        got: torch.Tensor = getattr(q, part)
        if tuple(got.shape) != expected.shape or got.dtype != expected.dtype:
            raise CheckpointError(
                f"the {part} of {name} are {Part(tuple(got.shape), got.dtype)}; {q.format.label} of {list(q.shape)} "
                f"has {expected}: the file is damaged, or of another format"
            )
        if not got.is_contiguous():
            raise ContractError(f"the {part} of {name} do not lie in one piece; make them contiguous first")
    bad, what = _bad(q)
    if bad:
        raise CheckpointError(f"{name} ({q.format.label}) has {bad} {what}; quantise the weights again")


def _bad(q: QuantisedWeight) -> tuple[int, str]:
    if q.format.name == "mxfp4":
        wrong = (q.scales < BYTES[0]) | (q.scales > BYTES[1])
        return int(wrong.sum()), f"scales outside 2**-{EXPONENT} .. 2**{EXPONENT} (bytes {BYTES[0]} .. {BYTES[1]})"
    if q.format.name == "int8":
        wrong = _no_scale(q.scales, (q.scales * 128).bfloat16())  # code -128 is never written, but may be read
        return int(wrong.sum()), "scales that are no finite number, negative, below 2**-100, or too large for bf16"
    scale, zero = q.scales.float().unbind(-1)
    last = (1 << q.format.bits) - 1
    ends = ((0 - zero) * scale).bfloat16(), ((last - zero) * scale).bfloat16()
    wrong = _no_scale(scale, *ends) | ((zero.abs() < SMALLEST_ZERO) & (zero != 0))
    return int(wrong.sum()), (
        "groups with a scale that is no finite number, negative, or below 2**-100, with a zero point of such a kind "
        "or below 2**-20, or with values too large for bf16"
    )


def _no_scale(scale: torch.Tensor, *ends: torch.Tensor) -> torch.Tensor:
    """Whether scales are invalid. ends: a scale's smallest and largest value; values between them are finite if both
    are."""
    wrong = ~(scale >= SMALLEST_SCALE) & (scale != 0)
    for end in ends:
        wrong = wrong | ~end.isfinite()
    return wrong
