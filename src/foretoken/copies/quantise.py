"""Writes a low-bit copy of a checkpoint, a few rows at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from foretoken.common.progress import progress
from foretoken.copies.calibration import Calibration, memory_of
from foretoken.copies.checkpoint import FILES, SHARD, divided, file_names, index, kept, size_of, write_json
from foretoken.copies.fingerprint import fingerprint
from foretoken.copies.place import expect_place, free_bytes, tidy, written_whole
from foretoken.copies.tensors import TensorFile
from foretoken.decoder.config import QUANT_METHOD, QUANT_VERSION, DecoderConfig, read_config, read_json
from foretoken.decoder.homes.mapped import forget
from foretoken.decoder.loading import mapped_tensors
from foretoken.decoder.shapes import EMBEDDING, linear_shapes, stored_as
from foretoken.decoder.shards import INDEX
from foretoken.errors import CheckpointError, ContractError, InputError, UnsupportedModelError
from foretoken.formats import Format
from foretoken.formats.quantiser import Quantiser, expect_quantiser, quantise
from foretoken.formats.table import TILE
from foretoken.formats.weight import Part, QuantisedWeight, parts

_TOGETHER = 1 << 25  # numbers read, quantised and written together


@dataclass(frozen=True)
class CopyPlan:
    """A copy to be written. Nothing is written yet."""

    folder: Path
    config: DecoderConfig
    out: Path
    format: Format
    quantiser: Quantiser
    tensors: dict[str, torch.Tensor]  # the model's, mapped
    shards: tuple[dict[str, dict[str, Part]], ...]  # for each, layers or tensors by name, with what they become
    free: int  # bytes of the disk
    replace: bool  # whether a copy at `out` is replaced

    @property
    def bytes_before(self) -> int:
        """The bytes of the model's weights."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def bytes_after(self) -> int:
        """The bytes of the copy's weights."""
        return sum(size_of(part) for shard in self.shards for made in shard.values() for part in made.values())

    @property
    def dtype(self) -> torch.dtype:
        """The type that a loaded model's weights have."""
        return self.tensors[f"{EMBEDDING}.weight"].dtype

    @property
    def bits(self) -> float:
        """The bits of a weight of a linear layer, with its share of scales and zero points."""
        linears = linear_shapes(self.config)
        size = sum(size_of(p) for shape in linears.values() for p in parts(self.format, *shape).values())
        return 8 * size / sum(map(prod, linears.values()))


@dataclass(frozen=True)
class Spent:
    """The seconds of everything and of the quantiser alone, and the bytes of all weights; a tied head counts again."""

    seconds: float
    quantiser_seconds: float
    bytes_read: int


def expect_original(folder: Path) -> DecoderConfig:
    """The configuration of a checkpoint that can be quantised."""
    config = read_config(folder)
    if config.low_bit is not None:
        raise UnsupportedModelError(
            f"{folder} is in a low-bit format already, {config.low_bit.label}; quantise the model that it was made of"
        )
    return config


def plan(
    folder: Path,
    out: Path,
    format: Format,
    *,
    quantiser: Quantiser = "direct",
    replace: bool = False,
    shard: int = SHARD,
) -> CopyPlan:
    """Check everything that could be wrong before minutes of work: model, format, place and disk.

    replace: whether a copy of ours at `out` may be replaced. Raises an InputError or a ModelError.
    """
    expect_quantiser(format, quantiser)
    config = expect_original(folder)
    tidy(out)
    expect_place(out, replace=replace, ours=FILES)
    tensors = mapped_tensors(folder, config)
    shards = _shards(tensors, config, format, shard)
    made = CopyPlan(folder, config, out, format, quantiser, tensors, shards, free_bytes(out), replace)
    needed = made.bytes_after + sum((folder / name).stat().st_size for name in kept(folder)) + (1 << 20)
    if needed > made.free:
        raise InputError(
            f"the copy takes {needed / 1e9:.3g} GB, and the disk of {out} has {made.free / 1e9:.3g} GB free; free some "
            "space, or name a folder on another disk"
        )
    return made


def memory_to_write(plan: CopyPlan, tokens: int) -> int:
    """The most bytes of memory that `write` takes besides what the process uses already. tokens: of its texts."""
    together = min(_TOGETHER, max(tensor.numel() for tensor in plan.tensors.values()))
    slices = 5 * together
    if plan.quantiser != "gptq":
        return slices
    return slices + memory_of(plan.config, tokens, plan.dtype.itemsize, cast=12 * together)


def _shards(
    tensors: dict[str, torch.Tensor], config: DecoderConfig, format: Format, most: int
) -> tuple[dict[str, dict[str, Part]], ...]:
    """The layers and tensors of each shard. A layer's codes and scales are in one shard."""
    linears = linear_shapes(config)
    units: dict[str, dict[str, Part]] = {
        name: {name: Part(tuple(tensor.shape), tensor.dtype)}
        for name, tensor in tensors.items()
        if name.removesuffix(".weight") not in linears
    }
    for name, shape in linears.items():
        units[name] = {f"{name}.weight.{kind}": part for kind, part in parts(format, *shape).items()}
    return divided(units, most)


def write(plan: CopyPlan, *, threads: int | None = None, texts: Sequence[Sequence[int]] = ()) -> Spent:
    """Write a copy, whole or not at all. Only some rows of it are in memory at a time, or one layer of the model.

    texts: token ids, for the quantiser `gptq`: it makes the errors small on these. Raises CheckpointError, with the
    tensor's name, if one holds a NaN or an infinity, and InputError if the disk fails.
    """
    began = perf_counter()
    if (plan.quantiser == "gptq") != bool(texts):
        raise ContractError(
            f"{plan.quantiser} came with {len(texts)} texts; expected some for gptq, and none for others"
        )
    calibration = Calibration(plan.config, plan.tensors, texts, threads) if texts else None
    work = _Work(plan, threads, calibration)
    title = f"quantising to {plan.format.label}"
    with (
        written_whole(plan.out, replace=plan.replace, ours=FILES) as folder,
        progress(title, work.bytes_read, slow=plan.quantiser != "direct") as work.done,
    ):
        names = file_names(len(plan.shards))
        for file, shard in zip(names, plan.shards, strict=True):
            with TensorFile(folder / file, {n: part for unit in shard.values() for n, part in unit.items()}) as opened:
                for unit in shard:
                    work.write(opened, unit)
        if len(names) > 1:
            write_json(folder / INDEX, index(plan.shards))
        for name in kept(plan.folder):
            shutil.copyfile(plan.folder / name, folder / name)
        about = {
            "quant_method": QUANT_METHOD,
            "version": QUANT_VERSION,
            "format": plan.format.label,
            "quantizer": plan.quantiser,
            "source": fingerprint(plan.folder, plan.config),
        }
        write_json(folder / "config.json", {**read_json(plan.folder / "config.json"), "quantization_config": about})
    return Spent(perf_counter() - began, work.seconds, work.bytes_read)


class _Work:
    """Writes layers and tensors to files, and measures the quantiser's time."""

    def __init__(self, plan: CopyPlan, threads: int | None, calibration: Calibration | None) -> None:
        self.plan = plan
        self.calibration = calibration
        self.threads = threads
        self.seconds = 0.0
        self.linears = linear_shapes(plan.config)
        self.bytes_read = sum(self.source(unit)[1].nbytes for shard in plan.shards for unit in shard)
        self.done: Callable[[int], None] = lambda done: None

    def source(self, unit: str) -> tuple[str, torch.Tensor]:
        """The model's name for the tensor from which a layer or tensor of the copy is made, and this tensor."""
        name = stored_as(unit, self.plan.config) if unit in self.linears else unit
        return name, self.plan.tensors[name]

    def write(self, file: TensorFile, unit: str) -> None:
        name, tensor = self.source(unit)
        for rows in _slices(tensor):
            if unit in self.linears:
                began = perf_counter()
                made = self._quantised(unit, rows, tensor)
                self.seconds += perf_counter() - began
                for kind in parts(self.plan.format, *made.shape):
                    file.write(f"{unit}.weight.{kind}", getattr(made, kind))
            else:
                low, high = rows.aminmax()
                if not bool(low.isfinite() & high.isfinite()):
                    raise CheckpointError(
                        f"{name} holds {int((~tensor.isfinite()).sum())} numbers that are NaN or infinite among "
                        f"{tensor.numel()}; the checkpoint is damaged: download it again"
                    )
                file.write(name, rows)
            self.done(rows.nbytes)
            forget(rows)

    def _quantised(self, unit: str, rows: torch.Tensor, whole: torch.Tensor) -> QuantisedWeight:
        plan, name = self.plan, stored_as(unit, self.plan.config)
        how: dict[str, Any] = {"name": name, "quantiser": plan.quantiser, "threads": self.threads}
        if self.calibration is not None:
            how["factor"] = self.calibration.factor(unit)
        try:
            made = quantise(rows.to(plan.dtype), plan.format, **how)
        except CheckpointError:
            return quantise(whole.to(plan.dtype), plan.format, name=name)  # for a message that counts the whole tensor
        if self.calibration is not None:
            self.calibration.keep(unit, made)
        return made


def _slices(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Slices of some rows each, in whole tiles."""
    if tensor.ndim == 1:
        yield tensor
        return
    step = max(_TOGETHER // tensor.shape[1] // TILE, 1) * TILE
    for first in range(0, len(tensor), step):
        yield tensor[first : first + step]
