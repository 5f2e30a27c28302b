"""Loads weights from safetensors: maps them, checks them against the configuration, and copies them on request or if
that pays."""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
from safetensors import SafetensorError, safe_open

from foretoken.common.limits import memory_left
from foretoken.common.progress import size
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.homes import choice as home
from foretoken.decoder.homes.huge_pages import copied, size_of
from foretoken.decoder.homes.mapped import MappedFiles
from foretoken.decoder.shapes import EMBEDDING, expected_shapes, linear_shapes
from foretoken.decoder.shards import weight_files
from foretoken.decoder.weights import Weights, assemble, repacked
from foretoken.errors import CheckpointError, ModelError, UnsupportedModelError
from foretoken.formats.slices import on_threads
from foretoken.formats.table import Format
from foretoken.formats.weight import QuantisedWeight, expect_valid, parts
from foretoken.kernels import native

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


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
    """Load a checkpoint's weights. The tensors are mapped, and copied only if another `dtype` or device is asked for.

    copy: True copies all weights (on the CPU) into one allocation and closes the files. None copies them if that pays
    and memory is left for the copy and for `besides`, the bytes that other things will need later (see `home`). Low-bit
    weights stay on the CPU. Raises CheckpointError or another ModelError before any tensor is used, if one is missing,
    has a wrong shape, or cannot be read.
    """
    files = MappedFiles(weight_files(folder))
    found = mapped_tensors(folder, config)
    files.expect_names()
    dtype = dtype or found[f"{EMBEDDING}.weight"].dtype
    tensors = {name: found.pop(name) for name in expected_shapes(config)}
    needed, began, why = size_of({name: (tensor.shape, dtype) for name, tensor in tensors.items()}), perf_counter(), ""
    if copy is None:
        chosen = home_here(config, dtype, device, needed, besides)
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
    codes = _coded(found, config, threads)  # on the CPU: another device gets their values
    placed = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    files.expect_unchanged()  # since they were opened: the conversion has read them
    stays = bool(codes) or any(placed[name] is tensor for name, tensor in tensors.items())
    return replace(assemble(placed, config, codes), mapped=files if stays else None)


def home_here(config: DecoderConfig, dtype: torch.dtype, device: str, needed: int, besides: int) -> home.Home:
    """The home that suits weights on this machine, as it is now (`homes/choice.py`): whether a copy pays."""
    isa = native.isa() if device == "cpu" and native.module() is not None else None
    return home.choose(
        str(dtype).removeprefix("torch.") if config.low_bit is None else config.low_bit.label,
        isa,
        has_layout=isa is not None and native.repacks(isa),
        needed=needed,
        besides=besides,
        left=memory_left() if needed >= home.SMALL else None,  # looking takes milliseconds
    )


def mapped_tensors(folder: Path, config: DecoderConfig) -> dict[str, torch.Tensor]:
    """The mapped tensors of a checkpoint of this configuration, unconverted. Those of `expected_shapes` come first, and
    their shapes and types are checked; those of low-bit weights follow. Raises CheckpointError for a missing tensor or
    a wrong shape, and UnsupportedModelError for a type that is not supported."""
    shapes = expected_shapes(config)
    low_bit = [] if config.low_bit is None else _coded_parts(config.low_bit, linear_shapes(config))
    mapped = dict(_mapped_tensors(folder, {*shapes, *low_bit}))
    _expect_there(folder, mapped, [*shapes, *low_bit])
    found = {name: mapped[name] for name in (*shapes, *low_bit)}
    _expect_fitting(found, shapes)
    return found


def _expect_there(folder: Path, found: Container[str], names: Collection[str]) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(names)} tensors, the first is {missing[0]}; "
            "expected what config.json describes: fetch the checkpoint again"
        )


def _expect_fitting(found: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an error for a tensor of another shape, or of a type that is not supported."""
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


def some_tensors(folder: Path, config: DecoderConfig, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Some tensors of a checkpoint, or of a part of one, in memory of their own, checked as `mapped_tensors` checks."""
    shapes = {name: shape for name, shape in expected_shapes(config).items() if name in names}
    found = dict(_mapped_tensors(folder, shapes))
    _expect_there(folder, found, shapes)
    _expect_fitting(found, shapes)
    return copied({name: found[name] for name in shapes}, None)


def copied_codes(
    folder: Path, config: DecoderConfig, *, instead: str, without: Collection[int] = (), threads: int | None = None
) -> dict[str, QuantisedWeight]:
    """The low-bit weights of a checkpoint, by the names of their layers, checked, in memory of their own. instead: the
    advice if there is no memory for them. without: layers whose weights are not read."""
    found = mapped_tensors(folder, config)
    assert config.low_bit is not None
    wanted = _coded_parts(config.low_bit, linear_shapes(config, without=without))
    return _coded(copied({name: found[name] for name in wanted}, None, instead=instead), config, threads, without)


def _coded_parts(format: Format, linears: Mapping[str, tuple[int, int]]) -> list[str]:
    return [f"{name}.weight.{part}" for name, shape in linears.items() for part in parts(format, *shape)]


def _coded(
    found: dict[str, torch.Tensor], config: DecoderConfig, threads: int | None, without: Collection[int] = ()
) -> dict[str, QuantisedWeight]:
    """The low-bit weights of a checkpoint, by the names of their layers, checked."""
    if config.low_bit is None:
        return {}
    coded = {}
    for name, shape in linear_shapes(config, without=without).items():
        made = {part: found.pop(f"{name}.weight.{part}") for part in parts(config.low_bit, *shape)}
        coded[name] = QuantisedWeight(config.low_bit, shape, **made)
    names = list(coded)
    on_threads(lambda i: expect_valid(coded[names[i]], f"{names[i]}.weight"), range(len(names)), threads)
    return coded


def _expect_readable(path: Path) -> None:
    """Raise CheckpointError for a file that the system does not let us read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); see whose file it is") from None


def _mapped_tensors(folder: Path, wanted: Container[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if name in wanted]  # noqa: SIM118 (not a dictionary)
                tensors = [file.get_tensor(name) for name in names]
        except (SafetensorError, OSError, ValueError) as error:
            _expect_readable(path)  # the library says of any such file that it is not there
            raise CheckpointError(
                f"{path} cannot be read as safetensors ({error}); it may be cut short: fetch the file again"
            ) from None
        yield from zip(names, tensors, strict=True)
