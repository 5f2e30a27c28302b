"""Low-bit copies of a model's weights. Embedding, norms and biases stay the model's own, in the same memory.

Any layers may stay the model's own, too. Such layers take no more memory, are read as slowly as in the model, and round
nothing (SubSpec, Wang et al. 2025, shares the layers that fit on the device in this way).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import groupby

import torch

from foretoken.common.progress import progress
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.homes.huge_pages import Kind, size_of, together
from foretoken.decoder.homes.parts import acquired
from foretoken.decoder.linear import Linear
from foretoken.decoder.shapes import linear_shapes, stored_as
from foretoken.decoder.weights import Weights, part_of
from foretoken.errors import ContractError
from foretoken.formats.quantiser import Quantiser, quantise
from foretoken.formats.table import Format
from foretoken.formats.values import dequantise
from foretoken.formats.weight import QuantisedWeight, parts

INSTEAD = "free some, or draft with a smaller format or without a copy"  # the advice if there is no memory


def quantised(
    weights: Weights,
    config: DecoderConfig,
    format: Format,
    *,
    inputs: str = "bf16",
    quantiser: Quantiser = "direct",
    own: Collection[int] = (),
) -> Weights:
    """A copy with all linear layers in a format, the output layer included, in one allocation. All other weights are
    those of `weights`, and so are the layers in `own`. Raises what `cast` raises."""
    return copy_of(weights, config, cast(weights, config, format, quantiser=quantiser, own=own), inputs=inputs)


def cast(
    weights: Weights,
    config: DecoderConfig,
    format: Format,
    *,
    quantiser: Quantiser = "direct",
    own: Collection[int] = (),
    threads: int | None = None,
) -> dict[str, QuantisedWeight]:
    """The linear layers in a format, by their names, in one allocation. Layers in `own` are left out.

    The weights must lie in rows, because only the kernels of an instruction set can read its own layout. Raises
    ContractError if they do not, and CheckpointError, with the tensor's name, for a NaN or an infinity in a weight.
    """
    memory = together(_kinds(config, format, own), instead=INSTEAD)
    coded: dict[str, QuantisedWeight] = {}
    for name, made in quantised_linears(weights, config, format, quantiser=quantiser, own=own, threads=threads):
        kept = {part: memory[name, part].copy_(getattr(made, part)) for part in parts(format, *made.shape)}
        coded[name] = QuantisedWeight(format, made.shape, **kept)
    return coded


def size_in(format: Format, config: DecoderConfig, own: Collection[int] = ()) -> int:
    """The bytes of memory that a copy takes. own: layers that stay the model's."""
    return size_of(_kinds(config, format, own))


def _kinds(config: DecoderConfig, format: Format, own: Collection[int]) -> dict[tuple[str, str], Kind]:
    """The shapes and types of a copy's tensors, by the names of layer and part."""
    return {
        (name, part): (p.shape, p.dtype)
        for name, shape in linear_shapes(config, without=own).items()
        for part, p in parts(format, *shape).items()
    }


def quantised_linears(
    weights: Weights,
    config: DecoderConfig,
    format: Format,
    *,
    quantiser: Quantiser = "direct",
    own: Collection[int] = (),
    threads: int | None = None,
) -> Iterator[tuple[str, QuantisedWeight]]:
    """Yields each linear layer's name and its weight in a format, and shows progress. Layers in `own` are left out."""
    if not in_rows(weights, config, own):
        raise ContractError(f"weights laid out for {weights.layouts} cannot be quantised; load the checkpoint mapped")
    linears = _named(weights, config, own)
    with progress(f"quantising to {format.label}", sum(linear.nbytes for linear in linears.values())) as done:
        for home, names in groupby(linears, key=weights.home_of):
            with acquired(home):
                for name in names:
                    values, stored = _plain(linears[name], None, threads).values, stored_as(name, config)
                    yield name, quantise(values, format, name=stored, quantiser=quantiser, threads=threads)
                    done(linears[name].nbytes)


def in_rows(weights: Weights, config: DecoderConfig, own: Collection[int] = ()) -> bool:
    """Whether all linear layers lie in rows, as a cast reads them, but for those in `own`."""
    return all(linear.layout == "rows" for linear in _named(weights, config, own).values())


def _named(weights: Weights, config: DecoderConfig, own: Collection[int] = ()) -> dict[str, Linear]:
    """The linear layers by their names in a checkpoint, without those of the layers in `own`."""
    of_layers = [linear for layer in weights.layers for linear in layer.linears]
    named = dict(zip(linear_shapes(config), (*of_layers, weights.head), strict=True))
    return {name: named[name] for name in linear_shapes(config, without=own)}


def copy_of(weights: Weights, config: DecoderConfig, coded: dict[str, QuantisedWeight], *, inputs: str) -> Weights:
    """A model's weights with the linear layers in `coded` in place of its own. The other layers stay as they are, in
    their layout. inputs: see `Linear`."""
    names = iter(linear_shapes(config))  # the order in which `with_linears` changes the layers

    def changed(linear: Linear) -> Linear:
        name = next(names)
        return Linear(coded[name], linear.bias, inputs=inputs) if name in coded else linear

    replaced = {f"{name}.weight" for name in coded}
    tensors = {name: tensor for name, tensor in weights.tensors.items() if name not in replaced}
    replaced_parts = {part_of(name) for name in coded}
    homes = tuple(None if part in replaced_parts else home for part, home in enumerate(weights.homes))
    return replace(weights.with_linears(changed), tensors=tensors, homes=homes)


def with_inputs(weights: Weights, inputs: str) -> Weights:
    """The same weights with other `inputs` for the low-bit ones (see `Linear`)."""
    return weights.with_linears(
        lambda linear: linear if isinstance(linear.weight, torch.Tensor) else replace(linear, inputs=inputs)
    )


def dequantised(weights: Weights, *, threads: int | None = None) -> Weights:
    """The same values with every low-bit weight as bf16. The exact promise of a low-bit model refers to these."""
    if all(isinstance(linear.weight, torch.Tensor) for linear in weights.linears):
        return weights
    device = weights.embedding.device
    return weights.with_linears(lambda linear: _plain(linear, device, threads))


def _plain(linear: Linear, device: torch.device | None, threads: int | None) -> Linear:
    if isinstance(linear.weight, torch.Tensor):
        return linear
    return Linear(dequantise(linear.weight, threads=threads).to(device), linear.bias)
