"""A home for the matrices of each part of a layer, which is called before the part runs, and after.

Weights in memory, mapped or copied, are always there. Others come in while a pass runs, from a disk or over a bus.
Their home brings them to where the part reads them, and may reuse that place when the part has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Protocol

# The parts of a layer, with their matrices. Part 4 i is the attention of layer i; the next three are its others. They
# are small: while one is in use, there must be room to read the next.
PARTS = {
    "attention": ("query", "key", "value", "output"),
    "gate projection": ("gate",),
    "up projection": ("up",),
    "down projection": ("down",),
}


class PartHome(Protocol):
    """Brings the matrices of one part of a layer. The layer's norms and biases are always in memory."""

    @property
    def name(self) -> str:
        """Where the matrices lie while the part does not run, in a word."""
        ...

    def acquire(self) -> None:
        """Bring the weights to where the part reads them, until `release`. Raises the error if they cannot be brought.

        No pass holds native threads meanwhile.
        """
        ...

    def release(self) -> None:
        """Called when the part has run, or has failed, and once more for every part when a pass was broken off."""
        ...


Homes = Sequence[PartHome | None]  # one for each part; None: its weights are always in memory; empty: all are


@contextmanager
def acquired(home: PartHome | None) -> Iterator[None]:
    """Keeps a part's weights in place while the part runs."""
    if home is None:
        yield
        return
    home.acquire()
    try:
        yield
    finally:
        home.release()


def stretches(homes: Homes, lo: int, hi: int) -> Iterator[tuple[range, PartHome | None]]:
    """The parts of layers lo to hi (not included), divided into stretches that run in one call, with their homes. Parts
    that are always in memory run together, each other part alone. No layers give one empty stretch."""
    lo, hi = lo * len(PARTS), hi * len(PARTS)
    if not homes or lo == hi:
        yield range(lo, hi), None
        return
    for home, parts in groupby(range(lo, hi), key=lambda part: homes[part]):
        if home is None:
            together = list(parts)
            yield range(together[0], together[-1] + 1), None
        else:
            yield from ((range(part, part + 1), home) for part in parts)
