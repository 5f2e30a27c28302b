"""Old keys and values in int8, which drafts read in place of the cache's own: half the bytes, and cheaper products.

Only whole blocks of 256 committed positions are coded, and only views read them: a draft sees the newest positions, and
what it has computed itself, as they are. `foretoken.kernels.coded.attention` defines what such attention gives.

Source: the idea is future work in ML-SpecQD (Georganas et al. 2025) and is done in QuantSpec (Tiwari et al. 2025).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from foretoken.decoder.memory import Memory
from foretoken.formats.table import PLACES

# codes keys and values [layers, PLACES, kv_heads, head_dim] as uint8 [layers, kv_heads, bytes]
CodePlaces = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class CodedPlaces:
    """The first blocks of a cache's committed positions in int8. A block is coded when it is first asked for."""

    def __init__(self) -> None:
        self._blocks: tuple[torch.Tensor, ...] = ()
        self._cuts = 0

    def of(self, memory: Memory, blocks: int, code: CodePlaces) -> tuple[torch.Tensor, ...]:
        """The first `blocks` blocks of a cache's memory, all of whose positions are committed."""
        had, cuts = self._blocks, self._cuts
        fresh = [
            code(memory.keys[:, start : start + PLACES], memory.values[:, start : start + PLACES])
            for start in range(len(had) * PLACES, blocks * PLACES, PLACES)
        ]
        found = (*had, *fresh) if fresh else had
        if self._cuts == cuts:  # else another thread has cut the cache meanwhile
            self._blocks = found
        return found[:blocks]

    def cut(self, length: int) -> None:
        """Forget what lies behind the first `length` positions."""
        self._cuts += 1
        self._blocks = self._blocks[: length // PLACES]
