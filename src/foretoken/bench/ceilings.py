"""How fast this machine reads memory: the ceiling of every kernel that reads weights once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from foretoken.decoder.homes.huge_pages import allocate
from foretoken.kernels import native

STREAMS = (1, 2, 4, 8, 16)  # per thread, read side by side
SIZE = 1 << 30  # bytes: more than the last-level cache of any machine that is measured


class Ceiling:
    """Measures the speed of memory whenever it is called, with both kinds of page and the best numbers of streams."""

    def __init__(self, threads: int, isa: str, size: int | None = None) -> None:
        size = SIZE if size is None else size
        self._threads = threads
        self._isa = isa
        self._memory = {kind: allocate(size, huge=kind == "huge") for kind in ("huge", "small")}
        for memory in self._memory.values():
            memory.fill_(1)  # unwritten pages are all one physical page, which stays in the cache
        every = [(kind, streams) for kind in self._memory for streams in STREAMS]
        self.speeds = {way: max(self._read(*way) for _ in range(2)) for way in every}  # at first, in bytes per second
        self._ways = sorted(self.speeds, key=lambda way: -self.speeds[way])[:3]

    @property
    def memory(self) -> torch.Tensor:
        """The memory in huge pages, uint8, for callers to use."""
        return self._memory["huge"]

    def measure(self) -> float:
        """Bytes per second, now: the best of the three ways that were fastest at first."""
        return max(self._read(*way) for way in self._ways)

    def _read(self, kind: str, streams: int) -> float:
        memory = self._memory[kind]
        return memory.numel() / native.read_seconds(memory, self._threads, streams, self._isa)


def bandwidth(threads: int, size: int | None = None) -> Callable[[], float | None]:
    """A function that measures memory's speed in bytes per second; it returns None without the native module."""
    if native.module() is None:
        return lambda: None
    return Ceiling(threads, native.isa(), size).measure
