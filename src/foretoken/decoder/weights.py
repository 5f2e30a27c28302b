"""The weights of a decoder, layer by layer, and how they are assembled from tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.homes.mapped import MappedFiles
from foretoken.decoder.homes.parts import PARTS, Homes, PartHome, acquired
from foretoken.decoder.linear import Linear
from foretoken.decoder.shapes import EMBEDDING, HEAD, stored_as
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import native

LINEARS = tuple(name for names in PARTS.values() for name in names)  # of a layer


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer. Norm weights are [hidden]; query and key norms, if a family has them, [head_dim]."""

    input_norm: torch.Tensor
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    post_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None

    @property
    def linears(self) -> list[Linear]:
        """Its linear layers, in the order of `LINEARS`."""
        return [getattr(self, name) for name in LINEARS]


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder.

    `tensors` holds the weights that are in no low-bit format once more, by their names in the checkpoint. They share
    their memory, so the bytes of a linear layer with a layout of its own are in that layout there, too. `mapped` are
    the files in which weights lie; None if all lie in memory of their own. `homes` has a home for the matrices of each
    part of a layer, None for a part that is always in memory; if it is empty, all are. All other weights are always in
    memory.
    """

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [hidden]
    head: Linear  # [vocab, hidden]; the embedding itself where tied
    tensors: dict[str, torch.Tensor]
    mapped: MappedFiles | None = None
    homes: Homes = ()

    @property
    def home(self) -> str:
        """Where the weights lie: "mapped" if any are read from their files, else "copied" into memory of their own. The
        names of homes of single parts follow. Beside these, all is in memory of its own."""
        others = sorted({home.name for home in self.homes if home is not None})
        return " and ".join(["mapped" if self.mapped is not None and not others else "copied", *others])

    @property
    def linears(self) -> list[Linear]:
        """Every linear layer, the output layer first."""
        return [self.head, *(linear for layer in self.layers for linear in layer.linears)]

    def linears_of(self, part: int) -> list[Linear]:
        """The linear layers of a part of a layer (see `homes.parts`)."""
        layer, which = divmod(part, len(PARTS))
        return [getattr(self.layers[layer], name) for name in list(PARTS.values())[which]]

    def with_linears(self, change: Callable[[Linear], Linear]) -> Weights:
        """The same weights with every linear layer changed, in the order of `shapes.linear_shapes`."""

        def layer(weights: LayerWeights) -> LayerWeights:
            changed: dict[str, Any] = {name: change(getattr(weights, name)) for name in LINEARS}
            return replace(weights, **changed)

        return replace(self, layers=tuple(map(layer, self.layers)), head=change(self.head))

    @property
    def layouts(self) -> set[str]:
        """The layouts of the linear layers."""
        return {linear.layout for linear in self.linears}

    @property
    def nbytes(self) -> int:
        """The bytes that a pass reads: those of all weights but the embedding."""
        others = [tensor.nbytes for name, tensor in self.tensors.items() if tensor.ndim == 1]
        return sum(linear.nbytes for linear in self.linears) + sum(others)

    def first_not_finite(self) -> str | None:
        """The first tensor with a NaN or an infinity, in words, with their number. None if all numbers are finite."""
        for name, tensor in self.tensors.items():
            with acquired(self.home_of(name)):
                bad = sum(map(_not_finite, torch.split(tensor.flatten(), _AT_ONCE)))
            if bad:
                return f"{bad} of {tensor.numel()} numbers in {name}"
        return None

    def home_of(self, name: str) -> PartHome | None:
        """The home of the part to which a tensor or a linear layer belongs; None if it is always in memory."""
        part = part_of(name)
        return self.homes[part] if part is not None and self.homes else None


def part_of(name: str) -> int | None:
    """The number of the part (see `homes.parts`) to whose matrices a tensor or a linear layer belongs; None for what
    belongs to none: norms, embedding and output layer."""
    found = re.match(r"model\.layers\.(\d+)\.(?:self_attn\.[qkvo]|mlp\.(gate|up|down))_proj", name)
    return len(PARTS) * int(found[1]) + (None, "gate", "up", "down").index(found[2]) if found else None


_AT_ONCE = 1 << 24  # numbers that are looked at together


def _not_finite(tensor: torch.Tensor) -> int:
    """How many numbers are NaN or infinite. On the CPU numpy counts, because PyTorch hangs in a forked child."""
    if tensor.device.type != "cpu" or not tensor.dtype.is_floating_point:
        return int((~torch.isfinite(tensor)).sum())
    if tensor.dtype == torch.bfloat16:  # numpy does not know bf16: look for exponents with all bits set
        return int(np.count_nonzero((tensor.view(torch.int16).numpy() & 0x7F80) == 0x7F80))
    return int(np.count_nonzero(~np.isfinite(tensor.numpy())))


def assemble(
    tensors: dict[str, torch.Tensor],
    config: DecoderConfig,
    coded: Mapping[str, QuantisedWeight] = MappingProxyType({}),
) -> Weights:
    """Weights from tensors, by their names in a checkpoint, and from low-bit weights, by the names of their layers."""

    def linear(name: str) -> Linear:
        bias = tensors.get(f"{name}.bias")
        if name in coded:
            return Linear(coded[name], bias)
        return Linear(tensors[stored_as(name, config)], bias)

    def layer(name: str) -> LayerWeights:
        return LayerWeights(
            input_norm=tensors[f"{name}.input_layernorm.weight"],
            query=linear(f"{name}.self_attn.q_proj"),
            key=linear(f"{name}.self_attn.k_proj"),
            value=linear(f"{name}.self_attn.v_proj"),
            output=linear(f"{name}.self_attn.o_proj"),
            query_norm=tensors.get(f"{name}.self_attn.q_norm.weight"),
            key_norm=tensors.get(f"{name}.self_attn.k_norm.weight"),
            post_norm=tensors[f"{name}.post_attention_layernorm.weight"],
            gate=linear(f"{name}.mlp.gate_proj"),
            up=linear(f"{name}.mlp.up_proj"),
            down=linear(f"{name}.mlp.down_proj"),
        )

    return Weights(
        embedding=tensors[f"{EMBEDDING}.weight"],
        layers=tuple(layer(f"model.layers.{i}") for i in range(config.num_layers)),
        norm=tensors["model.norm.weight"],
        head=linear(HEAD),
        tensors=tensors,
    )


def repacked(weights: Weights, isa: str | None = None, threads: int | None = None) -> Weights:
    """Put weights that own their memory into the layout that the instruction set in use reads fastest, in place.

    Does nothing without the native module, or if the instruction set reads rows as they are. A tied output layer stays
    as it is, because the embedding is read by rows, and so do parts that have a home.
    """
    if native.module() is None:
        return weights
    isa, threads = isa or native.isa(), threads or torch.get_num_threads()
    away = {id(one) for part, home in enumerate(weights.homes) if home is not None for one in weights.linears_of(part)}

    def put(linear: Linear) -> Linear:
        weight = linear.weight
        if not isinstance(weight, torch.Tensor) or weight is weights.embedding or id(linear) in away:
            return linear
        if not native.can_repack(weight, isa):
            return linear
        native.repack(weight, isa, threads)
        return replace(linear, layout=isa)

    return weights.with_linears(put)
