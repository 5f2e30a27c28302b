"""A linear layer: a weight in some format; what multiplies it is chosen with the decoder's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Linear:
    """weight: [outputs, inputs] as it lies in the checkpoint; bias: [outputs] or None.

    `layout` is "rows", or the instruction level in whose own layout the weight's bytes have been put: such a weight has
    its shape, and nothing but that level's kernels can read it.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    layout: str = "rows"
