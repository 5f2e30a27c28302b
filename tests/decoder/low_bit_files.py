"""The tensors of low-bit checkpoints."""

from __future__ import annotations

import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.shapes import linear_shapes
from foretoken.decoder.weights import Weights
from foretoken.formats.weight import QuantisedWeight


def stored(low: Weights, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """The tensors of a low-bit checkpoint."""
    tensors = dict(low.tensors)
    head, *of_layers = low.linears
    for name, linear in zip(linear_shapes(config), [*of_layers, head], strict=True):
        assert isinstance(linear.weight, QuantisedWeight)
        tensors[f"{name}.weight.codes"] = linear.weight.codes
        tensors[f"{name}.weight.scales"] = linear.weight.scales
    return {name: tensor.clone() for name, tensor in tensors.items()}
