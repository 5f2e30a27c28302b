"""A linear layer: a weight in some format. The decoder's arithmetic chooses the kernel that multiplies with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foretoken.formats.weight import QuantisedWeight


@dataclass(frozen=True)
class Linear:
    """weight: [outputs, inputs], as it lies in the checkpoint, or in a low-bit format. bias: [outputs] or None.

    `layout` is "rows", or the name of an instruction set, in whose own layout the weight's bytes then lie. Such a
    weight keeps its shape, and only the kernels of that instruction set can read it. `inputs` is the format to which
    rows are rounded before they are multiplied with a low-bit weight. With "bf16" the layer gives the same as its
    values in bf16 would; "int8" and "fastest" (see `kernels.native.linear`) are for drafts.
    """

    weight: torch.Tensor | QuantisedWeight
    bias: torch.Tensor | None = None
    layout: str = "rows"
    inputs: str = "bf16"

    @property
    def format(self) -> str:
        """The weight's format: bfloat16, float16, float32, or the label of a low-bit format."""
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
        """The bytes of the weight, which each pass reads once."""
        return self.weight.nbytes
