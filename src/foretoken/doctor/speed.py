"""How fast memory and disk are read, and whether memory comes in huge pages."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from timeit import repeat

import torch
from huggingface_hub import constants

from foretoken.bench.ceilings import Ceiling
from foretoken.bench.disk import reads_directly, timed_read
from foretoken.common.limits import memory_left, text_of
from foretoken.decoder.homes.huge_pages import allocate
from foretoken.doctor.facts import Disk, HugePages, MemorySpeed
from foretoken.doctor.machine import file_system
from foretoken.errors import CheckpointError, ModelError

_SETTING = "sys/kernel/mm/transparent_hugepage/enabled"
_PROBE = 64 << 20  # bytes of the allocation that asks for huge pages
_MOST, _LEAST = 1 << 30, 64 << 20  # limits in bytes for each of the two allocations that are read
_SHARE = 8  # an allocation is at most an eighth of the available memory
_TEMPORARY = 256 << 20  # bytes of the temporary file that is read
_SPARE = 2 << 30  # bytes that must stay free on the disk
_CHUNK = 8 << 20
_MOST_READ, _LONG = 1 << 30, 2.0  # bytes, seconds
_WORTH = 32 << 20  # bytes: a smaller file says nothing about the disk
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def huge_pages(root: Path = Path("/")) -> HugePages:
    """The system's setting, and the share of an allocation that gets the huge pages it asks for."""
    setting = re.search(r"\[(\w+)\]", text_of(root / _SETTING))
    disabled = "\nTHP_enabled:\t0" in text_of(root / "proc/self/status")
    return HugePages(setting and setting[1], disabled, _share_in_huge_pages() if setting else None)


def memory_speed(threads: int, isa: str | None) -> tuple[MemorySpeed | None, str | None]:
    """Memory's speed with both kinds of page, or why it was not measured. isa: the native one; None: PyTorch reads."""
    left = memory_left()
    size = _MOST if left is None else min(_MOST, left // _SHARE) // _LEAST * _LEAST
    if size < _LEAST:
        return None, f"only {(left or 0) / 1e6:.0f} MB of memory are available"
    try:
        return _native_speed(threads, isa, size) if isa else _torch_speed(threads, size), None
    except ModelError as error:  # the system gives no memory
        return None, str(error).partition(";")[0]


def better_of(first: MemorySpeed, threads: int, isa: str | None) -> MemorySpeed:
    """Measure memory's speed once more, some moments later. Returns the better result; `other` has the other's speed.
    Other programs on the same host can halve the speed for seconds."""
    second, _ = memory_speed(threads, isa)
    if second is None:
        return first
    better, worse = sorted((first, second), key=lambda each: -each.best)
    return replace(better, other=worse.best)


def place_of_models(folder: Path | None) -> Disk:
    """The disk that holds models. folder: a model's; None: the hub's."""
    place = Path(folder or constants.HF_HUB_CACHE)
    there, free = _nearest(place), None
    with suppress(OSError):
        free = shutil.disk_usage(there).free
    return Disk(str(place), os.access(there, os.W_OK | os.X_OK), free, file_system(there) in _IN_MEMORY)


def disk_speed(disk: Disk) -> Disk:
    """The disk with its read speed, measured on its largest checkpoint file or on a temporary file."""
    file = _largest(Path(disk.folder))
    try:
        if file is not None:
            return _read(disk, file, file.name)
        if not disk.writable:
            return replace(disk, not_measured="no model lies there, and nothing can be written")
        if disk.free is not None and disk.free < _TEMPORARY + _SPARE:
            return replace(disk, not_measured="no model lies there, and too little is free for a file to be read")
        with _temporary(_nearest(Path(disk.folder))) as made:
            return _read(disk, made, "a temporary file")
    except (OSError, CheckpointError) as error:
        why = getattr(error, "strerror", None) or error
        return replace(disk, not_measured=f"a file there could not be read ({why})")


def _native_speed(threads: int, isa: str, size: int) -> MemorySpeed:
    speeds = Ceiling(threads, isa, size).speeds  # by kind of page and streams
    huge, small = (max((speed, n) for (of, n), speed in speeds.items() if of == kind) for kind in ("huge", "small"))
    return MemorySpeed(huge[0], small[0], {"huge": huge[1], "small": small[1]}, threads, size, "native")


def _torch_speed(threads: int, size: int) -> MemorySpeed:
    """Measured by a sum of floats, which is a little slower than reading."""

    def read(huge: bool) -> float:
        memory = allocate(size, huge=huge).view(torch.float32).fill_(1.0)
        return size / min(repeat(memory.sum, timer=time.perf_counter, repeat=3, number=1))

    return MemorySpeed(read(True), read(False), {}, threads, size, "PyTorch")


def _share_in_huge_pages() -> float | None:
    """The share of an allocation that lies in huge pages, after asking for them and writing all of it."""
    before = _in_huge_pages()
    try:
        memory = allocate(_PROBE).fill_(1)
    except ModelError:
        return None
    after = _in_huge_pages()
    del memory  # kept until the second count
    return None if before is None or after is None else min(1.0, max(0, after - before) / _PROBE)


def _in_huge_pages() -> int | None:
    """Bytes of this process's memory that lie in huge pages."""
    found = re.findall(r"^AnonHugePages:\s+(\d+) kB", text_of(Path("/proc/self/smaps")), re.MULTILINE)
    return 1024 * sum(map(int, found)) if found else None


def _nearest(place: Path) -> Path:
    """The folder itself, or its nearest parent that exists."""
    return next((p for p in (place, *place.absolute().parents) if p.is_dir()), Path())


def _largest(folder: Path) -> Path | None:
    """The largest weights file in a model's folder or in the hub's; None if no file is large enough to measure."""
    sizes = {}
    with suppress(OSError):
        for file in (*folder.glob("*.safetensors"), *folder.glob("models--*/snapshots/*/*.safetensors")):
            sizes[file] = file.stat().st_size if os.access(file, os.R_OK) else 0
    return max((file for file in sizes if sizes[file] >= _WORTH), key=sizes.__getitem__, default=None)


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A file of random bytes, which no file system can compress. Its bytes are on the disk before it is yielded."""
    with tempfile.NamedTemporaryFile(prefix=".foretoken-", suffix=".partial", dir=folder) as file:
        chunk = os.urandom(_CHUNK)
        for _ in range(_TEMPORARY // _CHUNK):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name)


def _read(disk: Disk, file: Path, called: str) -> Disk:
    direct, size = _direct(file)
    _sequential(file, _TEMPORARY)  # fills the system's cache
    return replace(disk, read=called, size=size, direct=direct, cached=_sequential(file, _TEMPORARY)[0])


def _direct(file: Path) -> tuple[float | None, int]:
    """Bytes per second without the system's cache, and the bytes read; None if the system has no O_DIRECT. If the file
    system refuses O_DIRECT, the system is asked to forget the file first, and may ignore that."""
    if not hasattr(os, "O_DIRECT"):
        return None, 0
    if reads_directly([file]):
        done, seconds = timed_read(file)
        return (done / seconds if done else None), done
    with open(file, "rb") as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return _sequential(file, _MOST_READ)


def _sequential(file: Path, most: int) -> tuple[float | None, int]:
    """Read a file from its start, up to `most` bytes or `_LONG` seconds. Returns bytes per second and bytes read."""
    done = 0
    memory = bytearray(_CHUNK)
    with open(file, "rb", buffering=0) as source:
        began = time.perf_counter()
        while done < most and time.perf_counter() - began < _LONG and (count := source.readinto(memory)):
            done += count
        passed = time.perf_counter() - began
    return (done / passed if done and passed > 0 else None), done
