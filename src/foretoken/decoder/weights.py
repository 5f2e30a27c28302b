"""Weights from safetensors: memory-mapped, checked against the configuration, and copied if asked or where it pays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from foretoken.common.limits import memory_left
from foretoken.common.progress import size
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.homes import choice as home
from foretoken.decoder.homes.huge_pages import copied, size_of
from foretoken.decoder.homes.mapped import MappedFiles
from foretoken.decoder.linear import Linear
from foretoken.decoder.shards import weight_files
from foretoken.errors import CheckpointError, ModelError, UnsupportedModelError
from foretoken.formats.slices import on_threads
from foretoken.formats.table import Format
from foretoken.formats.weight import QuantisedWeight, expect_valid, parts
from foretoken.kernels import native

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


LINEARS = ("query", "key", "value", "output", "gate", "up", "down")  # of a layer


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Norm weights: [hidden]; query and key norms, where a family has them: [head_dim]."""

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


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder. `tensors` holds those that are not in a low-bit format once more by their names in the
    checkpoint: the same memory, so that the bytes of a linear layer with a layout of its own are in that layout there,
    too. `mapped` are the files in which any of them lie; None of weights in memory of their own."""

    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor  # [hidden]
    head: Linear  # [vocab, hidden]; the embedding itself where tied
    tensors: dict[str, torch.Tensor]
    mapped: MappedFiles | None = None

    @property
    def home(self) -> str:
        """mapped, where any of them are read from their files; else copied: in memory of their own."""
        return "copied" if self.mapped is None else "mapped"

    @property
    def linears(self) -> list[Linear]:
        """Every linear layer, the output layer first."""
        return [self.head, *(getattr(layer, name) for layer in self.layers for name in LINEARS)]

    def with_linears(self, change: Callable[[Linear], Linear]) -> Weights:
        """The same with every linear layer changed."""

        def layer(weights: LayerWeights) -> LayerWeights:
            changed: dict[str, Any] = {name: change(getattr(weights, name)) for name in LINEARS}
            return replace(weights, **changed)

        return replace(self, layers=tuple(map(layer, self.layers)), head=change(self.head))

    @property
    def layouts(self) -> set[str]:
        """The layouts that linear layers lie in."""
        return {linear.layout for linear in self.linears}

    @property
    def nbytes(self) -> int:
        """What a pass reads of them: all but the embedding."""
        others = [tensor.nbytes for name, tensor in self.tensors.items() if tensor.ndim == 1]
        return sum(linear.nbytes for linear in self.linears) + sum(others)

    def first_not_finite(self) -> str | None:
        """The name of the first tensor that holds a NaN or an infinity, and how many."""
        for name, tensor in self.tensors.items():
            bad = sum(map(_not_finite, torch.split(tensor.flatten(), _AT_ONCE)))
            if bad:
                return f"{bad} of {tensor.numel()} numbers in {name}"
        return None


_AT_ONCE = 1 << 24  # numbers that are looked at together


def _not_finite(tensor: torch.Tensor) -> int:
    """How many numbers are NaN or infinite. On the CPU numpy counts, not PyTorch, which hangs in a forked child."""
    if tensor.device.type != "cpu" or not tensor.dtype.is_floating_point:
        return int((~torch.isfinite(tensor)).sum())
    if tensor.dtype == torch.bfloat16:  # which numpy does not know: all bits of the exponent are set
        return int(np.count_nonzero((tensor.view(torch.int16).numpy() & 0x7F80) == 0x7F80))
    return int(np.count_nonzero(~np.isfinite(tensor.numpy())))


EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


def linear_shapes(config: DecoderConfig, *, without: Collection[int] = ()) -> dict[str, tuple[int, int]]:
    """The linear layers of a model, [outputs, inputs] by name; the output layer last, tied or not. without: layers
    whose are left out."""
    c = config
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    shapes: dict[str, tuple[int, int]] = {}
    for i in range(c.num_layers):
        if i in without:
            continue
        attention, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        shapes[f"{attention}.q_proj"] = (queries, c.hidden_size)
        shapes[f"{attention}.k_proj"] = (keys, c.hidden_size)
        shapes[f"{attention}.v_proj"] = (keys, c.hidden_size)
        shapes[f"{attention}.o_proj"] = (c.hidden_size, queries)
        shapes[f"{mlp}.gate_proj"] = (c.intermediate_size, c.hidden_size)
        shapes[f"{mlp}.up_proj"] = (c.intermediate_size, c.hidden_size)
        shapes[f"{mlp}.down_proj"] = (c.hidden_size, c.intermediate_size)
    shapes[HEAD] = (c.vocab_size, c.hidden_size)
    return shapes


def stored_as(name: str, config: DecoderConfig) -> str:
    """The tensor of a checkpoint that holds a linear layer's weight: for a tied output layer, the embedding."""
    return f"{EMBEDDING if name == HEAD and config.tied else name}.weight"


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The names and shapes that a checkpoint of this configuration must hold, but for what is in a low-bit format; in
    the order in which a pass meets them."""
    c = config
    linears = linear_shapes(c)
    biases = {"q_proj": c.qkv_bias, "k_proj": c.qkv_bias, "v_proj": c.qkv_bias, "o_proj": c.output_bias, HEAD: False}
    shapes: dict[str, tuple[int, ...]] = {f"{EMBEDDING}.weight": (c.vocab_size, c.hidden_size)}

    def linear(*names: str) -> None:
        for name in names:
            if c.low_bit is None and not (name == HEAD and c.tied):
                shapes[f"{name}.weight"] = linears[name]
            if biases.get(name.rpartition(".")[2], c.mlp_bias):
                shapes[f"{name}.bias"] = linears[name][:1]

    for i in range(c.num_layers):
        layer = f"model.layers.{i}"
        shapes[f"{layer}.input_layernorm.weight"] = (c.hidden_size,)
        linear(*(f"{layer}.self_attn.{name}_proj" for name in "qkvo"))
        if c.qk_norm:
            shapes[f"{layer}.self_attn.q_norm.weight"] = (c.head_dim,)
            shapes[f"{layer}.self_attn.k_norm.weight"] = (c.head_dim,)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (c.hidden_size,)
        linear(*(f"{layer}.mlp.{name}_proj" for name in ("gate", "up", "down")))
    shapes["model.norm.weight"] = (c.hidden_size,)
    linear(HEAD)
    return shapes


def load_weights(
    folder: Path,
    config: DecoderConfig,
    *,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
    copy: bool | None = False,
    besides: int = 0,
    threads: int | None = None,
) -> Weights:
    """Map the checkpoint's tensors, where they stay unless another `dtype` or device is asked for, which copies them.
    With `copy` (on the CPU) all are copied, into one allocation, and the files are let go; None: where that pays and
    memory is left for it and for `besides`, bytes that will be taken later (see `home`). Low-bit weights stay on the
    CPU. Every tensor's presence and shape is checked before any is used."""
    files = MappedFiles(weight_files(folder))
    found = mapped_tensors(folder, config)
    files.expect_names()
    dtype = dtype or found[f"{EMBEDDING}.weight"].dtype
    tensors = {name: found.pop(name) for name in expected_shapes(config)}
    needed, began, why = size_of({name: (tensor.shape, dtype) for name, tensor in tensors.items()}), perf_counter(), ""
    if copy is None:
        chosen = _home_here(config, dtype, device, needed, besides)
        copy, why = chosen.name == "copied", f": {chosen.why}"
        if chosen.lacking:
            log.info("the weights in %s stay mapped%s", folder, why)
    if copy and device == "cpu":
        codes = _coded(copied(found, None), config, threads)
        try:
            copies = copied(tensors, dtype)
        except ModelError as error:
            if not why:
                raise
            log.info("the weights in %s stay mapped: %s", folder, error)
        else:
            made = repacked(assemble(copies, config, codes), threads=threads)
            files.expect_unchanged()
            if why:
                took = perf_counter() - began
                log.info("the weights in %s, %s, were copied into memory in %.1f s%s", folder, size(needed), took, why)
            return made
    codes = _coded(found, config, threads)  # on the CPU: what runs elsewhere takes their values there
    placed = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    files.expect_unchanged()  # while it was converted
    stays = bool(codes) or any(placed[name] is tensor for name, tensor in tensors.items())
    return replace(assemble(placed, config, codes), mapped=files if stays else None)


def _home_here(config: DecoderConfig, dtype: torch.dtype, device: str, needed: int, besides: int) -> home.Home:
    """Where weights should lie as this machine is now."""
    isa = native.isa() if device == "cpu" and native.module() is not None else None
    return home.choose(
        str(dtype).removeprefix("torch.") if config.low_bit is None else config.low_bit.label,
        isa,
        has_layout=isa is not None and native.repacks(isa),
        needed=needed,
        besides=besides,
        left=memory_left() if needed >= home.SMALL else None,  # to look takes milliseconds
    )


def mapped_tensors(folder: Path, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """The tensors that a checkpoint of this configuration must hold, as they are, where its files are mapped: first
    those of `expected_shapes`, whose shapes and types are checked, then those of low-bit weights."""
    shapes = expected_shapes(config)
    low_bit = [] if config.low_bit is None else _coded_parts(config.low_bit, linear_shapes(config))
    mapped = dict(_mapped_tensors(folder, {*shapes, *low_bit}))
    missing = [name for name in (*shapes, *low_bit) if name not in mapped]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(shapes) + len(low_bit)} tensors, the first is {missing[0]}; "
            "expected what config.json describes: fetch the checkpoint again"
        )
    found = {name: mapped[name] for name in (*shapes, *low_bit)}
    for name, shape in shapes.items():
        if tuple(found[name].shape) != shape:
            raise CheckpointError(
                f"{name} has shape {list(found[name].shape)}, expected {list(shape)} by config.json; "
                "the files do not belong together: fetch the checkpoint again"
            )
    for name in shapes:  # all of them: a quantised matrix may lie beside a float embedding
        if found[name].dtype not in DTYPES.values():
            raise UnsupportedModelError(
                f"weights of type {found[name].dtype} are not supported; supported: {', '.join(DTYPES)}"
            )
    return found


def copied_codes(
    folder: Path, config: DecoderConfig, *, instead: str, without: Collection[int] = (), threads: int | None = None
) -> dict[str, QuantisedWeight]:
    """The low-bit weights of a checkpoint, each checked, by the name of its layer, in memory of their own. instead:
    what to do where there is no memory for them; without: layers whose are not read."""
    found = mapped_tensors(folder, config)
    assert config.low_bit is not None
    wanted = _coded_parts(config.low_bit, linear_shapes(config, without=without))
    return _coded(copied({name: found[name] for name in wanted}, None, instead=instead), config, threads, without)


def _coded_parts(format: Format, linears: Mapping[str, tuple[int, int]]) -> list[str]:
    return [f"{name}.weight.{part}" for name, shape in linears.items() for part in parts(format, *shape)]


def _coded(
    found: dict[str, torch.Tensor], config: DecoderConfig, threads: int | None, without: Collection[int] = ()
) -> dict[str, QuantisedWeight]:
    """The weights of a low-bit checkpoint, each checked, by the name of its layer."""
    if config.low_bit is None:
        return {}
    coded = {}
    for name, shape in linear_shapes(config, without=without).items():
        made = {part: found.pop(f"{name}.weight.{part}") for part in parts(config.low_bit, *shape)}
        coded[name] = QuantisedWeight(config.low_bit, shape, **made)
    names = list(coded)
    on_threads(lambda i: expect_valid(coded[names[i]], f"{names[i]}.weight"), range(len(names)), threads)
    return coded


def assemble(
    tensors: dict[str, torch.Tensor],
    config: DecoderConfig,
    coded: Mapping[str, QuantisedWeight] = MappingProxyType({}),
    *,
    inputs: str = "bf16",
) -> Weights:
    """Weights from tensors by their names in a checkpoint, and from low-bit weights by the names of their layers.

    inputs: what rows are rounded to before they meet a low-bit weight (see `Linear`).
    """

    def linear(name: str) -> Linear:
        bias = tensors.get(f"{name}.bias")
        if name in coded:
            return Linear(coded[name], bias, inputs=inputs)
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
    """Weights that own their memory, in the layout that the instruction set in use reads fastest, in place.

    Nothing to do without the native module, or with one that likes rows as they are. A tied output layer stays: the
    embedding is read by rows.
    """
    if native.module() is None:
        return weights
    isa, threads = isa or native.isa(), threads or torch.get_num_threads()

    def put(linear: Linear) -> Linear:
        weight = linear.weight
        if not isinstance(weight, torch.Tensor) or weight is weights.embedding or not native.can_repack(weight, isa):
            return linear
        native.repack(weight, isa, threads)
        return replace(linear, layout=isa)

    return weights.with_linears(put)


def _mapped_tensors(folder: Path, wanted: Container[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if name in wanted]  # noqa: SIM118 (not a dictionary)
                tensors = [file.get_tensor(name) for name in names]
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read as safetensors ({error}); it may be cut short: fetch the file again"
            ) from None
        yield from zip(names, tensors, strict=True)
