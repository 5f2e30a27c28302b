"""Units that lie in the machine's memory come in as those of a file do."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from foretoken.decoder.homes.huge_pages import allocate
from foretoken.offload.direct import ALIGNED
from foretoken.offload.host import HostMemory
from foretoken.offload.store import Extent
from foretoken.offload.stream import Stream

PAGES = (3, 1, 5, 2, 4, 1, 3)  # of each unit


def test_what_is_held_is_what_the_memory_holds() -> None:
    host = torch.frombuffer(bytearray(random.Random(0).randbytes(sum(PAGES) * ALIGNED)), dtype=torch.uint8)
    units, at = [], 0
    for pages in PAGES:
        units.append([Extent(0, at, at + pages * ALIGNED)])
        at += pages * ALIGNED
    stream = Stream([HostMemory(host)], units, allocate(9 * ALIGNED, huge=False))
    for _ in range(20):
        for unit, ((_, start, stop),) in enumerate(units):
            stream.acquire(unit)
            first, last = stream.place(unit)
            assert torch.equal(stream.memory[first:last], host[start:stop])
            stream.release(unit)
    assert stream.traffic.bytes >= 20 * len(host)


def test_what_has_begun_is_waited_for_when_a_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def read(self, into: torch.Tensor, offset: int) -> None:
            begun.set()
            assert may_end.wait(10)
            ended.set()

    memory = torch.empty(2 * ALIGNED, dtype=torch.uint8, device="meta")  # no CPU's, as that of a GPU
    stream = Stream([Slow()], [[Extent(0, at * ALIGNED, (at + 1) * ALIGNED)] for at in range(2)], memory)
    waiting = threading.Thread(target=stream.acquire, args=(0,), daemon=True)
    waiting.start()
    assert begun.wait(10)
    ending = threading.Thread(target=stream._clerk.stop)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive(), "a copy has begun"
    may_end.set()
    ending.join(10)
    assert ended.is_set()
    assert not any(thread.is_alive() for thread in stream._clerk._threads)
