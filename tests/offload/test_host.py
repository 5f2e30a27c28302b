"""Units that lie in the machine's memory come in as those of a file do."""

from __future__ import annotations

import random

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
