"""A home for each layer's weights: who is told before a layer runs, and after.

Weights in memory, mapped or copied, are always there. Others come in while a pass runs, from a disk or over a bus.
Their home brings them to where the layer reads them, and may let others take their place when the layer has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Protocol


class LayerHome(Protocol):
    """Brings the seven matrices of one layer; its norms and biases are always in memory. `name` says where the matrices
    lie meanwhile."""

    name: str

    def acquire(self) -> None:
        """Bring the weights to where the layer reads them; they stay until `release`. Raises what is wrong with them.

        No pass holds native threads meanwhile.
        """
        ...

    def release(self) -> None:
        """The layer has run, or has failed."""
        ...


Homes = Sequence[LayerHome | None]  # of each layer, None: its weights are always in memory; empty: all are


@contextmanager
def acquired(home: LayerHome | None) -> Iterator[None]:
    """While a layer runs, its weights are in place."""
    if home is None:
        yield
        return
    home.acquire()
    try:
        yield
    finally:
        home.release()


def stretches(homes: Homes, lo: int, hi: int) -> Iterator[tuple[range, LayerHome | None]]:
    """The layers lo to hi (not included) in the stretches that run in one go: those that are always in memory together,
    each other one alone, with its home. No layers are one empty stretch."""
    if not homes or lo == hi:
        yield range(lo, hi), None
        return
    for home, layers in groupby(range(lo, hi), key=lambda layer: homes[layer]):
        if home is None:
            together = list(layers)
            yield range(together[0], together[-1] + 1), None
        else:
            yield from ((range(layer, layer + 1), home) for layer in layers)
