"""Muon in float32, for processors that multiply bf16 slowly: PyTorch's own makes every update orthogonal in bf16.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; arguments, state and
coefficients are those of `torch.optim.Muon`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch


class Float32Muon(torch.optim.Muon):
    """Takes what `torch.optim.Muon` takes, with adjust_lr_fn="match_rms_adamw" and the momentum of Nesterov."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all matrices."""
        assert closure is None
        for group in self.param_groups:
            assert group["nesterov"]
            assert group["adjust_lr_fn"] == "match_rms_adamw"
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                before = self.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix.grad))
                before.lerp_(matrix.grad, 1 - group["momentum"])
                update = matrix.grad.lerp(before, group["momentum"])
                rate = group["lr"] * 0.2 * sqrt(max(matrix.shape))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                update = orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                matrix.add_(update, alpha=-rate)


def orthogonal(matrix: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> torch.Tensor:
    """A matrix with the same singular vectors, all of whose singular values are near 1: so many steps of
    Newton-Schulz."""
    a, b, c = coefficients
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
