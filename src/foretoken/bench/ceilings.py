"""How fast this machine reads memory: what every kernel that reads weights once is measured against."""

from __future__ import annotations

from collections.abc import Callable

import torch

from foretoken.decoder.homes.huge_pages import allocate
from foretoken.kernels import native

STREAMS = (1, 2, 4, 8, 16)  # a thread's: side by side
SIZE = 1 << 30  # bytes: more than the last-level cache of any machine that this is for


class Ceiling:
    """Reads memory of both kinds of page, in as many streams as is best, whenever it is asked."""

    def __init__(self, threads: int, isa: str, size: int | None = None) -> None:
        size = SIZE if size is None else size
        self._threads = threads
        self._isa = isa
        self._memory = {kind: allocate(size, huge=kind == "huge") for kind in ("huge", "small")}
        for memory in self._memory.values():
            memory.fill_(1)  # a page that nobody wrote is the same page everywhere, and stays in the cache
        every = [(kind, streams) for kind in self._memory for streams in STREAMS]
        self.speeds = {way: max(self._read(*way) for _ in range(2)) for way in every}  # at first, in bytes a second
        self._ways = sorted(self.speeds, key=lambda way: -self.speeds[way])[:3]

    @property
    def memory(self) -> torch.Tensor:
        """What is read in huge pages: uint8, for others to use."""
        return self._memory["huge"]

    def measure(self) -> float:
        """Bytes a second, now: the best of the ways that were best at first."""
        return max(self._read(*way) for way in self._ways)

    def _read(self, kind: str, streams: int) -> float:
        memory = self._memory[kind]
        return memory.numel() / native.read_seconds(memory, self._threads, streams, self._isa)


def bandwidth(threads: int, size: int | None = None) -> Callable[[], float | None]:
    """What memory gives whenever it is called, in bytes a second; unknown without the native module."""
    if native.module() is None:
        return lambda: None
    return Ceiling(threads, native.isa(), size).measure
