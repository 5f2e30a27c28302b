"""HQQ: better zero points, from the weights alone (Badri and Shaji 2023, Half-Quadratic Quantization).

HQQ makes the sum of |error|**p small in each group. With p < 1, a few outliers may err for the sake of the rest.
Half-quadratic splitting gives each error a number E, the part that is taken for an outlier's, and alternates

    E    = sign(error) * max(|error| - |error|**(p - 1) / beta, 0)
    zero = mean of code - (number / scale - E)

with the nearest codes for each zero point. beta grows by the factor kappa in each step. The scale stays the cast's.

Errors are in units of the scale, so a weight and twice that weight get the same codes. A group keeps the best zero
point of all steps. The paper stops a whole weight at the first step that is no better, so a group would depend on its
neighbours. If each group stopped alone, it would lose up to a quarter of the gain. The cast's zero point stays unless
another one is better by more than the error of this arithmetic.

Only sums, products and quotients in a fixed order are used. They are rounded alike on every machine and with any number
of threads; torch's own powers are not.
"""

from __future__ import annotations

import torch

from foretoken.formats import integers

P = 0.7
BETA = 10.0
KAPPA = 1.01
STEPS = 20

_GAIN = 2.0**-10  # the share of the error that a zero point must save to replace the cast's
_NONE = 2.0**-40  # in scales: a smaller error counts as this error
_ONE = 127 << 23  # 1.0 as bits
_GUESS = 0x88000  # makes the guess of a power from the bits err as little as possible


def zero_points(groups: torch.Tensor, inputs: int, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    """Better zero points than the cast's, if any, for the cast's scales: bfloat16 [outputs, groups].

    groups: float32 [outputs, groups, group]; numbers behind the first `inputs` count for nothing. scale, zero: the
    cast's, bfloat16 [outputs, groups].
    """
    last = (1 << bits) - 1
    numbers = groups.clamp(-integers.LARGEST, integers.LARGEST).div_(integers.divisor(scale)[..., None])
    present = (torch.arange(numbers[0].numel(), device=groups.device) < inputs).view(numbers.shape[1:]).float()
    count = _sum(present)
    whole = inputs == present.numel()

    def errors(zero: torch.Tensor, roots: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """With the codes nearest for a zero point: code - number, error, |error|**(p - 1), the sums of |error|**p."""
        zero = zero[..., None]
        less = (numbers + zero).round_().clamp_(0, last).sub_(numbers)
        error = zero - less
        if not whole:
            error *= present
        size = error.abs().clamp_(min=_NONE)
        power = _power(size, roots)
        return less, error, power, _sum(power * size)

    now = zero.float()
    best = now
    least = torch.full(scale.shape, torch.inf, device=groups.device)
    beta = BETA
    for _ in range(STEPS):
        less, error, power, total = errors(now, 1)
        falls = total < least
        least = torch.where(falls, total, least)
        best = torch.where(falls, now, best)
        outlying = error.abs().sub_(power.div_(beta)).clamp_(min=0).copysign_(error)
        target = less.add_(outlying)
        if not whole:
            target *= present
        now = _sum(target) / count
        beta *= KAPPA
    found = integers.zero_point(best, scale)
    gains = errors(found.float(), 2)[-1] < errors(zero.float(), 2)[-1] * (1 - _GAIN)
    return torch.where(gains, found, zero)


def _power(size: torch.Tensor, roots: int) -> torch.Tensor:
    """size**(p - 1), float32: a guess from the bits, then steps of third order to the root y of y**10 * size**3 = 1.

    One step has an error of 0.002, enough to look for a zero point; two steps have 1e-6, enough to judge it.
    """
    cube = (size * size).mul_(size)
    guess = size.view(torch.int32).float().mul_(P - 1).add_(_ONE * (2 - P) - _GUESS)
    y = guess.to(torch.int32).view(torch.float32)
    for _ in range(roots):
        square = y * y
        tenth = square * square
        rest = tenth.mul_(tenth).mul_(square).mul_(cube).neg_().add_(1)
        y = (rest * 0.055).add_(0.1).mul_(rest).add_(1).mul_(y)
    return y


def _sum(numbers: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension, whose length is a power of two: one half is added to the other, and so on."""
    while numbers.shape[-1] > 1:
        middle = numbers.shape[-1] // 2
        numbers = numbers[..., :middle] + numbers[..., middle:]
    return numbers[..., 0]
