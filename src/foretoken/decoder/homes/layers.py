"""A home for each layer's weights, which is called before the layer runs, and after.

Weights in memory, mapped or copied, are always there. Others come in while a pass runs, from a disk or over a bus.
Their home brings them to where the layer reads them, and may reuse that place when the layer has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Protocol


class LayerHome(Protocol):
    """Brings the seven matrices of one layer. The layer's norms and biases are always in memory. `name` says where the
    matrices lie while the layer does not run."""

    name: str

    def acquire(self) -> None:
        """Bring the weights to where the layer reads them, until `release`. Raises the error if they cannot be brought.

        No pass holds native threads meanwhile.
        """
        ...

    def release(self) -> None:
        """Called when the layer has run, or has failed."""
        ...


Homes = Sequence[LayerHome | None]  # one for each layer; None: its weights are always in memory; empty: all are


@contextmanager
def acquired(home: LayerHome | None) -> Iterator[None]:
    """Keeps a layer's weights in place while the layer runs."""
    if home is None:
        yield
        return
    home.acquire()
    try:
        yield
    finally:
        home.release()


def stretches(homes: Homes, lo: int, hi: int) -> Iterator[tuple[range, LayerHome | None]]:
    """Layers lo to hi (not included), divided into stretches that run in one call, with their homes. Layers that are
    always in memory run together, each other layer alone. No layers give one empty stretch."""
    if not homes or lo == hi:
        yield range(lo, hi), None
        return
    for home, layers in groupby(range(lo, hi), key=lambda layer: homes[layer]):
        if home is None:
            together = list(layers)
            yield range(together[0], together[-1] + 1), None
        else:
            yield from ((range(layer, layer + 1), home) for layer in layers)
