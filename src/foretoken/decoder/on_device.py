"""Loads a model onto a GPU that has no room for all of its layers. The others lie in the machine's memory, and are
copied to the GPU while a pass runs (`foretoken.offload.host`)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from foretoken.common.progress import size as progress_size
from foretoken.decoder.homes.huge_pages import Kind, allocate, size_of, together, viewed
from foretoken.decoder.homes.parts import PartHome
from foretoken.decoder.streaming import Stored, files_of, read_tensors
from foretoken.decoder.weights import Weights, assemble
from foretoken.errors import SettingError
from foretoken.offload.direct import ALIGNED, DirectFile, Throttle
from foretoken.offload.host import Copied, HostMemory
from foretoken.offload.store import Extent
from foretoken.offload.stream import Stream

log = logging.getLogger(__name__)

_INSTEAD = "free some, or take a smaller model"  # the advice if there is no memory
_ASIDE = 512 << 20  # bytes that are read before they are copied to the GPU
_BLOCK = 64 << 20  # bytes of one copy


def bytes_copied(stored: Stored, part: int) -> int:
    """The bytes that are copied to a GPU for a part, and that it takes in the buffer there."""
    return -(-stored.bytes_of(part) // ALIGNED) * ALIGNED


def load_to_device(
    stored: Stored, streamed: Collection[int], buffer: int, device: torch.device, *, verify: bool = False
) -> Weights:
    """Load a checkpoint onto a device, but for some parts, which are copied there while passes run.

    streamed: the numbers of those parts (see `homes.parts`). buffer: the bytes of the device's memory into which they
    are copied. verify: hash the files first. The weights have the type that they have in the files.

    Raises CheckpointError if the files cannot be read, and ModelError if there is no memory.
    """
    order = sorted(streamed)
    sizes = [bytes_copied(stored, part) for part in order]
    if order and max(sizes) > buffer:
        raise SettingError(f"a buffer of {buffer} bytes has no room for a part of a layer, of {max(sizes)} bytes")
    throttle = Throttle(None)
    files = files_of(stored, stored.kinds, (), throttle, verify=verify)
    of_units = [{name: stored.kinds[name] for name in stored.of_part(part)} for part in order]
    away = {name for kinds in of_units for name in kinds}
    placed = _read_onto(stored, files, {name: kind for name, kind in stored.kinds.items() if name not in away}, device)
    if not order:
        return assemble({name: placed[name] for name in stored.kinds}, stored.config)

    memory = _empty(buffer, device)
    host, units, tensors = host_memory(sum(sizes), device), list[list[Extent]](), dict[str, torch.Tensor]()
    for kinds, size in zip(of_units, sizes, strict=True):
        start = units[-1][0].stop if units else 0
        units.append([Extent(0, start, start + size)])
        tensors |= viewed(host[start : start + size], kinds)
    read_tensors(stored, files, tensors, throttle)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # what lay in the buffer's memory before is not used any more
    source = HostMemory(host)
    stream = Stream([source], units, memory, block=_BLOCK)
    homes: list[PartHome | None] = [None] * stored.parts
    for number, (part, kinds) in enumerate(zip(order, of_units, strict=True)):
        homes[part] = Copied(stream, number, host=source)
        placed |= viewed(memory[stream.place(number)[0] :], kinds)
    weights = assemble({name: placed[name] for name in stored.kinds}, stored.config)
    return replace(weights, homes=tuple(homes))


def _read_onto(
    stored: Stored, files: Sequence[DirectFile], kinds: Mapping[str, Kind], device: torch.device
) -> dict[str, torch.Tensor]:
    """Tensors of a checkpoint in one allocation on a device. Some are read at a time, so that the machine's memory
    never holds them all."""
    placed = viewed(_empty(size_of(kinds), device), kinds)
    for some in _batches(kinds):
        read = together(some, instead=_INSTEAD)
        read_tensors(stored, files, read, Throttle(None))
        for name, tensor in read.items():
            placed[name].copy_(tensor)
    return placed


def _batches(kinds: Mapping[str, Kind]) -> Iterator[dict[str, Kind]]:
    """The tensors in batches of some size."""
    batch: dict[str, Kind] = {}
    for name, kind in kinds.items():
        batch[name] = kind
        if size_of(batch) >= _ASIDE:
            yield batch
            batch = {}
    if batch:
        yield batch


def _empty(size: int, device: torch.device) -> torch.Tensor:
    on_cpu = device.type == "cpu"
    return allocate(size, instead=_INSTEAD) if on_cpu else torch.empty(size, dtype=torch.uint8, device=device)


def host_memory(size: int, device: torch.device) -> torch.Tensor:
    """`size` bytes of the machine's memory, uint8. For a GPU they are pinned, if the system allows it: only from such
    memory a copy runs beside the arithmetic, and at the bus's full speed. Raises ModelError if there is no memory."""
    memory = allocate(size, instead=_INSTEAD)
    if device.type == "cuda" and size:
        # PyTorch's own pinned memory would be rounded up to a power of two
        start = memory.data_ptr()
        with torch.cuda.device(device):
            # 1: for all GPUs
            if int(torch.cuda.cudart().cudaHostRegister(start, size, 1)) == 0:  # type: ignore[no-untyped-call]
                weakref.finalize(memory, _unregister, start).atexit = False  # the system does it then
            else:
                log.warning(
                    "the system does not let %s of memory be pinned (see `ulimit -l`), so layers are copied to the GPU "
                    "at a fraction of the bus's speed",
                    progress_size(size),
                )
                with suppress(RuntimeError):  # the next call reports the failure once more
                    torch.zeros(1, device=device)
    return memory


def _unregister(start: int) -> None:
    with suppress(RuntimeError):  # CUDA may be gone when the program ends
        torch.cuda.cudart().cudaHostUnregister(start)  # type: ignore[no-untyped-call]
