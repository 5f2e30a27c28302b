"""GPTQ: the weights that are rounded later make up for the errors of those before (Frantar et al. 2022, GPTQ).

An output of a linear layer is the sum of weights w times inputs x. If w is rounded to v, the mean square of the error
is (w - v)' H (w - v), where H is the mean of x x' over some text. Direct rounding takes each weight's nearest value.
GPTQ rounds the weights of an output in their order, and after each one moves all that follow to where this mean is
least:

    error  = (w[i] - v[i]) / U[i, i]
    w[j]  -= error * U[i, j]  for all j > i

U is upper triangular, and U' U is the inverse of H (section 3.3). `factor` computes it. Outputs do not depend on each
other. A group gets its scale when its first weight is reached, from its weights as they are then. For int4, int3 and
int2 that is the cast's scale and zero point. For mxfp4 it is the cast's power of two or the next one, whichever has the
smaller squared error: with the cast's, the largest number of a block may be cut off.

H, and so the bits of a copy, depend on the text and on the machine's order of summation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from foretoken.errors import ContractError
from foretoken.formats import integers, mxfp4
from foretoken.formats.table import Format
from foretoken.formats.weight import EXPONENT

DAMPING = 0.01  # of the mean of H's diagonal, added to the diagonal: the paper's
_TRIES = 6  # each with ten times the damping

Code = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # an input's weights -> their codes, their values


def factor(moments: torch.Tensor) -> torch.Tensor:
    """The factor U for the mean H of x x', float32 [inputs, inputs]. `moments` is overwritten.

    An input that was always 0 is rounded by itself. Raises ContractError for numbers that are no such mean.
    """
    diagonal = moments.diagonal()
    unseen = diagonal == 0
    more = DAMPING * float(diagonal.sum()) / max(int((~unseen).sum()), 1)
    diagonal[unseen] = 1
    for _ in range(_TRIES):
        diagonal += more
        lower, failed = torch.linalg.cholesky_ex(moments)
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            del lower  # hundreds of megabytes, in a large model
            upper: torch.Tensor
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not failed and bool(upper.isfinite().all()):
                return upper
        more = 10 * more
    raise ContractError(
        f"the {len(moments)} inputs have moments that no text gives; expected the mean of their products"
    )


def cast(numbers: torch.Tensor, inputs: int, factor: torch.Tensor, format: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 [outputs, inputs], and scales [outputs, groups, ...] as the format has them.

    numbers: float32 [outputs, inputs], finite, the inputs padded with zeros to whole groups behind the first `inputs`.
    factor: float32 [inputs, inputs]. Codes of the padding are 0.
    """
    left = numbers.T.contiguous()  # by inputs: what is to be rounded, and what was left over
    codes = torch.zeros_like(left, dtype=torch.uint8)
    diagonal = factor.diagonal().tolist()
    scales = []
    for first in range(0, inputs, format.group):
        stop = min(first + format.group, inputs)
        scale, code = _coder(left[first : first + format.group].T, format)
        scales.append(scale)
        errors = torch.empty(stop - first, len(numbers))
        for at in range(first, stop):
            codes[at], value = code(left[at])
            error = torch.sub(left[at], value, out=errors[at - first]).div_(diagonal[at])
            left[at + 1 : stop].addr_(factor[at, at + 1 : stop], error, alpha=-1)
        left[stop:inputs].addmm_(factor[first:stop, stop:].T, errors, alpha=-1)
    return codes.T, torch.stack(scales, 1)


def _coder(group: torch.Tensor, format: Format) -> tuple[torch.Tensor, Code]:
    """The scale of each output's group, float32 [outputs, group], with its zero point if there is one, and how the
    group's weights are coded."""
    if format.name == "mxfp4":
        exponents = _exponents(group)
        scales = mxfp4.scales(exponents)

        def code(column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            found = mxfp4.codes(column[:, None], exponents)
            return found[:, 0], mxfp4.values(found, scales)[:, 0]

        return scales, code
    _, scale, zero = integers.cast_groups(group, format.bits)

    def code_of_integers(column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = integers.group_codes(column[:, None], scale, zero, format.bits)
        return found[:, 0], integers.group_values(found, scale, zero)[:, 0].float()

    return torch.stack((scale, zero), -1), code_of_integers


def _exponents(blocks: torch.Tensor) -> torch.Tensor:
    """The cast's exponents of blocks [outputs, 32], or the next ones where these err less."""
    cast = mxfp4.exponents(blocks)
    following = (cast + 1).clamp_(max=EXPONENT)

    def errors(exponents: torch.Tensor) -> torch.Tensor:
        found = mxfp4.values(mxfp4.codes(blocks, exponents), mxfp4.scales(exponents))
        return found.sub_(blocks).square_().sum(-1)

    return torch.where(errors(following) < errors(cast), following, cast)
