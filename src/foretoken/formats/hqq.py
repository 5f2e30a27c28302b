"""HQQ: better zero points, from the weights alone (Badri and Shaji 2023, Half-Quadratic Quantization).

Of each group it makes the sum of |error|**p small, which for p < 1 lets a few outliers err for the sake of the rest.
Half-quadratic splitting puts a number E beside each error: E = error + (what is not explained), and in turn

    E    = shrink(error) = sign(error) * max(|error| - |error|**(p - 1) / beta, 0)
    zero = mean of code - (number / scale - E)

with the codes nearest to the numbers each time, beta growing by kappa a step. The scale stays as it was cast.

Errors are in units of the scale here, so that a weight and twice the weight get the same zero points, and a zero point
is rounded to bfloat16 before its error is taken. A group keeps the best that it had, and the cast's if none was better.
"""

from __future__ import annotations

import torch

from foretoken.formats import integers

P = 0.7
BETA = 10.0
KAPPA = 1.01
STEPS = 20


def zero_points(groups: torch.Tensor, inputs: int, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    """Zero points bfloat16 [outputs, groups], for the scale and from the zero point of the cast, bfloat16 likewise.

    groups: float32 [outputs, groups, group]; those of the numbers that come after `inputs` count for nothing.
    """
    numbers = groups / integers.divisor(scale)[..., None]
    last = (1 << bits) - 1
    present = (torch.arange(numbers[0].numel()) < inputs).view(numbers.shape[1:]).float()
    count = halves(present)
    best = zero.clone()
    least = torch.full(scale.shape, torch.inf)
    beta = BETA
    for _ in range(STEPS + 1):
        shift = zero.float()[..., None]
        codes = (numbers + shift).round_().clamp_(0, last)
        error = (numbers - (codes - shift)).mul_(present)
        size = error.abs().clamp_(min=1e-9)
        power = size.pow(P - 1)
        total = halves(power * size)
        falls = total < least
        if not bool(falls.any()):
            break
        least = torch.where(falls, total, least)
        best = torch.where(falls, zero, best)
        shrunk = (size - power / beta).clamp_(min=0).copysign_(error)
        rest = (codes - numbers + shrunk) * present
        zero = integers.zero_point(halves(rest) / count, scale)
        beta *= KAPPA
    return best


def halves(numbers: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension, a power of two long: half on half, an order that nothing can change."""
    while numbers.shape[-1] > 1:
        middle = numbers.shape[-1] // 2
        numbers = numbers[..., :middle] + numbers[..., middle:]
    return numbers[..., 0]
