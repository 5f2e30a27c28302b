"""A linear layer: a weight in some format, and the kernel that goes with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foretoken.kernels import rowwise


@dataclass(frozen=True)
class Linear:
    """weight: [outputs, inputs] as it lies in the checkpoint; bias: [outputs] or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [N, inputs] to float32 [N, outputs], each row from itself alone."""
        return rowwise.linear(x, self.weight, self.bias)
