"""HQQ: better zero points, from the weights alone (Badri and Shaji 2023, Half-Quadratic Quantization).

Of each group it makes the sum of |error|**p small, which for p < 1 lets a few outliers err for the sake of the rest.
Half-quadratic splitting puts beside each error a number E, the part that is taken for an outlier's, and alternates

    E    = sign(error) * max(|error| - |error|**(p - 1) / beta, 0)
    zero = mean of code - (number / scale - E)

with the codes that are nearest for each zero point, beta growing by kappa a step. The scale stays that of the cast.

Errors are taken in units of the scale, so that a weight and twice that weight get the same codes. A group keeps the
best zero point of all steps: stopping at the first that is no better, as the paper does for a whole weight, would make
a group depend on its neighbours, and for a group alone it loses up to a quarter of the gain. The cast's stays if none
is better by more than this arithmetic can err.

Nothing but sums, products and quotients in a fixed order: they are rounded alike on every machine and by any number of
threads, which torch's own powers are not.
"""

from __future__ import annotations

import torch

from foretoken.formats import integers

P = 0.7
BETA = 10.0
KAPPA = 1.01
STEPS = 20

_GAIN = 2.0**-10  # of the error, that a zero point must gain to be kept
_NONE = 2.0**-40  # an error of so many scales is none
_ONE = 127 << 23  # 1.0 as bits
_GUESS = 0x88000  # what makes the guess of a power from its bits err as little as it can


def zero_points(groups: torch.Tensor, inputs: int, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    """Zero points bfloat16 [outputs, groups], beginning with those of the cast, for its scales: bfloat16 likewise.

    groups: float32 [outputs, groups, group]; those of the numbers that come after `inputs` count for nothing.
    """
    last = (1 << bits) - 1
    numbers = groups.clamp(-integers.LARGEST, integers.LARGEST).div_(integers.divisor(scale)[..., None])
    present = (torch.arange(numbers[0].numel()) < inputs).view(numbers.shape[1:]).float()
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
    least = torch.full(scale.shape, torch.inf)
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
    """size**(p - 1), float32: a guess from the bits, and steps of the third order to the root y of y**10 * size**3 = 1.

    One step is right to 0.002, two to 1e-6: enough to look for a zero point, and to judge it.
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
    """The sum over the last dimension, a power of two long: half onto half."""
    while numbers.shape[-1] > 1:
        middle = numbers.shape[-1] // 2
        numbers = numbers[..., :middle] + numbers[..., middle:]
    return numbers[..., 0]
