"""Old keys and values in int8, which drafts read in place of the cache's own: half the bytes, and cheaper products.

Only whole blocks of 256 committed positions are coded, and only views read them: a draft sees the newest positions, and
what it has computed itself, as they are. `foretoken.kernels.coded.attention` defines what such attention gives.

Source: the idea is future work in ML-SpecQD (Georganas et al. 2025) and is done in QuantSpec (Tiwari et al. 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from foretoken.decoder.memory import Memory
from foretoken.formats.table import PLACES

# codes keys and values [layers, PLACES, kv_heads, head_dim] as uint8 [layers, kv_heads, bytes]
CodePlaces = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def coded_layers(windows: Sequence[int | None]) -> range:
    """The layers that are coded: from the first layer without a window to the last. With a window, some rows of a pass
    may see a part of a block, so that none reads it in int8."""
    whole = [layer for layer, window in enumerate(windows) if window is None]
    return range(whole[0], whole[-1] + 1) if whole else range(0)


class CodedPrefix:
    """The first blocks of a cache's committed positions in int8, of some of its layers. A block is coded when it is
    first asked for, and is never changed."""

    def __init__(self, layers: slice = slice(0, 0), blocks: tuple[torch.Tensor, ...] = ()) -> None:
        self._layers = layers
        self._blocks = blocks
        self._cuts = 0

    def of(self, memory: Memory, layers: slice, blocks: int, code: CodePlaces) -> tuple[torch.Tensor, ...]:
        """The first `blocks` blocks of a cache's memory, all of whose positions are committed."""
        had, cuts = self._blocks if self._layers == layers else (), self._cuts
        fresh = [
            code(memory.keys[layers, start : start + PLACES], memory.values[layers, start : start + PLACES])
            for start in range(len(had) * PLACES, blocks * PLACES, PLACES)
        ]
        found = (*had, *fresh) if fresh else had
        # Another thread may have cut the cache meanwhile; then these blocks are for this pass alone. Between question
        # and assignment Python changes to no other thread.
        if self._cuts == cuts:
            self._layers, self._blocks = layers, found
        return found[:blocks]

    def cut(self, length: int) -> None:
        """Forget what lies behind the first `length` positions."""
        self._cuts += 1
        self._blocks = self._blocks[: length // PLACES]

    def first(self, length: int) -> CodedPrefix:
        """What another cache with the same first `length` positions begins with."""
        return CodedPrefix(self._layers, self._blocks[: length // PLACES])
