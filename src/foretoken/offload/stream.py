"""Reads units of a model, in the order in which passes use them, into a buffer that has room for some of them.

A unit is read as soon as its place is free, block by block: while the pass computes with units before it, and between
passes. So at the end of a pass the first units of the next pass are read. A block's place is free when no unit lies
there that is still to be used, and nothing is read into it any more.

One thread, the clerk, decides what is read where; others only send it messages. Ctrl-C interrupts the main thread, at
any instruction. That can leave a lock of Python's `threading` locked for ever, but not a queue of the kind that is used
here.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import torch

from foretoken.errors import ContractError, ForetokenError
from foretoken.offload.direct import ALIGNED, Throttle
from foretoken.offload.ring import offsets, shared
from foretoken.offload.store import Extent

READERS = 4  # threads: disks do several reads at once
_PATIENCE = 5.0  # seconds for copies that have begun
BLOCK = 4 << 20  # bytes of one read of a file

Reply = SimpleQueue[BaseException | None]


class Source(Protocol):
    """What units are read from: a file, or the machine's memory."""

    def read(self, into: Any, offset: int) -> None:
        """Fill a part of the buffer with the bytes from `offset` on: a memoryview, or a tensor on a GPU. It is filled
        when this returns. Raises CheckpointError if it cannot be."""
        ...


class _Hold(NamedTuple):
    """A message: a thread wants to hold a unit."""

    unit: int
    thread: int
    reply: Reply


@dataclass(eq=False)
class _Visit:
    """One reading of a unit into the buffer. asked: somebody waited for it when it began. later: the reads whose place
    is not free yet. left: how many reads are not done yet, those of `later` included. holders: the threads that use it
    now. waiting: those of them that wait for it. given_up: nobody will use it; reads that have not begun are left
    out."""

    unit: int
    asked: bool
    later: list[_Read] = field(default_factory=list)
    left: int = 0
    error: BaseException | None = None
    holders: list[int] = field(default_factory=list)
    waiting: list[_Hold] = field(default_factory=list)
    given_up: bool = False


class _LetGo(NamedTuple):
    """A message: a thread holds nothing any more."""

    thread: int


class _Done(NamedTuple):
    """A message: a read of a visit is done, or has failed, or was left out."""

    visit: _Visit
    error: BaseException | None


_Message = _Hold | _LetGo | _Done


class _Read(NamedTuple):
    """What a reader is to do. place: the bytes [start, stop) of the buffer."""

    visit: _Visit
    file: Source
    place: tuple[int, int]
    offset: int


@dataclass
class Traffic:
    """What was asked of the disk, and how long passes waited for it. Of what is given up, some is not read."""

    bytes: int = 0
    waited: float = 0.0  # seconds


@dataclass(eq=False)
class _Clerk:
    """Decides what is read where. All but `begin` and the queues is its own thread's."""

    files: Sequence[Source]
    units: Sequence[Sequence[Extent]]
    ranges: Sequence[tuple[int, int]]
    view: Any  # the buffer, into slices of which is read
    block: int
    throttle: Throttle
    traffic: Traffic
    inbox: SimpleQueue[_Message | None] = field(default_factory=SimpleQueue)
    reads: SimpleQueue[_Read | None] = field(default_factory=SimpleQueue)
    _visits: list[_Visit] = field(default_factory=list)  # in the order of use: held, read, or being read
    _given_up: list[_Visit] = field(default_factory=list)  # of which reads still write into the buffer
    _waiting: list[_Hold] = field(default_factory=list)
    _next: int = 0  # the unit that is read next
    ahead: int | None = None  # the most units that are read ahead of those that are held; None: as there is room
    ended: bool = False  # no read begins any more
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        """Begin the threads."""
        self._threads = [threading.Thread(target=self._work, name="foretoken-clerk", daemon=True)]
        self._threads += [threading.Thread(target=_reader, args=(self,), daemon=True) for _ in range(READERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads. Waits for them if they copy to a GPU: when Python ends, a thread that is still in PyTorch's
        code would end the whole process with an error."""
        self.inbox.put(None)  # first: nobody is told that a read is done which was left out
        self.ended = True
        for _ in range(READERS):
            self.reads.put(None)
        if isinstance(self.view, torch.Tensor):
            until = perf_counter() + _PATIENCE
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, until - perf_counter()))

    def _work(self) -> None:
        while (message := self.inbox.get()) is not None:
            try:
                self._take(message)
                self._advance()
            except BaseException as error:  # a fault of this program: nobody should wait for ever
                for hold in [*self._waiting, *(hold for visit in self._visits for hold in visit.waiting)]:
                    hold.reply.put(error)
                self._waiting.clear()

    def _take(self, message: _Message) -> None:
        if isinstance(message, _Done):
            message.visit.left -= 1
            message.visit.error = message.visit.error or message.error
            return
        # a thread holds one unit at a time: what it held before, it was interrupted with
        self._waiting = [hold for hold in self._waiting if hold.thread != message.thread]
        for visit in [visit for visit in self._visits if message.thread in visit.holders]:
            visit.holders.remove(message.thread)
            visit.waiting = [hold for hold in visit.waiting if hold.thread != message.thread]
            if not visit.holders:
                self._forget(visit)
        if isinstance(message, _Hold):
            self._waiting.append(message)

    def _advance(self) -> None:
        """Do all that can be done now."""
        self._given_up = [visit for visit in self._given_up if visit.left]
        self._answer()
        self._go_on()  # before another unit begins: somebody may wait for these
        if self._waiting and self._coming(self._waiting[0].unit) is None:
            for visit in [visit for visit in self._visits if not visit.holders]:  # a pass that begins elsewhere
                self._forget(visit)
            self._next = self._waiting[0].unit
            self._begin_next()
        for hold in list(self._waiting):
            if (wanted := self._coming(hold.unit)) is not None:
                self._waiting.remove(hold)
                wanted.holders.append(hold.thread)
                wanted.waiting.append(hold)
                for skipped in self._visits[: self._visits.index(wanted)]:
                    if not skipped.holders:
                        self._forget(skipped)
        self._answer()
        self._read_ahead()

    def _answer(self) -> None:
        """Tell those who wait for units that have been read. What has failed and was begun before anybody asked for it
        is read again: the fault may be over."""
        for visit in [visit for visit in self._visits if visit.waiting and not visit.left]:
            if visit.error is None or visit.asked:
                for hold in visit.waiting:
                    hold.reply.put(visit.error)
            else:
                self._waiting[:0] = visit.waiting
            visit.waiting = []
            if visit.error is not None:  # the next who asks for it tries again
                visit.holders.clear()
                self._forget(visit)

    def _coming(self, unit: int) -> _Visit | None:
        return next((v for v in self._visits if v.unit == unit and (v.error is None or v.left or v.waiting)), None)

    def _forget(self, visit: _Visit) -> None:
        visit.given_up = True
        visit.left -= len(visit.later)
        visit.later = []
        self._visits.remove(visit)
        if visit.left:
            self._given_up.append(visit)

    def _read_ahead(self) -> None:
        """Read what has a free place: more of the units that have begun, then of the next ones."""
        self._go_on()
        while not any(visit.later for visit in self._visits) and (
            self.ahead is None or sum(not visit.holders for visit in self._visits) < self.ahead
        ):
            if not self._begin_next():
                return

    def _begin_next(self) -> bool:
        """Begin to read the next unit. Returns False if nothing of its place is free."""
        start, stop = self.ranges[self._next]
        taken = [self.ranges[each.unit] for each in (*self._visits, *self._given_up)]
        if any(first <= start and stop <= last for first, last in taken):  # soon said, and the usual case
            return False
        visit, at = _Visit(self._next, any(hold.unit == self._next for hold in self._waiting)), start
        for extent in self.units[visit.unit]:
            for offset, size in extent.blocks(self.block):
                visit.later.append(_Read(visit, self.files[extent.file], (at, at + size), offset))
                at += size
        visit.left = count = len(visit.later)
        self._begin_free(visit, taken)
        if len(visit.later) == count:
            visit.later = []  # they know the visit: nobody else would let go of them
            return False
        self._visits.append(visit)
        self._next = (self._next + 1) % len(self.units)
        return True

    def _go_on(self) -> None:
        """Read more of the units that have begun, where there is room by now."""
        for at, visit in enumerate(self._visits):
            if visit.later:
                self._begin_free(visit, [self.ranges[each.unit] for each in (*self._visits[:at], *self._given_up)])

    def _begin_free(self, visit: _Visit, taken: Sequence[tuple[int, int]]) -> None:
        """Begin those reads of a unit whose places are not taken."""
        later = []
        for read in visit.later:
            if any(shared(read.place, place) for place in taken):
                later.append(read)
            else:
                self.traffic.bytes += read.place[1] - read.place[0]
                self.reads.put(read)
        visit.later = later


def _reader(clerk: _Clerk) -> None:
    """What a reader's thread does."""
    while (read := clerk.reads.get()) is not None:
        error: BaseException | None = None
        if not read.visit.given_up and not clerk.ended:
            try:
                start, stop = read.place
                until = clerk.throttle.begin(stop - start)
                read.file.read(clerk.view[start:stop], read.offset)
                clerk.throttle.wait(until)
            except BaseException as found:
                error = found
        clerk.inbox.put(_Done(read.visit, error))
        del read


@dataclass(eq=False)
class Stream:
    """Units of a model that come in while passes run.

    files: those in which the units lie. units: what to read for each, in the order of use. memory: the buffer, uint8,
    which begins at a multiple of `ALIGNED`, or lies on a GPU. block: bytes of one read. Any number of threads may use
    it; each holds one unit at a time.
    """

    files: Sequence[Source]
    units: Sequence[Sequence[Extent]]
    memory: torch.Tensor
    throttle: Throttle = field(default_factory=lambda: Throttle(None))
    block: int = BLOCK
    traffic: Traffic = field(init=False, default_factory=Traffic)
    _since: float | None = field(init=False, default=None)  # when the last pass began to wait, if it still waits

    def __post_init__(self) -> None:
        sizes = [sum(extent.size for extent in unit) for unit in self.units]
        on_cpu = self.memory.device.type == "cpu"
        if (on_cpu and self.memory.data_ptr() % ALIGNED) or len(self.memory) < max(sizes):
            raise ContractError(
                f"a buffer of {len(self.memory)} bytes at {self.memory.data_ptr():#x}; expected at least {max(sizes)} "
                f"at a multiple of {ALIGNED}"
            )
        starts = offsets(sizes, len(self.memory) // ALIGNED * ALIGNED)
        self._ranges = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        self._begin()

    def _begin(self) -> None:
        view = self.memory.numpy().data if self.memory.device.type == "cpu" else self.memory
        self._clerk = _Clerk(self.files, self.units, self._ranges, view, self.block, self.throttle, self.traffic)
        weakref.finalize(self, self._clerk.stop)
        self._clerk.begin()
        self._process = os.getpid()

    @property
    def waiting(self) -> float:
        """For how many seconds a pass has been waiting for a unit; 0 if none waits."""
        since = self._since
        return 0.0 if since is None else perf_counter() - since

    def read_ahead(self, most: int | None) -> None:
        """Read at most so many units ahead of those that are held; None: as many as there is room for. For measuring
        what reading ahead is worth: with 0 a unit is read when it is asked for."""
        self._clerk.ahead = most

    def place(self, unit: int) -> tuple[int, int]:
        """The bytes [start, stop) of the buffer where a unit lies while it is held."""
        return self._ranges[unit]

    def acquire(self, unit: int) -> None:
        """Have a unit in its place until `release`; waits until it has been read. Raises CheckpointError if it cannot
        be read. The next call tries again."""
        if os.getpid() != self._process:
            self._begin()  # a forked child has none of its parent's threads
        began, me = perf_counter(), threading.get_ident()
        reply: Reply = SimpleQueue()
        self._since = began
        try:
            self._clerk.inbox.put(_Hold(unit, me, reply))
            error = reply.get()
            self.traffic.waited += perf_counter() - began
            if isinstance(error, ForetokenError):
                raise type(error)(str(error))  # one of its own for each who waits
            if error is not None:
                raise error
        except BaseException:
            self._clerk.inbox.put(_LetGo(me))
            raise
        finally:
            self._since = None

    def release(self, unit: int) -> None:
        """A unit's place may be used for others."""
        self._clerk.inbox.put(_LetGo(threading.get_ident()))


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
