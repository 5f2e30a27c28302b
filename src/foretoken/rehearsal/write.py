"""Writes a rehearsal, some rows at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from foretoken.common.progress import progress
from foretoken.copies.checkpoint import FILES, SHARD, Unit, divided, file_names, index, kept, size_of, write_json
from foretoken.copies.fingerprint import fingerprint
from foretoken.copies.place import Kind, expect_place, free_bytes, tidy, written_whole
from foretoken.copies.tensors import TensorFile
from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.families import FAMILIES
from foretoken.decoder.loading import mapped_tensors
from foretoken.decoder.shapes import expected_shapes
from foretoken.decoder.shards import INDEX
from foretoken.errors import CheckpointError, InputError, SettingError, UnsupportedModelError, nearest
from foretoken.formats.weight import Part
from foretoken.rehearsal.filling import filled
from foretoken.rehearsal.fit import PLACEMENTS, Fit, expect_kind, expect_room
from foretoken.rehearsal.honest import KEY, About, read_about
from foretoken.rehearsal.noise import Noise
from foretoken.rehearsal.shapes import Shape
from foretoken.text.tokenizer import TOKENIZER_OF

VERSION = 2  # of the output: raised whenever the same model and shape give other numbers
_TOGETHER = 1 << 22  # numbers made and written together
_FROM_SMALL = (  # keys of config.json that belong to the function, not to the shape
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "original_max_position_embeddings",
)


def _is_one(raw: Mapping[str, Any]) -> str | None:
    about = raw.get(KEY)
    if not isinstance(about, dict) or raw.get("quantization_config"):
        return None
    return f"a rehearsal in the shape of {about.get('shape')}"


REHEARSAL = Kind("rehearsal", "rehearsal of a model", _is_one)


@dataclass(frozen=True)
class RehearsalPlan:
    """A rehearsal to be written. Nothing is written yet."""

    folder: Path  # of the small model
    out: Path
    fit: Fit
    about: About
    raw: dict[str, Any]  # the rehearsal's config.json
    config: DecoderConfig
    tensors: dict[str, torch.Tensor]  # the small model's, mapped
    shards: tuple[dict[str, Unit], ...]
    free: int  # bytes of the disk
    replace: bool  # whether a rehearsal at `out` is replaced

    @property
    def parameters(self) -> int:
        """The parameters of the rehearsal."""
        return sum(map(prod, expected_shapes(self.config).values()))

    @property
    def small_parameters(self) -> int:
        """The parameters of the small model."""
        return sum(map(prod, expected_shapes(self.fit.small).values()))

    @property
    def bytes(self) -> int:
        """The bytes of the rehearsal's weights."""
        return sum(size_of(part) for shard in self.shards for unit in shard.values() for part in unit.values())


def expect_small(folder: Path, shape: Shape, name: str) -> DecoderConfig:
    """The configuration of a checkpoint that can be rehearsed in a shape. Raises an InputError or a ModelError."""
    raw = read_json(folder / "config.json")
    config = parse_config(raw)
    about = read_about(raw)
    if about is not None:
        raise UnsupportedModelError(
            f"{name} is a rehearsal already, of {about.source_name}; rehearse the model that it was made of"
        )
    expect_kind(config, shape, name)
    expect_room(config, shape, name)
    return config


@dataclass(frozen=True)
class Asked:
    """The choices for a rehearsal. name: the small model's name; None: its folder's name. placement: how its layers are
    placed in the shape (`PLACEMENTS`). seed: of the random numbers. Raises SettingError."""

    shape: Shape
    name: str | None = None
    placement: str = "spread"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise SettingError(f"the placement {self.placement!r} is not known{nearest(self.placement, PLACEMENTS)}")
        if not 0 <= self.seed < 1 << 63:
            raise SettingError(f"seed is {self.seed}, expected a whole number, 0 or more")


def plan(folder: Path, out: Path, asked: Asked, *, replace: bool = False, shard: int = SHARD) -> RehearsalPlan:
    """Check everything that could be wrong before minutes of work: model, shape, place and disk.

    folder: the small model's. replace: whether a rehearsal at `out` may be replaced. shard: the most bytes of a file.
    Raises an InputError or a ModelError.
    """
    shape, name = asked.shape, asked.name or folder.resolve().name
    small = expect_small(folder, shape, name)
    tidy(out)
    expect_place(out, replace=replace, ours=FILES, kind=REHEARSAL)
    tensors = mapped_tensors(folder, small)
    raw = read_json(folder / "config.json")
    # a small model's separate output layer cannot be tied; a pass reads as much either way
    fit = Fit(small, shape, shape.tied and small.tied, _padding_token(folder, raw, small), asked.placement)
    about = About(shape.name, name, fingerprint(folder, small), asked.placement, fit.layers, asked.seed)
    dtype = tensors["model.embed_tokens.weight"].dtype
    made = _configuration(raw, fit, about, dtype)
    config = parse_config(made)
    units = {n: {n: Part(s, _dtype_of(n, fit, tensors, dtype))} for n, s in expected_shapes(config).items()}
    ready = RehearsalPlan(
        folder, out, fit, about, made, config, tensors, divided(units, shard), free_bytes(out), replace
    )
    needed = ready.bytes + sum((folder / file).stat().st_size for file in kept(folder)) + (1 << 20)
    if needed > ready.free:
        raise InputError(
            f"the rehearsal takes {needed / 1e9:.3g} GB, and the disk of {out} has {ready.free / 1e9:.3g} GB free; "
            "free some space, or name a folder on another disk"
        )
    return ready


def _dtype_of(name: str, fit: Fit, tensors: dict[str, torch.Tensor], usual: torch.dtype) -> torch.dtype:
    source = fit.placed(name).source
    return usual if source is None else tensors[source].dtype


def _padding_token(folder: Path, raw: Mapping[str, Any], config: DecoderConfig) -> int:
    """The token whose row is copied to all added rows of the vocabulary: if possible, one that models do not choose."""
    generation = folder / "generation_config.json"
    also = read_json(generation) if generation.is_file() else {}
    for key in ("pad_token_id", "bos_token_id"):
        for given in (raw.get(key), also.get(key)):
            if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < config.valid_vocab_size:
                return given
    return config.valid_vocab_size - 1


def _configuration(raw: Mapping[str, Any], fit: Fit, about: About, dtype: torch.dtype) -> dict[str, Any]:
    """The config.json: of the shape's family, with the small model's positions, context and tokens."""
    small, shape = fit.small, fit.shape
    made: dict[str, Any] = {
        "architectures": [FAMILIES[shape.model_type].architecture],
        "model_type": shape.model_type,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": fit.norm_eps,
        "tie_word_embeddings": fit.tied,
        "max_position_embeddings": raw.get("max_position_embeddings") or small.context_length,
        "use_cache": True,
        "dtype": str(dtype).removeprefix("torch."),
        **{key: raw[key] for key in _FROM_SMALL if key in raw},
    }
    if shape.model_type == "llama":  # query biases come with output biases, which may be zero
        made.update(attention_bias=small.qkv_bias, mlp_bias=small.mlp_bias)
    else:
        made.update(use_sliding_window=False)
    if small.valid_vocab_size < shape.vocab_size:
        made.update(valid_vocab_size=small.valid_vocab_size)
    # the tokenizer is the small model's, and transformers chooses the kind of tokenizer by the family
    return {**made, KEY: {**about.to_json(), TOKENIZER_OF: raw["model_type"]}}


def write(plan: RehearsalPlan) -> float:
    """Write a rehearsal, whole or not at all. Only some rows of it are in memory at a time.

    Returns the seconds taken. Raises CheckpointError, with the tensor's name, if the small model holds a NaN or an
    infinity, and InputError if the disk fails.
    """
    began = perf_counter()
    title = f"rehearsing {plan.fit.shape.name}"
    noise = Noise(plan.about.seed)
    with (
        written_whole(plan.out, replace=plan.replace, ours=FILES, kind=REHEARSAL) as folder,
        progress(title, plan.bytes, slow=True) as done,
    ):
        for file, shard in zip(file_names(len(plan.shards)), plan.shards, strict=True):
            parts = {name: part for unit in shard.values() for name, part in unit.items()}
            with TensorFile(folder / file, parts) as opened:
                for name, part in parts.items():
                    _write_tensor(opened, plan, name, part, noise, done)
        if len(plan.shards) > 1:
            write_json(folder / INDEX, index(plan.shards))
        for name in kept(plan.folder):
            shutil.copyfile(plan.folder / name, folder / name)
        write_json(folder / "config.json", plan.raw)
    return perf_counter() - began


def _write_tensor(
    file: TensorFile, plan: RehearsalPlan, name: str, part: Part, noise: Noise, done: Callable[[int], None]
) -> None:
    placed = plan.fit.placed(name)
    source = None if placed.source is None else plan.tensors[placed.source]
    if source is not None:
        low, high = source.aminmax()
        if not bool(low.isfinite() & high.isfinite()):
            raise CheckpointError(
                f"{placed.source} holds numbers that are NaN or infinite; the checkpoint is damaged: download it again"
            )
    step = max(_TOGETHER // (1 if placed.columns is None else len(placed.columns)), 1)
    like = plan.tensors.get(plan.fit.like(name), torch.zeros(1)) if source is None else source  # no norm is random
    like = like.to(part.dtype)
    for first in range(0, len(placed.rows), step):
        piece = filled(name, placed, source, like, noise, first, first + step)
        file.write(name, piece)
        done(piece.nbytes)
