"""How fast a model's files are read past the system's cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from foretoken.decoder.homes.huge_pages import allocate
from foretoken.offload.direct import ALIGNED, DirectFile
from foretoken.offload.stream import BLOCK, READERS

_MOST = 1 << 30  # bytes
_LONG = 1.0  # seconds


def reads_directly(paths: Sequence[Path]) -> bool:
    """Whether the file system lets files be read past the system's cache. Raises CheckpointError if one cannot be
    read."""
    return all(DirectFile(path).direct for path in paths)


def read_speed(paths: Sequence[Path]) -> float:
    """Bytes a second of reads of the largest of some files, as layers are read in a pass. Takes a second at most.
    Raises CheckpointError if it cannot be read."""
    done, seconds = timed_read(max(paths, key=lambda path: path.stat().st_size))
    return max(done, 1) / seconds


def timed_read(path: Path) -> tuple[int, float]:
    """Read a file from its start as layers are read in a pass, a gigabyte or for a second at most. Returns the bytes
    that were read, and the seconds. Raises CheckpointError if it cannot be read."""
    file = DirectFile(path)
    size = min(_MOST, file.size // ALIGNED * ALIGNED)
    # in huge pages, like the buffer of a pass: into small pages, direct reads can be half as fast (LOG)
    memory = allocate(READERS * BLOCK).fill_(0).numpy().data
    began = time.perf_counter()

    def read(reader: int) -> int:
        done = 0
        for at in range(reader * BLOCK, size, READERS * BLOCK):
            count = min(BLOCK, size - at)
            file.read(memory[reader * BLOCK : reader * BLOCK + count], at)
            done += count
            if time.perf_counter() - began > _LONG:
                break
        return done

    with ThreadPoolExecutor(READERS) as pool:
        done = sum(pool.map(read, range(READERS)))
    return done, time.perf_counter() - began
