"""How fast memory and disk are read, and whether memory comes in huge pages."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from foretoken.common.limits import memory_left, text_of
from foretoken.doctor.facts import Disk, HugePages, MemorySpeed
from foretoken.errors import ModelError

_SETTING = "sys/kernel/mm/transparent_hugepage/enabled"
_PROBE = 64 << 20  # bytes that ask for huge pages
_MOST, _LEAST = 1 << 30, 64 << 20  # bytes of each of two allocations that are read
_SHARE = 8  # of what is available, an allocation is at most so little
_TEMPORARY = 256 << 20  # bytes of a file that is made to be read
_SPARE = 2 << 30  # bytes that must stay free on the disk
_CHUNK = 8 << 20
_MOST_READ, _LONG = 1 << 30, 2.0  # bytes, seconds
_WORTH = 32 << 20  # a smaller file says nothing of a disk
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def huge_pages(root: Path = Path("/")) -> HugePages:
    """What the system is set to, and what an allocation that asks gets."""
    words = text_of(root / _SETTING)
    setting = words.partition("[")[2].partition("]")[0] or None
    disabled = "\nTHP_enabled:\t0" in text_of(root / "proc/self/status")
    return HugePages(setting, disabled, None if setting is None else _share_in_huge_pages())


def memory_speed(threads: int, isa: str | None) -> tuple[MemorySpeed | None, str | None]:
    """The best of both kinds of page; or why it was not measured. isa: the native one, None: with PyTorch."""
    left = memory_left()
    size = _MOST if left is None else min(_MOST, left // _SHARE) // _LEAST * _LEAST
    if size < _LEAST:
        return None, f"only {(left or 0) / 1e6:.0f} MB of memory are available"
    try:
        return _native_speed(threads, isa, size) if isa else _torch_speed(threads, size), None
    except ModelError as error:  # the system gives no memory
        return None, str(error).partition(";")[0]


def better_of(first: MemorySpeed, threads: int, isa: str | None) -> MemorySpeed:
    """Memory's speed, measured once more, some moments later: the better of the two, which tells the other. Others on
    the same host can halve it for seconds."""
    second, _ = memory_speed(threads, isa)
    if second is None:
        return first
    better, worse = sorted((first, second), key=lambda each: -each.best)
    return replace(better, other=worse.best)


def place_of_models(folder: Path | None) -> Disk:
    """Where models lie: the folder of one, or that of the hub's."""
    from huggingface_hub.constants import HF_HUB_CACHE

    place = Path(folder or HF_HUB_CACHE)
    there = _nearest(place)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        free = None
    return Disk(str(place), os.access(there, os.W_OK | os.X_OK), free, _file_system(there) in _IN_MEMORY)


def disk_speed(disk: Disk) -> Disk:
    """The same, read: the largest checkpoint file there, or a temporary file."""
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
    except OSError as error:
        return replace(disk, not_measured=f"a file there could not be read ({error.strerror or error})")


def _native_speed(threads: int, isa: str, size: int) -> MemorySpeed:
    from foretoken.bench.ceilings import Ceiling

    found: dict[str, tuple[float, int]] = {}
    for (kind, streams), speed in Ceiling(threads, isa, size).speeds.items():
        found[kind] = max(found.get(kind, (0.0, 0)), (speed, streams))
    best = {kind: streams for kind, (_, streams) in found.items()}
    return MemorySpeed(found["huge"][0], found["small"][0], best, threads, size, "native")


def _torch_speed(threads: int, size: int) -> MemorySpeed:
    """A sum of floats, which is a little slower than reading."""
    import torch

    from foretoken.decoder.homes.huge_pages import allocate

    speeds = {}
    for kind in ("huge", "small"):
        memory = allocate(size, huge=kind == "huge").view(torch.float32)
        memory.fill_(1.0)
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            memory.sum()
            seconds.append(time.perf_counter() - began)
        speeds[kind] = size / min(seconds)
        del memory
    return MemorySpeed(speeds["huge"], speeds["small"], {}, threads, size, "PyTorch")


def _share_in_huge_pages() -> float | None:
    """Of memory that was asked for in huge pages and written, the share that lies in some."""
    from foretoken.decoder.homes.huge_pages import allocate

    try:
        memory = allocate(_PROBE)
    except ModelError:
        return None
    memory.fill_(1)
    start, inside = memory.data_ptr(), False
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        first = line.split(maxsplit=1)[0] if line else ""
        low, dash, high = first.partition("-")
        if dash and not first.endswith(":"):
            inside = int(low, 16) <= start < int(high, 16)
        elif inside and first == "AnonHugePages:":
            return min(1.0, int(line.split()[1]) * 1024 / _PROBE)
    return None


def _nearest(place: Path) -> Path:
    """The folder itself, or the first above it that is there."""
    return next((p for p in (place, *place.absolute().parents) if p.is_dir()), Path())


def _file_system(folder: Path, root: Path = Path("/")) -> str | None:
    """Its kind: of the deepest mount that the folder lies in."""
    best, kind = -1, None
    place = os.path.realpath(folder)
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        words = left.split()
        if len(words) < 5 or not right:
            continue
        mount = words[4].replace("\\040", " ")
        if (place == mount or place.startswith(mount.rstrip("/") + "/")) and len(mount) >= best:
            best, kind = len(mount), right.split()[0]
    return kind


def _largest(folder: Path) -> Path | None:
    """The largest file of weights in a folder of a model or in the hub's, if one is large enough to say something."""
    best, size = None, _WORTH - 1
    with suppress(OSError):
        for pattern in ("*.safetensors", "models--*/snapshots/*/*.safetensors"):
            for file in folder.glob(pattern):
                with suppress(OSError):
                    if (its := file.stat().st_size) > size and os.access(file, os.R_OK):
                        best, size = file, its
    return best


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A file of numbers that no file system makes smaller, on the disk when it is given out."""
    with tempfile.NamedTemporaryFile(prefix=".foretoken-", suffix=".partial", dir=folder) as file:
        chunk = os.urandom(_CHUNK)
        for _ in range(_TEMPORARY // _CHUNK):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name)


def _read(disk: Disk, file: Path, called: str) -> Disk:
    direct, size = _direct(file)
    _buffered(file, _TEMPORARY)  # into the system's cache
    return replace(disk, read=called, size=size, direct=direct, cached=_buffered(file, _TEMPORARY)[0])


def _direct(file: Path) -> tuple[float | None, int]:
    """Bytes a second past the system's cache, and how many were read; None where this system or disk cannot."""
    if not hasattr(os, "O_DIRECT"):
        return None, 0
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # some file systems refuse it
        return _dropped(file)
    try:
        return _sequential(descriptor, _MOST_READ)
    except OSError:  # others say so when they read
        return _dropped(file)
    finally:
        os.close(descriptor)


def _dropped(file: Path) -> tuple[float | None, int]:
    """The same by asking the system to forget the file first, which it may or may not."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return _sequential(descriptor, _MOST_READ)
    finally:
        os.close(descriptor)


def _buffered(file: Path, most: int) -> tuple[float | None, int]:
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return _sequential(descriptor, most)
    finally:
        os.close(descriptor)


def _sequential(descriptor: int, most: int) -> tuple[float | None, int]:
    """Reads from the beginning until it has read `most`, or for long enough: bytes a second, and bytes."""
    done, began = 0, time.perf_counter()
    with mmap.mmap(-1, _CHUNK) as memory, open(descriptor, "rb", buffering=0, closefd=False) as source:
        while done < most and time.perf_counter() - began < _LONG:
            count = source.readinto(memory)
            if not count:
                break
            done += count
    passed = time.perf_counter() - began
    return (done / passed if done and passed > 0 else None), done
