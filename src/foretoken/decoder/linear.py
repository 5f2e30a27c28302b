"""A linear layer: a weight in some format; what multiplies it is chosen with the decoder's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foretoken.formats.weight import QuantisedWeight


@dataclass(frozen=True)
class Linear:
    """weight: [outputs, inputs] as it lies in the checkpoint, or in a low-bit format; bias: [outputs] or None.

    `layout` is "rows", or the instruction set in whose own layout the weight's bytes have been put: such a weight has
    its shape, and no other kernels can read it. `inputs` is what rows are rounded to before they meet a
    low-bit weight: "bf16", with which the layer computes what its values would as bf16, or "int8", for drafts.
    """

    weight: torch.Tensor | QuantisedWeight
    bias: torch.Tensor | None = None
    layout: str = "rows"
    inputs: str = "bf16"

    @property
    def format(self) -> str:
        """What the weight is: bfloat16, float16, float32, or a low-bit format."""
        if isinstance(self.weight, QuantisedWeight):
            return self.weight.format.label
        return str(self.weight.dtype).removeprefix("torch.")

    @property
    def values(self) -> torch.Tensor:
        """The weight of a layer that is not in a low-bit format."""
        assert isinstance(self.weight, torch.Tensor)
        return self.weight

    @property
    def nbytes(self) -> int:
        """What reading the weight once takes."""
        return self.weight.nbytes
