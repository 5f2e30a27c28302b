"""Reads units of a model, in the order in which passes use them, into a buffer that has room for some of them.

A unit is read as soon as its place is free: while the pass computes with units before it, and between passes. So at the
end of a pass the first units of the next pass are read. A place is free when no unit lies there that is still to be
used, and nothing is read into it any more.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from time import perf_counter

import torch

from foretoken.errors import ContractError
from foretoken.offload.direct import ALIGNED, DirectFile, Throttle
from foretoken.offload.ring import offsets, overlap
from foretoken.offload.store import Extent

READERS = 4  # threads: disks do several reads at once
BLOCK = 4 << 20  # bytes of one read


@dataclass(eq=False)
class _Visit:
    """One reading of a unit into the buffer. held: how many users it has now."""

    unit: int
    reads: list[Future[None]]
    held: int = 0

    def cancel(self) -> None:
        """Give up reads that have not begun."""
        for read in self.reads:
            read.cancel()

    @property
    def running(self) -> list[Future[None]]:
        """Reads that still write into the buffer."""
        return [read for read in self.reads if not read.done()]


@dataclass
class Traffic:
    """What was read from the disk, and how long passes waited for it."""

    bytes: int = 0
    waited: float = 0.0  # seconds


@dataclass(eq=False)
class Stream:
    """Units of a model that come in while passes run.

    files: those in which the units lie. units: what to read for each, in the order of use. memory: the buffer, uint8,
    which begins at a multiple of `ALIGNED`. Any number of threads may use it; each holds one unit at a time.
    """

    files: Sequence[DirectFile]
    units: Sequence[Sequence[Extent]]
    memory: torch.Tensor
    throttle: Throttle = field(default_factory=lambda: Throttle(None))
    traffic: Traffic = field(init=False, default_factory=Traffic)

    def __post_init__(self) -> None:
        sizes = [sum(extent.size for extent in unit) for unit in self.units]
        if self.memory.data_ptr() % ALIGNED or len(self.memory) < max(sizes):
            raise ContractError(
                f"a buffer of {len(self.memory)} bytes at {self.memory.data_ptr():#x}; expected at least {max(sizes)} "
                f"at a multiple of {ALIGNED}"
            )
        starts = offsets(sizes, len(self.memory))
        self._ranges = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        self._view = self.memory.numpy().data
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._visits: list[_Visit] = []  # in the order of use: held, read, or being read
        self._given_up: list[_Visit] = []
        self._next = 0  # the unit that is read next
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="foretoken-reader")
        weakref.finalize(self, self._readers.shutdown, wait=False, cancel_futures=True)

    def place(self, unit: int) -> tuple[int, int]:
        """The bytes [start, stop) of the buffer where a unit lies while it is held."""
        return self._ranges[unit]

    def acquire(self, unit: int) -> None:
        """Have a unit in its place until `release`; waits until it has been read. Raises CheckpointError if it cannot
        be read. The next call tries again."""
        if os.getpid() != self._process:
            self._begin()  # a forked child has none of its parent's threads
        began = perf_counter()
        visit = self._held(unit)
        try:
            for read in visit.reads:
                read.result()
        except BaseException:
            with self._changed:
                visit.held -= 1
                self._give_up(kept=())
                self._changed.notify_all()
            raise
        self.traffic.waited += perf_counter() - began

    def release(self, unit: int) -> None:
        """A unit's place may be used for others."""
        with self._changed:
            visit = next(visit for visit in self._visits if visit.unit == unit and visit.held)
            visit.held -= 1
            if not visit.held:
                self._visits.remove(visit)
            self._read_ahead()
            self._changed.notify_all()

    def _held(self, unit: int) -> _Visit:
        """The visit of a unit, held. Its reads have begun, but may not be done."""
        with self._changed:
            while (visit := next((visit for visit in self._visits if visit.unit == unit), None)) is None:
                self._give_up(kept=())  # a pass that begins elsewhere
                self._next = unit
                if not self._read_ahead(soon=True):
                    self._changed.wait()  # another thread holds what lies there
            visit.held += 1
            self._give_up(kept=self._visits[self._visits.index(visit) :])  # what was skipped
            self._read_ahead()
            return visit

    def _give_up(self, kept: Sequence[_Visit]) -> None:
        """Forget all visits but those kept, and those that are held."""
        for visit in [visit for visit in self._visits if not visit.held and visit not in kept]:
            visit.cancel()
            self._visits.remove(visit)
            self._given_up.append(visit)

    def _read_ahead(self, soon: bool = False) -> bool:
        """Begin to read the next units, as many as have a free place. Returns whether there was one. soon: wait for
        reads that were given up and still write there."""
        any_read = False
        while True:
            self._given_up = [visit for visit in self._given_up if visit.running]
            here = self._ranges[self._next]
            if any(overlap(here, self._ranges[visit.unit]) for visit in self._visits):
                return any_read
            if writing := [visit for visit in self._given_up if overlap(here, self._ranges[visit.unit])]:
                if not soon:
                    return any_read
                wait([read for visit in writing for read in visit.running])
            self._visits.append(_Visit(self._next, self._reads(self._next)))
            self._next = (self._next + 1) % len(self.units)
            any_read, soon = True, False

    def _reads(self, unit: int) -> list[Future[None]]:
        """Begin to read a unit, in blocks."""
        at, _ = self._ranges[unit]
        reads = []
        for file, start, stop in self.units[unit]:
            for offset in range(start, stop, BLOCK):
                size = min(BLOCK, stop - offset)
                into = self._view[at : at + size]
                reads.append(self._readers.submit(_read, self.files[file], into, offset, self.throttle))
                at += size
                self.traffic.bytes += size
        return reads


def _read(file: DirectFile, into: memoryview, offset: int, throttle: Throttle) -> None:
    until = throttle.begin(len(into))
    file.read(into, offset)
    throttle.wait(until)


@dataclass(frozen=True)
class Streamed:
    """The home of one unit, for a pass that uses it (`foretoken.decoder.homes.parts`)."""

    stream: Stream
    unit: int
    name: str = "streamed"

    def acquire(self) -> None:
        """Have it in its place until `release`. Raises CheckpointError if it cannot be read."""
        self.stream.acquire(self.unit)

    def release(self) -> None:
        """Its place may be used for others."""
        self.stream.release(self.unit)
