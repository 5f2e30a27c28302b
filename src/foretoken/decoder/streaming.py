"""Loads a model of whose layers some stay in their files, and are read while a pass runs.

All other weights are read into memory of their own, past the system's cache of files, so that the memory in use is
what was planned.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

import torch

from foretoken.common.progress import progress
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.homes.huge_pages import Kind, allocate, size_of, together
from foretoken.decoder.homes.mapped import MappedFiles
from foretoken.decoder.homes.parts import PARTS, PartHome, acquired
from foretoken.decoder.loading import mapped_tensors
from foretoken.decoder.shapes import EMBEDDING, linear_shapes
from foretoken.decoder.shards import weight_files
from foretoken.decoder.weights import Weights, assemble, part_of, repacked
from foretoken.errors import CheckpointError, SettingError
from foretoken.formats import Format
from foretoken.formats.slices import on_threads
from foretoken.formats.weight import QuantisedWeight, expect_valid, parts
from foretoken.offload.direct import ALIGNED, DirectFile, Throttle
from foretoken.offload.store import Block, Extent, Place, extents, places
from foretoken.offload.stream import BLOCK, READERS, Stream, Streamed
from foretoken.offload.verified import opened

_INSTEAD = "give the model less memory, or free some"  # the advice if there is none
_BLOCK = 8 << 20  # bytes that are read at once into memory of their own


@dataclass(frozen=True)
class Reading:
    """How files are read. bandwidth: no faster than so many bytes a second. verify: hash them first, and compare each
    block with what it was then, whenever it is read."""

    bandwidth: float | None = None
    verify: bool = False


@dataclass(frozen=True)
class Stored:
    """A checkpoint's tensors as they lie in its files. places and kinds: by the tensors' names."""

    config: DecoderConfig
    paths: tuple[Path, ...]
    places: Mapping[str, Place]
    kinds: Mapping[str, Kind]

    @classmethod
    def of(cls, folder: Path, config: DecoderConfig) -> Stored:
        """Look into a checkpoint's files. Raises CheckpointError if they do not hold what the configuration says."""
        paths = weight_files(folder)
        kinds = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in mapped_tensors(folder, config).items()}
        found = places(paths)
        for name, (shape, dtype) in kinds.items():
            start, stop = found[name].start, found[name].stop
            expected = torch.Size(shape).numel() * dtype.itemsize
            if stop - start != expected or start % dtype.itemsize:
                raise CheckpointError(
                    f"{name} lies at bytes {start} to {stop} of {paths[found[name].file]}, expected {expected} bytes "
                    f"from a multiple of {dtype.itemsize} on; save the checkpoint again"
                )
        return cls(config, tuple(paths), {name: found[name] for name in kinds}, kinds)

    def of_part(self, part: int) -> list[str]:
        """The names of the tensors of a part's matrices."""
        return self._by_part[part]

    def bytes_read(self, part: int) -> int:
        """The bytes that are read for a part."""
        return sum(extent.size for extent in extents(self.places[name] for name in self.of_part(part)))

    def bytes_of(self, part: int) -> int:
        """The bytes of memory of a part that is in memory."""
        return size_of({name: self.kinds[name] for name in self.of_part(part)})

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights that are in no low-bit format, and of keys and values."""
        return self.kinds[f"{EMBEDDING}.weight"][1]

    @property
    def parts(self) -> int:
        """The number of parts of layers."""
        return len(PARTS) * self.config.num_layers

    @property
    def besides(self) -> dict[str, Kind]:
        """What is always in memory: embedding, output layer, norms and biases."""
        return {name: kind for name, kind in self.kinds.items() if _part(name) is None}

    @cached_property
    def _by_part(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for name in self.kinds:
            if (part := _part(name)) is not None:
                found[part].append(name)
        return found


def load_streamed(
    stored: Stored,
    streamed: Collection[int],
    buffer: int,
    *,
    reading: Reading = Reading(),
    rows: bool = False,
    threads: int | None = None,
) -> Weights:
    """Load a checkpoint of which some parts are read while passes run.

    streamed: the numbers of those parts (see `homes.parts`). buffer: the bytes of the buffer into which they are read.
    bandwidth: reads no faster than so many bytes a second. rows: leave what is in memory as it lies in the files, for a
    copy that is cast from it; otherwise it gets the layout that the instruction set reads fastest. The weights have the
    type that they have in the files.

    Raises CheckpointError if the files cannot be read, and ModelError if there is no memory.
    """
    config = stored.config
    watched = MappedFiles(stored.paths)
    throttle = Throttle(reading.bandwidth)
    order = sorted(streamed)
    away = {name for part in order for name in stored.of_part(part)}
    units = [extents(stored.places[name] for name in stored.of_part(part)) for part in order]
    kinds = {name: kind for name, kind in stored.kinds.items() if name not in away}
    files = files_of(
        stored, kinds, units, throttle, verify=reading.verify
    )  # before memory is taken: it needs some, too
    kept = together(kinds, instead=_INSTEAD)
    read_tensors(stored, files, kept, throttle)

    memory = allocate(-(-buffer // ALIGNED) * ALIGNED if order else 0, instead=_INSTEAD)
    homes: list[PartHome | None] = [None] * stored.parts
    there: dict[str, torch.Tensor] = {}
    if order:
        if max(sum(extent.size for extent in unit) for unit in units) > len(memory):
            raise SettingError(f"a buffer of {buffer} bytes has no room for a part of a layer")
        stream = Stream(files, units, memory, throttle)
        for number, part in enumerate(order):
            homes[part] = Streamed(stream, number)
            there |= _views(stored, part, memory, stream.place(number)[0])
    tensors = {**kept, **there}
    weights = assemble(tensors, config, _coded(tensors, stored, homes, threads))
    if order:
        weights = replace(weights, mapped=watched, homes=tuple(homes))
    watched.expect_unchanged()
    return weights if rows else repacked(weights, threads=threads)


def stream_of(weights: Weights) -> Stream | None:
    """What reads the parts of layers that are read while passes run; None if none are."""
    return next((home.stream for home in weights.homes if isinstance(home, Streamed)), None)


def read_codes(
    folder: Path, config: DecoderConfig, *, instead: str, without: Collection[int] = (), threads: int | None = None
) -> dict[str, QuantisedWeight]:
    """As `loading.copied_codes`, but past the system's cache of files: no more memory is used on the way."""
    stored = Stored.of(folder, config)
    assert config.low_bit is not None
    linears = linear_shapes(config, without=without)
    kinds = {f"{name}.weight.{each}" for name, shape in linears.items() for each in parts(config.low_bit, *shape)}
    tensors = together({name: kind for name, kind in stored.kinds.items() if name in kinds}, instead=instead)
    read_tensors(stored, [DirectFile(path) for path in stored.paths], tensors, Throttle(None))
    coded = _taken(tensors, config.low_bit, linears)
    _expect_valid(list(coded.items()), threads)
    return coded


def files_of(
    stored: Stored, kept: Iterable[str], units: Iterable[Iterable[Extent]], throttle: Throttle, *, verify: bool
) -> Sequence[DirectFile]:
    """The files, to be read. verify: they are hashed first, and so is what is read of them: tensors, and units."""
    if verify:
        return opened(stored.paths, _blocks(stored, kept, units), throttle)
    return [DirectFile(path) for path in stored.paths]


def _blocks(stored: Stored, kept: Iterable[str], units: Iterable[Iterable[Extent]]) -> Iterator[tuple[int, Block]]:
    """What is read of the files: of tensors that stay in memory, and of units. With the numbers of the files."""
    for name in kept:
        place = stored.places[name]
        yield from ((place.file, Block.around(at, at + size)) for at, size in _pieces(place))
    for extent in (extent for unit in units for extent in unit):
        yield from ((extent.file, block) for block in extent.blocks(BLOCK))


def _pieces(place: Place) -> Iterator[tuple[int, int]]:
    """A tensor in pieces that are read at once: where each begins in the file, and its size."""
    return ((at, min(_BLOCK, place.stop - at)) for at in range(place.start, place.stop, _BLOCK))


def read_tensors(
    stored: Stored, files: Sequence[DirectFile], into: Mapping[str, torch.Tensor], throttle: Throttle
) -> None:
    """Read whole tensors, on several threads."""
    with ThreadPoolExecutor(READERS) as pool, progress("reading weights", sum(t.nbytes for t in into.values())) as done:
        reads = []
        for name, tensor in into.items():
            place = stored.places[name]
            to = tensor.view(-1).view(torch.uint8).numpy().data
            for at, size in _pieces(place):
                piece = to[at - place.start : at - place.start + size]
                reads.append(pool.submit(_copy, files[place.file], at, piece, throttle))
        try:
            for read in reads:
                done(read.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _copy(file: DirectFile, start: int, to: memoryview, throttle: Throttle) -> int:
    """Read bytes that begin anywhere in a file. Returns their number."""
    first, size = Block.around(start, start + len(to))
    aside = memoryview(mmap.mmap(-1, size))
    until = throttle.begin(size)
    file.read(aside, first)
    throttle.wait(until)
    to[:] = aside[start - first : start - first + len(to)]
    return len(to)


def _views(stored: Stored, part: int, memory: torch.Tensor, start: int) -> dict[str, torch.Tensor]:
    """A part's tensors in the buffer, where the part begins at `start`."""
    names = stored.of_part(part)
    views: dict[str, torch.Tensor] = {}
    for extent in extents(stored.places[name] for name in names):
        for name in names:
            file, first, stop = stored.places[name]
            if file == extent.file and extent.start <= first < extent.stop:
                shape, dtype = stored.kinds[name]
                at = start + first - extent.start
                views[name] = memory[at : at + stop - first].view(dtype).view(tuple(shape))
        start += extent.size
    return views


def _coded(
    tensors: dict[str, torch.Tensor], stored: Stored, homes: Sequence[PartHome | None], threads: int | None
) -> dict[str, QuantisedWeight]:
    """The low-bit weights by the names of their layers, checked, and taken out of `tensors`. Parts that are read while
    passes run are read once for the check."""
    format = stored.config.low_bit
    if format is None:
        return {}
    coded = _taken(tensors, format, linear_shapes(stored.config))

    def home_of(name: str) -> PartHome | None:
        part = part_of(name)
        return None if part is None else homes[part]

    for home, names in groupby(coded, key=home_of):
        with acquired(home):
            _expect_valid([(name, coded[name]) for name in names], threads)
    return coded


def _taken(
    tensors: dict[str, torch.Tensor], format: Format, linears: Mapping[str, tuple[int, int]]
) -> dict[str, QuantisedWeight]:
    coded = {}
    for name, shape in linears.items():
        made = {each: tensors.pop(f"{name}.weight.{each}") for each in parts(format, *shape)}
        coded[name] = QuantisedWeight(format, shape, **made)
    return coded


def _expect_valid(coded: Sequence[tuple[str, QuantisedWeight]], threads: int | None) -> None:
    on_threads(lambda i: expect_valid(coded[i][1], coded[i][0]), range(len(coded)), threads)


def _part(tensor: str) -> int | None:
    """The part to whose matrices a tensor belongs; None for biases and all that belongs to no part."""
    return None if tensor.endswith(".bias") else part_of(tensor)
