"""Low-bit weights with any codes and scales that a file may hold, beyond those that a quantiser makes."""

from __future__ import annotations

import numpy as np
import torch

from foretoken.formats import Format, format_of
from foretoken.formats.values import dequantise
from foretoken.formats.weight import BYTES, QuantisedWeight, expect_valid, parts
from foretoken.kernels import coded, reference
from tests.formats.layout import ALL
from tests.kernels.numbers import placed

# usual: as a model's are. wide: of any size that is valid, and zero. ends: the smallest and the largest
SCALES = ("usual", "wide", "ends")
# what rows may be rounded to before they meet a format
WAYS = [(format, inputs) for format in ALL for inputs in ("bf16", "int8")] + [(format_of("mxfp4"), "fp32")]
IDS = [f"{format.label}, {inputs}" for format, inputs in WAYS]


def weight(
    format: Format, outputs: int, inputs: int, seed: int, scales: str = "usual", offsets: tuple[int, int] = (0, 0)
) -> QuantisedWeight:
    """Random codes, in the padding too, and scales of a kind; codes and scales begin so many bytes behind a multiple
    of 64."""
    dice = np.random.default_rng(seed)
    shapes = {name: part.shape for name, part in parts(format, outputs, inputs).items()}
    codes = dice.integers(0, 256, shapes["codes"], dtype=np.uint8)
    if format.name == "int8":
        codes[codes == 128] = 127
    made = QuantisedWeight(
        format,
        (outputs, inputs),
        _placed(torch.from_numpy(codes), offsets[0]),
        _placed(_scales(format, shapes["scales"], dice, scales), offsets[1]),
    )
    expect_valid(made, "a weight made for a test")
    return made


def _placed(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """At the beginning of a line in memory that ends where the tensor does, so that sanitizers see what reads on."""
    return placed(tensor, offset) if offset else tensor.clone()


def _scales(format: Format, shape: tuple[int, ...], dice: np.random.Generator, kind: str) -> torch.Tensor:
    if format.name == "mxfp4":
        low, high = (117, 130) if kind == "usual" else BYTES
        numbers = dice.choice([low, high], shape) if kind == "ends" else dice.integers(low, high + 1, shape)
        return torch.from_numpy(numbers.astype(np.uint8))
    if format.name == "int8":
        return torch.from_numpy(_sizes(dice, shape, kind, 120).astype(np.float32))
    scale = _sizes(dice, shape[:-1], kind, 100)
    last = (1 << format.bits) - 1
    if kind == "usual":
        zero = dice.uniform(-1, last + 1, shape[:-1])
    else:
        zero = dice.choice([0, 2.0**-20, -(2.0**-20), 0.5, last, last / 2, -(2.0**19), 2.0**19], shape[:-1])
    return torch.from_numpy(np.stack((scale, zero), -1)).bfloat16()


def _sizes(dice: np.random.Generator, shape: tuple[int, ...], kind: str, top: int) -> np.ndarray:
    if kind == "usual":
        return dice.uniform(0.001, 0.1, shape)
    exponents = dice.choice([-100, top], shape) if kind == "ends" else dice.integers(-100, top + 1, shape)
    return 2.0**exponents * (1 + dice.integers(0, 128, shape) / 128) * (dice.random(shape) > 0.1)


def defined(x: torch.Tensor, w: QuantisedWeight, bias: torch.Tensor | None, inputs: str) -> torch.Tensor:
    """What a layer computes, by its definition."""
    if inputs == "bf16":
        return reference.linear(x, dequantise(w), bias)
    return (coded.linear_int8 if inputs == "int8" else coded.linear_fp32)(x, w, bias)
